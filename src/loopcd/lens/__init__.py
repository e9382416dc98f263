"""The viewer: one page that shows what every loop said about every token, opened from a file or served on loopback.

Start with `examples`, what is shown side by side, and `payload`, how it reaches the page; `page` puts both into one file.
`server` answers a browser on this machine only (`guard`), `live` traces what is typed there by the methods that its `form`
offers. The page itself, in JavaScript, is in `page/`.
"""

from loopcd.lens.examples import Example, Looked, examples_of, read_examples, search
from loopcd.lens.page import export, write_page

__all__ = ["Example", "Looked", "examples_of", "export", "read_examples", "search", "write_page"]
