"""What every fuzz asks of an answer: it worked, or one sentence says why not. Never a traceback, never a mistake of ours."""

from collections.abc import Sequence

from click.testing import CliRunner

from loopcd.cli import main


def complaint(arguments: Sequence[str], stdin: str | None = None) -> str | None:
    """What is wrong with how the command line takes these arguments; None where it takes them as it should."""
    result = CliRunner().invoke(main, list(arguments), input=stdin)
    told = result.stderr.strip()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{list(arguments)}: raw {type(result.exception).__name__}: {result.exception}"
    if "Traceback" in told or "a mistake in loopcd" in told:
        return f"{list(arguments)}: {told[-400:]}"
    if result.exit_code not in (0, 1, 2):
        return f"{list(arguments)}: status {result.exit_code}"
    if result.exit_code == 1 and not told.splitlines()[-1:][0].startswith("loopcd: "):
        return f"{list(arguments)}: status 1, and said {told[-400:]!r}"
    return None
