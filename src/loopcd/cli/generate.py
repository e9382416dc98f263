"""`loopcd generate`"""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main, progress_bar
from loopcd.cli.method_flags import build_method, method_options
from loopcd.cli.options import shared


@main.command()
@click.argument("prompt", required=False)
@click.option(
    "--file",
    "source",
    type=click.Path(),
    help="Prompts: one a line, or JSON lines with a field `prompt`; - is standard input, read so.",
)
@shared("model")
@method_options
@click.option("--max-new-tokens", type=int, default=256, show_default=True)
@click.option("--stop", multiple=True, help="Stop at this text; may be given several times.")
@shared("temperature", "top-p")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--init-seed", type=int, help="Huginn: draw the initial state by this seed (zero if not given).")
@shared("num-loops")
@click.option("--batch-size", type=int, default=8, show_default=True)
@shared("dtype", "quantize", "device", "allow-pickle")
@click.option("--trace", "trace_file", type=click.Path(), help="Write to this file what every loop said about every token.")
@shared("chat")
@click.option("--thinking/--no-thinking", "enable_thinking", default=None, help="--chat: the template's enable_thinking.")
@click.option("--show-thinking", is_flag=True, help="--chat: print the thinking part of an answer too.")
@click.option("--stream", "streamed", is_flag=True, help="Print the text as it is made.")
@shared("json")
def generate(
    prompt: str | None,
    source: str | None,
    model: str,
    method: str,
    trace_file: str | None,
    chat: bool,
    show_thinking: bool,
    streamed: bool,
    as_json: bool,
    dtype: str | None,
    device: str | None,
    quantize: str | None,
    allow_pickle: bool,
    **options: Any,
) -> None:
    """Continue PROMPT, or what standard input holds (one prompt, newlines and all), or each prompt of a file."""
    prompts = [_said(each) if chat and isinstance(each, str) else each for each in _prompts(prompt, source)]
    if streamed and (as_json or trace_file is not None or len(prompts) != 1):
        raise click.UsageError(
            "--stream prints the text of one prompt as it is made: not with --json, --trace or several prompts"
        )
    run_names = ("max_new_tokens", "stop", "temperature", "top_p", "seed", "init_seed", "num_loops", "batch_size")
    run_names += ("enable_thinking",)
    run = {name: options.pop(name) for name in run_names}
    chosen = build_method(method, options)
    import loopcd

    loaded, tokenizer = loopcd.load(model, dtype=dtype, device=device, allow_pickle=allow_pickle, quantize=quantize)
    hidden = _Hidden(tokenizer, run["enable_thinking"], shown=show_thinking)
    if streamed:
        run.pop("batch_size")
        pieces = loopcd.stream(loaded, tokenizer, prompts[0], chosen, **run)
        for piece in hidden.pieces(prompts[0], pieces):
            click.echo(piece, nl=False)
            sys.stdout.flush()
        click.echo()
        return
    with progress_bar("generating", len(prompts)) as show, _writer(trace_file) as trace:
        made = loopcd.generate(loaded, tokenizer, prompts, chosen, progress=show, trace=trace, **run)
    results = [{"prompt": each, **_as_dict(text), **hidden.parts(each, text)} for each, text in zip(prompts, made, strict=True)]
    if as_json:
        from loopcd.evaluation.engine import plain

        settings = plain(chosen.settled(loaded, run["num_loops"]))  # as they were, presets and all
        click.echo(json.dumps({"model": model, "method": method, "settings": settings, "results": results}))
        return
    for number, result in enumerate(results):
        if len(results) > 1:
            shown = result["prompt"] if isinstance(result["prompt"], str) else result["prompt"][-1]["content"]
            click.echo(("" if number == 0 else "\n") + f"# {shown}")
        click.echo(result["text"] if show_thinking else result.get("answer", result["text"]))


@dataclass(frozen=True)
class _Hidden:
    """What is done with the thinking part of answers in a conversation."""

    tokenizer: Any
    enable_thinking: bool | None
    shown: bool

    def _opened(self, messages: Any) -> bool:
        """Whether the template itself opens the thinking part."""
        from loopcd.decoding.chat import chat_ids
        from loopcd.decoding.thinking import is_opened

        return is_opened(self.tokenizer.decode(chat_ids(self.tokenizer, messages, "prompt", self.enable_thinking)))

    def pieces(self, prompt: Any, pieces: Iterator[str]) -> Iterator[str]:
        from loopcd.decoding.thinking import without_thinking

        return pieces if self.shown or isinstance(prompt, str) else without_thinking(pieces, self._opened(prompt))

    def parts(self, prompt: Any, made: Any) -> dict[str, str | None]:
        """`thinking` and `answer`, of an answer in a conversation."""
        from loopcd.decoding.thinking import split_thinking

        return {} if isinstance(prompt, str) else asdict(split_thinking(made.text, self._opened(prompt)))


def _writer(path: str | None) -> Any:
    """Where traces go, closed when all are written; False where none are asked for."""
    import loopcd

    return nullcontext(False) if path is None else loopcd.TraceWriter(path)


def _as_dict(generation: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(generation).items() if key != "trace"}


def _said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _prompts(prompt: str | None, source: str | None) -> Iterator[Any]:
    """The argument, or standard input as it is; or the lines of a file, each a text or a JSON object with a field `prompt`, or
    with a conversation in a field `messages`."""
    if prompt is not None and source is not None:
        raise click.UsageError("give either PROMPT or --file, not both")
    if prompt is not None:
        yield prompt
        return
    if source is None and sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, --file FILE, or a prompt on standard input")
    name = "standard input" if source in (None, "-") else str(source)
    try:
        lines = sys.stdin.read() if source in (None, "-") else Path(str(source)).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not a text in UTF-8: {error}") from error
    if source is None:
        if not lines.strip():
            raise ValueError(f"{name} holds no prompt")
        yield lines.removesuffix("\n")  # which echo writes, and nobody means
        return
    found = False
    for number, line in enumerate(lines.splitlines(), start=1):
        if line.strip():
            found = True
            yield _prompt_of(line, f"{name}, line {number}")
    if not found:
        raise ValueError(f"{name} holds no prompt")


def _prompt_of(line: str, place: str) -> Any:
    if not line.lstrip().startswith("{"):
        return line
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return line  # a text that happens to begin with a brace
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return messages
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise ValueError(f"{place}: a JSON object needs a text in its field `prompt`, or messages in its field `messages`")
    return value["prompt"]
