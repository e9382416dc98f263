"""`python -m benchmarks`: as `loopcd bench`, with the parts of this folder too."""

from benchmarks.parts import register
from loopcd.cli.bench import bench

if __name__ == "__main__":
    register()
    bench.main(prog_name="python -m benchmarks")
