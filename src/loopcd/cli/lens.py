"""`loopcd lens`"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from loopcd.cli.group import Failed, main
from loopcd.cli.method_flags import build_method
from loopcd.cli.options import check_task, shared


@main.command()
@click.argument("sources", nargs=-1, metavar="[PROMPT | TRACE ...]")
@click.option("--export", "target", type=click.Path(path_type=Path), help="Write one self-contained page, and serve nothing.")
@shared("model")
@click.option("--amateur-loop", type=int, help="LoopCD: loop of the amateur (the model's preset if not given).")
@click.option("--strength", type=float, help="LoopCD: λ.")
@click.option("--plausibility", type=float, help="LoopCD: α.")
@click.option("--max-new-tokens", type=int, help="Longest text (the task's own limit if not given).")
@click.option("--task", default="steps", show_default=True, help="Where examples are looked for when no source is given.")
@shared("data")
@click.option("--limit", type=int, default=100, show_default=True, help="Examples taken of trace files.")
@click.option("--problems", type=int, help="Problems that the search looks at (all of the task if not given).")
@shared("num-loops", "dtype", "device", "allow-pickle", "chat")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="To serve on; a free one if not given.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--json", "as_json", is_flag=True, help="With --export: print one JSON object.")
def lens(
    sources: tuple[str, ...],
    target: Path | None,
    limit: int,
    max_new_tokens: int | None,
    port: int,
    no_browser: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Watch the loops: greedy and LoopCD side by side, and what every loop said about every token.

    \b
    loopcd lens                        serve the page, and look for problems on which the two differ
    loopcd lens "Question: ..."        serve it and run this prompt
    loopcd lens a.npz b.npz            open traces (loopcd generate --trace, loopcd reproduce)
    loopcd lens --export report.html   any of these as one file that opens from disk
    """
    if limit < 1:
        raise click.UsageError(f"--limit {limit}: a whole number of at least 1")
    if as_json and target is None:
        raise click.UsageError("--json goes with --export")
    check_task(options["task"])
    traces, prompts = _sorted(sources)
    say: Callable[[str], None] = lambda line: click.echo(line, err=True)  # noqa: E731
    if target is not None:
        _export(target, traces, prompts, limit, max_new_tokens, options, say, as_json)
        return
    if len(prompts) > 1:
        raise click.UsageError("the served page starts with one prompt: give one, or --export for several")
    try:
        import uvicorn  # noqa: F401 (asked for here, so that nothing is loaded in vain)

        from loopcd.lens.server import serve
    except ImportError as error:
        raise Failed(f"serving needs starlette and uvicorn: pip install 'loopcd[lens]' ({error})") from error
    viewer = _viewer(traces, prompts, limit, max_new_tokens, options)
    serve(viewer, port, lambda address: _announce(address, no_browser))


