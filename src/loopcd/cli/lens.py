"""`loopcd lens`"""

import json
from collections.abc import Sequence
from os.path import isfile
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import Failed, main
from loopcd.cli.method_flags import build_method
from loopcd.cli.options import COUNT, check_idle, check_task, shared

SETTINGS = ("amateur_loop", "strength", "plausibility")  # of LoopCD, as options


@main.command()
@click.argument("sources", nargs=-1, metavar="[PROMPT | TRACE ...]")
@click.option("--export", "target", type=click.Path(path_type=Path), help="Write one self-contained page, and serve nothing.")
@shared("model")
@click.option("--amateur-loop", type=int, help="LoopCD: loop of the amateur (the model's preset if not given).")
@click.option("--strength", type=float, help="LoopCD: λ.")
@click.option("--plausibility", type=float, help="LoopCD: α.")
@click.option("--max-new-tokens", type=COUNT, help="Longest text (the task's own limit if not given).")
@click.option("--task", default="steps", show_default=True, help="Where examples are looked for when no source is given.")
@shared("data")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Examples taken of trace files.")
@click.option("--problems", type=COUNT, help="Problems that the search looks at (all of the task if not given).")
@shared("num-loops", "dtype", "device", "allow-pickle", "chat")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To serve on; a free one if not given.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--json", "as_json", is_flag=True, help="With --export: print one JSON object.")
def lens(sources: tuple[str, ...], target: Path | None, port: int, no_browser: bool, as_json: bool, **options: Any) -> None:
    """Watch the loops: greedy and LoopCD side by side, and what every loop said about every token.

    \b
    loopcd lens                        serve the page, and look for problems on which the two differ
    loopcd lens "Question: ..."        serve it and run this prompt
    loopcd lens a.npz b.npz            open traces (loopcd generate --trace, loopcd reproduce)
    loopcd lens --export report.html   any of these as one file that opens from disk
    """
    if as_json and target is None:
        raise click.UsageError("--json goes with --export")
    if target is not None and not target.parent.is_dir():  # said before the texts are made
        raise ValueError(f"--export {target}: there is no folder {target.parent}")
    check_task(options["task"], allow_code_execution=False, advice="the lens runs no programs; take another task")
    traces, prompts = _sorted(sources)
    if target is not None:
        if traces:
            check_idle(SETTINGS, "with traces that are exported: each has its own")
        _export(target, *_examples(traces, prompts, options), as_json)
        return
    if len(prompts) > 1:
        raise click.UsageError("the served page starts with one prompt: give one, or --export for several")
    try:
        import uvicorn  # noqa: F401 (asked for here, so that nothing is loaded in vain)

        from loopcd.lens.server import serve
    except ImportError as error:
        raise Failed(f"serving needs starlette and uvicorn: pip install 'loopcd[lens]' ({error})") from error
    serve(_viewer(traces, prompts, options), port, lambda address: _announce(address, no_browser))


def _sorted(sources: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Trace files and prompts."""
    traces, prompts = [], []
    for source in sources:
        is_file = isfile(source)  # noqa: PTH113 (pathlib's raises where a text is longer than a name can be)
        if source.endswith(".npz") and "\n" not in source and not is_file:
            raise ValueError(f"there is no file {source}")
        (traces if is_file else prompts).append(source)
    if traces and prompts:
        raise click.UsageError("give trace files or a prompt, not both")
    return [Path(each) for each in traces], prompts


def _methods(options: dict[str, Any]) -> Any:
    return build_method("greedy", {}), build_method("loopcd", {name: options[name] for name in SETTINGS})


def _session(options: dict[str, Any]) -> Any:
    from loopcd.evaluation.session import Session

    same = ("model", "task", "data", "max_new_tokens", "num_loops", "dtype", "device", "allow_pickle")
    return Session(**{name: options[name] for name in same}, limit=options["problems"])


def _engine(options: dict[str, Any]) -> Any:
    import torch

    engine = _session(options).make_engine()
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    return engine


def _examples(traces: list[Path], prompts: list[str], options: dict[str, Any]) -> tuple[list[Any], str]:
    """What is to be exported, and a note on how it was chosen."""
    from loopcd.lens import read_examples

    if traces:
        limit = options["limit"]
        examples, left_out = read_examples(traces, limit)
        return examples, f"{left_out} more prompts of the files are left out (--limit {limit})." if left_out else ""
    return (_written(prompts, options), "") if prompts else _searched(options)


def _export(target: Path, examples: list[Any], note: str, as_json: bool) -> None:
    from loopcd.lens import export

    size = export(target, examples, note)
    if as_json:
        click.echo(json.dumps({"file": str(target), "bytes": size, "examples": len(examples), "note": note}))
    else:
        many = f"{len(examples)} example{'' if len(examples) == 1 else 's'}"
        click.echo(f"{target}: {many}, {size / 1000:.0f} kB. It opens from disk, in any browser.")


def _written(prompts: Sequence[str], options: dict[str, Any]) -> list[Any]:
    """Both methods' texts of each prompt, traced."""
    import loopcd
    from loopcd.decoding.chat import prompt_ids, said
    from loopcd.lens.examples import examples_of, traces_by
    from loopcd.tracing import Written, describe

    engine, methods, length = _engine(options), _methods(options), options["max_new_tokens"] or 256
    asked = [said(prompt) if options["chat"] else prompt for prompt in prompts]
    read = [prompt if isinstance(prompt, str) else prompt_ids(engine.tokenizer, prompt) for prompt in asked]
    traces, loops = [], engine.num_loops
    for method in methods:
        made = loopcd.generate(engine.model, engine.tokenizer, asked, method, max_new_tokens=length, num_loops=loops)
        written = [Written.of(prompt, each, describe(method)) for prompt, each in zip(read, made, strict=True)]
        traces += traces_by(engine, method, methods, written)
    return examples_of(traces, prefix="prompt")[0]


def _searched(options: dict[str, Any]) -> tuple[list[Any], str]:
    """Problems of the task on which the methods' texts differ: those that became right first, then those that became wrong."""
    from loopcd.lens.examples import EACH, Looked, searched

    task, engine, methods = _session(options).make_task(), _engine(options), _methods(options)

    def told(looked: Looked, found: int) -> None:
        counted = f"{looked.differ} pairs of texts differ, {found} kept, at most {EACH} of a kind"
        click.echo(f"looked at {looked.done} problems of {task.name}: {counted}", err=True)

    return searched(engine, task, methods, told)


def _viewer(traces: list[Path], prompts: list[str], options: dict[str, Any]) -> Any:
    from loopcd.lens import read_examples
    from loopcd.lens.server import Viewer

    _methods(options)  # a setting out of range is refused before anything is loaded
    settings = {name: options[name] for name in SETTINGS if options[name] is not None}
    examples = read_examples(traces, options["limit"])[0] if traces else []
    task, engine = _session(options).make_task(), _engine(options)
    if options["chat"] and not getattr(engine.tokenizer, "chat_template", None):
        raise ValueError(f"--chat: the tokenizer of {engine.name} has no chat template")
    limits = {"max_new_tokens": task.max_new_tokens, "limit": options["limit"]}
    return Viewer(engine, task, "".join(prompts), examples, settings, **limits, chat=options["chat"])


def _announce(address: str, no_browser: bool) -> None:
    click.echo(f"Serving on {address}\nCtrl-C ends it.")
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
