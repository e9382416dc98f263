"""`python -m loopcd.lens.build [FILE]`: the page without data, to look at or to measure."""

import sys
from pathlib import Path

from loopcd.lens.page import write_page

if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "lens.html")
    size = target.write_bytes(write_page({"examples": []}).encode())
    sys.stderr.write(f"{target}: {size / 1000:.0f} kB\n")
