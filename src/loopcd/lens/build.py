"""`python -m loopcd.lens.build [FILE]`: the page without data, to look at or to measure."""

import argparse
import sys
from pathlib import Path

from loopcd.lens.page import write_page
from loopcd.tracing.writing import write_whole

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m loopcd.lens.build", description="Write the page without data.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("lens.html"))
    target = parser.parse_args().file
    page = write_page({"examples": []}).encode()
    write_whole(target, page)
    sys.stderr.write(f"{target}: {len(page) / 1000:.0f} kB\n")
