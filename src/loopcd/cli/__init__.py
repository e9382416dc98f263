"""The command line: options in, calls of the library, tables or JSON out.

One file a command; start with `generate`. `group` holds what all share: how failures are shown, progress, tables. `methods`
has the methods' settings as flags. Exit status 0 fine, 1 failed, 2 bad usage, 130 interrupted. With `--json` standard output
holds one JSON object, nothing else.
"""

# each adds its commands to the group
from loopcd.cli import bench, demo, evaluate, generate, lens, models, reproduce, serve, train, verify
from loopcd.cli.group import main
from loopcd.cli.method_flags import build_method

__all__ = [
    "bench",
    "build_method",
    "demo",
    "evaluate",
    "generate",
    "lens",
    "main",
    "models",
    "reproduce",
    "serve",
    "train",
    "verify",
]
