"""vLLM's OpenAI-compatible server for a looped model."""

# pyright: reportMissingImports=false

import json
from collections.abc import Sequence

from loopcd.serving.vllm.options import EngineOptions

REPLACED = {"additional_config": "--amateur-loops and --default-method", "hf_overrides": "--num-loops"}  # by what says the same


def serve(options: EngineOptions, host: str, port: int, more: Sequence[str] = ()) -> None:
    """Run the server until it is stopped. `more` are arguments of `vllm serve`, handed through; they win.

    vLLM's own command asks for a distribution of the name `vllm`, which its CPU build does not have; what that command calls
    does not, so it is called here.
    """
    arguments = options.resolve().start() | {"host": host, "port": port}
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = ServeSubcommand()
    parser = FlexibleArgumentParser(prog="loopcd")
    command.subparser_init(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["serve", str(arguments.pop("model")), *as_flags(arguments), *more])
    for name, flags in REPLACED.items():
        if name in arguments and getattr(parsed, name) != arguments[name]:
            raise ValueError(f"--{name.replace('_', '-')} takes the place of {flags}: say all of it there, or nothing")
    command.validate(parsed)
    command.cmd(parsed)


def as_flags(arguments: dict[str, object]) -> list[str]:
    """Engine arguments as `vllm serve` takes them."""
    flags = []
    for name, value in arguments.items():
        flags.append(f"--{'no-' if value is False else ''}{name.replace('_', '-')}")
        if not isinstance(value, bool):
            flags.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return flags
