"""Benchmarks beside those of `loopcd bench`: single devices of the decoding, the worst case, memory. Not part of the package.

`python -m benchmarks` is `loopcd bench` with these parts added (`parts`); `python -m benchmarks.page RUN.json` makes
docs/performance.md of its JSON. To add a part: a module that measures it, a maker of its tables, a line each in `parts`.
"""
