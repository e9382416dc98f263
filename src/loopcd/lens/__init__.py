"""The viewer: one page that shows what every loop said about every token, opened from a file or served on loopback."""

from loopcd.lens.examples import Example, Found, Looked, examples_of, read_examples, search
from loopcd.lens.export import export
from loopcd.lens.page import write_page

__all__ = ["Example", "Found", "Looked", "examples_of", "export", "read_examples", "search", "write_page"]
