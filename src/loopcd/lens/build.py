"""`python -m loopcd.lens.build [FILE]`: the page without data, to look at or to measure."""

import sys
from pathlib import Path

from loopcd.lens.page import write_page
from loopcd.tracing.writing import write_whole

if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "lens.html")
    page = write_page({"examples": []}).encode()
    write_whole(target, page)
    sys.stderr.write(f"{target}: {len(page) / 1000:.0f} kB\n")
