"""The command line: options in, calls of the library, tables or JSON out.

One file a command; start with `generate`. `group` holds what all share: how failures are shown, progress, tables.
`method_flags` has the methods' settings as flags. Exit status 0 fine, 1 failed, 2 bad usage, 130 interrupted. With `--json`
standard output holds one JSON object, nothing else.
"""

from loopcd.cli import bench, demo, evaluate, generate, lens, models, reproduce, serve, train, verify  # noqa: F401 (commands)
from loopcd.cli.group import main
from loopcd.cli.method_flags import build_method

__all__ = ["build_method", "main"]