def _sorted(sources: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Trace files and prompts."""
    traces, prompts = [], []
    for source in sources:
        looks_like_file = "\n" not in source and len(source) < 1000 and (source.endswith(".npz") or Path(source).is_file())
        if looks_like_file and not Path(source).is_file():
            raise ValueError(f"there is no file {source}")
        (traces if looks_like_file else prompts).append(source)
    if traces and prompts:
        raise click.UsageError("give trace files or a prompt, not both")
    return [Path(each) for each in traces], prompts


def _methods(options: dict[str, Any]) -> Any:
    settings = {name: options[name] for name in ("amateur_loop", "strength", "plausibility")}
    return build_method("greedy", {}), build_method("loopcd", settings)


def _engine(options: dict[str, Any]) -> Any:
    import torch

    from loopcd.evaluation.engine import LocalEngine

    settings = {name: options[name] for name in ("dtype", "device", "num_loops", "allow_pickle")}
    engine = LocalEngine.load(options["model"], **settings)
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    return engine


def _task(options: dict[str, Any], max_new_tokens: int | None) -> Any:
    from loopcd.evaluation.task import TaskOptions
    from loopcd.evaluation.tasks import make_task

    return make_task(options["task"], TaskOptions(options["data"], limit=options["problems"], max_new_tokens=max_new_tokens))


def _export(
    target: Path,
    traces: list[Path],
    prompts: list[str],
    limit: int,
    max_new_tokens: int | None,
    options: dict[str, Any],
    say: Callable[[str], None],
    as_json: bool,
) -> None:
    from loopcd.lens import export, read_examples

    note = ""
    if traces:
        examples, left_out = read_examples(traces, limit)
        note = f"{left_out} more prompts of the files are left out (--limit {limit})." if left_out else ""
    elif prompts:
        examples = _written(prompts, max_new_tokens or 256, options)
    else:
        examples, note = _searched(max_new_tokens, options, say)
    size = export(target, examples, note)
    if as_json:
        click.echo(json.dumps({"file": str(target), "bytes": size, "examples": len(examples), "note": note}))
    else:
        many = f"{len(examples)} example{'' if len(examples) == 1 else 's'}"
        click.echo(f"{target}: {many}, {size / 1000:.0f} kB. It opens from disk, in any browser.")


def _written(prompts: Sequence[str], max_new_tokens: int, options: dict[str, Any]) -> list[Any]:
    """Both methods' texts of each prompt, traced."""
    import loopcd
    from loopcd.decoding.chat import prompt_ids, said
    from loopcd.lens.examples import examples_of, trace_pair
    from loopcd.tracing import Written, describe

    engine, methods = _engine(options), _methods(options)
    asked = [said(prompt) if options["chat"] else prompt for prompt in prompts]
    read = [prompt if isinstance(prompt, str) else prompt_ids(engine.tokenizer, prompt) for prompt in asked]
    written = []
    for method in methods:
        made = loopcd.generate(
            engine.model, engine.tokenizer, asked, method, max_new_tokens=max_new_tokens, num_loops=engine.num_loops
        )
        written += [Written.of(prompt, each, describe(method)) for prompt, each in zip(read, made, strict=True)]
    return examples_of(trace_pair(engine, written, methods), prefix="prompt")[0]


def _searched(max_new_tokens: int | None, options: dict[str, Any], say: Callable[[str], None]) -> tuple[list[Any], str]:
    """Problems of the task on which the methods' texts differ: those that became right first, then those that became wrong."""
    from loopcd.lens.examples import Looked, searched

    task, engine, methods = _task(options, max_new_tokens), _engine(options), _methods(options)

    def told(looked: Looked, found: int) -> None:
        counted = f"{looked.differ} pairs of texts differ, {found} kept, at most 4 of a kind"
        say(f"looked at {looked.done} problems of {task.name}: {counted}")

    return searched(engine, task, methods, told)


def _viewer(traces: list[Path], prompts: list[str], limit: int, max_new_tokens: int | None, options: dict[str, Any]) -> Any:
    from loopcd.lens import read_examples
    from loopcd.lens.server import Viewer

    _methods(options)  # a setting out of range is refused before anything is loaded
    settings = {name: options[name] for name in ("amateur_loop", "strength", "plausibility") if options[name] is not None}
    examples = read_examples(traces, limit)[0] if traces else []
    task, engine = _task(options, max_new_tokens), _engine(options)
    if options["chat"] and not getattr(engine.tokenizer, "chat_template", None):
        raise ValueError(f"--chat: the tokenizer of {engine.name} has no chat template")
    return Viewer(
        engine,
        task,
        prompts[0] if prompts else "",
        examples,
        given={"left": {"name": "greedy", "settings": {}}, "right": {"name": "loopcd", "settings": settings}},
        max_new_tokens=task.max_new_tokens,
        limit=limit,
        chat=options["chat"],
    )


def _announce(address: str, no_browser: bool) -> None:
    click.echo(f"Serving on {address}\nCtrl-C ends it.")
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
