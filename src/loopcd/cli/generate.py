"""`loopcd generate`"""

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import main, progress_bar
from loopcd.cli.method_flags import build_method, method_options
from loopcd.cli.options import COUNT, shared

_RUN = ("max_new_tokens", "stop", "temperature", "top_p", "seed", "init_seed", "num_loops", "batch_size", "enable_thinking")


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
@click.option("--max-new-tokens", type=COUNT, default=256, show_default=True)
@click.option("--stop", multiple=True, help="Stop at this text; may be given several times.")
@shared("temperature", "top-p")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--init-seed", type=int, help="Huginn: draw the initial state by this seed (zero if not given).")
@shared("num-loops")
@click.option("--batch-size", type=COUNT, default=8, show_default=True)
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
    **options: Any,
) -> None:
    """Continue PROMPT, or what standard input holds (one prompt, newlines and all), or each prompt of a file."""
    prompts = _prompts(prompt, source)
    if chat:
        prompts = [[{"role": "user", "content": each}] if isinstance(each, str) else each for each in prompts]
    if (show_thinking or options["enable_thinking"] is not None) and all(isinstance(each, str) for each in prompts):
        raise click.UsageError("--thinking and --show-thinking are for conversations: say --chat, or give messages by --file")
    if options["top_p"] < 1 and not options["temperature"]:
        raise ValueError(f"--top-p {options['top_p']}: at --temperature 0 nothing is drawn")
    if streamed and (as_json or trace_file is not None or len(prompts) != 1):
        raise click.UsageError(
            "--stream prints the text of one prompt as it is made: not with --json, --trace or several prompts"
        )
    run = {name: options.pop(name) for name in _RUN}
    loading = {name: options.pop(name) for name in ("dtype", "device", "quantize", "allow_pickle")}
    chosen = build_method(method, options)
    import loopcd
    from loopcd.decoding.thinking import without_thinking

    loaded, tokenizer = loopcd.load(model, **loading)
    if streamed:
        del run["batch_size"]
        pieces = loopcd.stream(loaded, tokenizer, prompts[0], chosen, **run)
        if not show_thinking and not isinstance(prompts[0], str):
            pieces = without_thinking(pieces, _thinks_already(tokenizer, prompts[0], run["enable_thinking"]))
        for piece in pieces:
            click.echo(piece, nl=False)
            sys.stdout.flush()
        click.echo()
        return
    writer = nullcontext(False) if trace_file is None else loopcd.TraceWriter(trace_file)
    with progress_bar("generating", len(prompts)) as show, writer as trace:
        made = loopcd.generate(loaded, tokenizer, prompts, chosen, progress=show, trace=trace, **run)
    results = [_result(tokenizer, *each, run["enable_thinking"]) for each in zip(prompts, made, strict=True)]
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


def _thinks_already(tokenizer: Any, messages: Any, enable_thinking: bool | None) -> bool:
    """Whether the template itself opens the thinking part of the answer."""
    from loopcd.decoding.chat import chat_ids
    from loopcd.decoding.thinking import is_opened

    return is_opened(tokenizer.decode(chat_ids(tokenizer, messages, "prompt", enable_thinking)))


def _result(tokenizer: Any, prompt: Any, made: Any, enable_thinking: bool | None) -> dict[str, Any]:
    """All that is known of a text but its trace; of an answer in a conversation also `thinking` and `answer`."""
    from loopcd.decoding.thinking import split_thinking

    found = {"prompt": prompt, **asdict(made)}
    del found["trace"]
    if not isinstance(prompt, str):
        found.update(asdict(split_thinking(made.text, _thinks_already(tokenizer, prompt, enable_thinking))))
    return found


def _prompts(prompt: str | None, source: str | None) -> list[Any]:
    """The argument, or standard input as it is; or the lines of a file, each a text or a JSON object with a field `prompt`, or
    with a conversation in a field `messages`."""
    if prompt is not None and source is not None:
        raise click.UsageError("give either PROMPT or --file, not both")
    if prompt is not None:
        if not prompt.strip():
            raise ValueError("the prompt is empty: give at least a word")
        return [prompt]
    if source is None and sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, --file FILE, or a prompt on standard input")
    name = "standard input" if source in (None, "-") else str(source)
    try:
        text = sys.stdin.read() if source in (None, "-") else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not a text in UTF-8: {error}") from error
    text = text.removeprefix("\ufeff")  # by which some editors mark a file as UTF-8
    if not text.strip():
        raise ValueError(f"{name} holds no prompt")
    if source is None:
        return [text.removesuffix("\n")]  # which echo writes, and nobody means
    lines = enumerate(text.split("\n"), start=1)  # not at what else ends a line by Unicode: JSON may hold that as it is
    return [_prompt_of(line, f"{name}, line {number}") for number, line in lines if line.strip()]


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
