"""The command line: options in, calls of the library, tables or JSON out.

Exit status 0 fine, 1 failed, 2 bad usage, 130 interrupted. With `--json` standard output holds one JSON object, nothing else.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

METHODS = ("greedy", "loopcd", "noisecd", "mti", "selfeval")


class Failed(click.ClickException):
    """Something that the user can mend: one sentence, no traceback."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.echo(f"loopcd: {self.message}", err=True)


class _Command(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, MemoryError, OSError) as error:
            raise Failed(str(error) or type(error).__name__) from error
        except KeyboardInterrupt:
            click.echo("loopcd: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loopcd")
def main() -> None:
    """Run looped language models, and decode them by LoopCD."""


# -- loopcd generate ----------------------------------------------------------------------------------------------------


def _method_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The settings of every method, as flags."""
    options = [
        click.option("--method", type=click.Choice(METHODS), default="loopcd", show_default=True),
        click.option("--amateur-loop", type=int, help="LoopCD: loop of the amateur (the model's preset if not given)."),
        click.option("--strength", type=float, help="LoopCD, NoiseCD: λ."),
        click.option("--plausibility", type=float, help="LoopCD, NoiseCD, MTI: α."),
        click.option("--coda", type=click.Choice(["own", "shared"]), help="LoopCD on Huginn: whose coda entries are read."),
        click.option("--where", help='LoopCD: "hard", "easy", "numeric", "operator" or e.g. "hard numeric" positions only.'),
        click.option("--noise", type=float, help="NoiseCD: σ."),
        click.option("--entropy-threshold", type=float, help="MTI: τ."),
        click.option("--guidance", type=float, help="MTI: ω."),
        click.option("--negative-prompt", help="MTI: the negative prompt."),
        click.option("--candidates", type=int, help="SelfEval: N."),
        click.option("--exit-threshold", type=float, help="Leave the loop early at this threshold (0.03 in the paper)."),
        click.option("--min-loops", type=int, help="Early exit: loops that are run in any case."),
        click.option("--exit-criterion", type=click.Choice(["latent", "gate"]), help="Early exit: what is compared."),
        click.option("--exited", type=click.Choice(["last", "skip"]), help="Early exit: how tokens that left are seen."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


_SETTINGS = {
    "greedy": (),
    "loopcd": ("amateur_loop", "strength", "plausibility", "coda", "where"),
    "noisecd": ("noise", "strength", "plausibility"),
    "mti": ("entropy_threshold", "guidance", "negative_prompt", "plausibility"),
    "selfeval": ("candidates",),
}
_EXIT = {"exit_threshold": "threshold", "min_loops": "min_loops", "exit_criterion": "criterion", "exited": "exited"}


def build_method(name: str, given: dict[str, Any]) -> Any:
    """The method of that name with the settings that were given; a setting of another method is refused."""
    import loopcd

    given = {key: value for key, value in given.items() if value is not None}
    exit_given = {_EXIT[key]: given.pop(key) for key in list(given) if key in _EXIT}
    foreign = sorted(set(given) - set(_SETTINGS[name]))
    if foreign:
        flag = "--" + foreign[0].replace("_", "-")
        owners = [method for method, settings in _SETTINGS.items() if foreign[0] in settings]
        raise click.UsageError(f"{flag} is a setting of {', '.join(owners)}, not of {name}")
    kinds = {
        "greedy": loopcd.Greedy,
        "loopcd": loopcd.LoopCD,
        "noisecd": loopcd.NoiseCD,
        "mti": loopcd.MTI,
        "selfeval": loopcd.SelfEval,
    }
    if exit_given:
        given["exit"] = loopcd.EarlyExit(**exit_given)
    return kinds[name](**given)


@main.command()
@click.argument("prompt", required=False)
@click.option(
    "--file",
    "source",
    type=click.Path(),
    help="Prompts: one a line, or JSON lines with a field `prompt`; - is standard input.",
)
@click.option("--model", default="tiny-huginn", show_default=True, help="A built-in name, a folder, or a hub id.")
@_method_options
@click.option("--max-new-tokens", type=int, default=256, show_default=True)
@click.option("--stop", multiple=True, help="Stop at this text; may be given several times.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 takes the best token.")
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--init-seed", type=int, help="Huginn: draw the initial state by this seed (zero if not given).")
@click.option("--num-loops", type=int, help="Loops to run (the model's own number if not given).")
@click.option("--batch-size", type=int, default=8, show_default=True)
@click.option("--dtype", help="float32, bfloat16 or float16 (the checkpoint's own if not given).")
@click.option("--device", help="cpu, cuda, ... (a GPU where there is one).")
@click.option("--stream", "streamed", is_flag=True, help="Print the text as it is made.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def generate(
    prompt: str | None,
    source: str | None,
    model: str,
    method: str,
    streamed: bool,
    as_json: bool,
    dtype: str | None,
    device: str | None,
    **options: Any,
) -> None:
    """Continue PROMPT, or the prompts of a file or of standard input."""
    prompts = list(_prompts(prompt, source))
    if streamed and (as_json or len(prompts) != 1):
        raise click.UsageError("--stream prints the text of one prompt as it is made: not with --json or several prompts")
    run_names = ("max_new_tokens", "stop", "temperature", "top_p", "seed", "init_seed", "num_loops", "batch_size")
    run = {name: options.pop(name) for name in run_names}
    chosen = build_method(method, options)
    import loopcd

    loaded, tokenizer = loopcd.load(model, dtype=dtype, device=device)
    if streamed:
        run.pop("batch_size")
        for piece in loopcd.stream(loaded, tokenizer, prompts[0], chosen, **run):
            click.echo(piece, nl=False)
            sys.stdout.flush()
        click.echo()
        return
    with _progress("generating", len(prompts)) as show:
        made = loopcd.generate(loaded, tokenizer, prompts, chosen, progress=show, **run)
    results = [{"prompt": text, **_as_dict(each)} for text, each in zip(prompts, made, strict=True)]
    if as_json:
        shown = {key: value for key, value in options.items() if value is not None}
        click.echo(json.dumps({"model": model, "method": method, "settings": shown, "results": results}))
        return
    for number, result in enumerate(results):
        if len(results) > 1:
            click.echo(("" if number == 0 else "\n") + f"# {result['prompt']}")
        click.echo(result["text"])


def _as_dict(generation: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(generation).items() if key != "trace"}


def _prompts(prompt: str | None, source: str | None) -> Iterator[str]:
    """The argument; or the lines of a file or of standard input, each a text or a JSON object with a field `prompt`."""
    if prompt is not None and source is not None:
        raise click.UsageError("give either PROMPT or --file, not both")
    if prompt is not None:
        yield prompt
        return
    if source is None and sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, --file FILE, or prompts on standard input")
    name = "standard input" if source in (None, "-") else str(source)
    lines = sys.stdin.read() if source in (None, "-") else Path(str(source)).read_text()
    found = False
    for number, line in enumerate(lines.splitlines(), start=1):
        if line.strip():
            found = True
            yield _prompt_of(line, f"{name}, line {number}")
    if not found:
        raise ValueError(f"{name} holds no prompt")


def _prompt_of(line: str, place: str) -> str:
    if not line.lstrip().startswith("{"):
        return line
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return line  # a text that happens to begin with a brace
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise ValueError(f"{place}: a JSON object needs a text in its field `prompt`")
    return value["prompt"]


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while something long runs, where somebody can see it."""
    if total < 2 or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, _: bar.update(task, completed=done)


# -- loopcd models ------------------------------------------------------------------------------------------------------


@main.command()
@click.argument("names", nargs=-1)
@click.option("--context", type=int, default=4096, show_default=True, help="Tokens for which the cache is counted.")
@click.option("--num-loops", type=int, help="Loops to count with (each model's own number if not given).")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of weights and cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def models(names: tuple[str, ...], context: int, num_loops: int | None, dtype: str, as_json: bool) -> None:
    """What can be loaded: loops, parameters, memory at a context length, presets. NAMES may be folders too."""
    from loopcd.models.catalogue import describe

    if context < 1:
        raise ValueError(f"--context {context}: a whole number of at least 1")
    rows = describe(names, context, num_loops, dtype)
    if as_json:
        click.echo(json.dumps({"context": context, "dtype": dtype, "models": [asdict(row) for row in rows]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Looped models, cache for {context} tokens, {dtype}")
    for heading in ("model", "family", "loops", "parameters", "weights", "slots", "cache", "amateur loop", "strength"):
        table.add_column(heading, justify="left" if heading in ("model", "family") else "right", overflow="fold")
    for row in rows:
        table.add_row(*row.cells())
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
