"""The results as tables: on the terminal, as markdown, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loopcd.evaluation.grid import Grid
from loopcd.evaluation.partings import Parting, Piece
from loopcd.evaluation.results import MethodResult, Results
from loopcd.evaluation.statistics import Comparison, Share

NOTE = (
    "Intervals are 95 %: {single}; of differences a paired bootstrap over the items. W→R and R→W: items that are wrong by "
    "greedy and right by the method, and the reverse. p: exact McNemar. First token: items whose first token is not greedy's."
)


def cells(results: Results) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of all that does not depend on the clock."""
    theirs = results.metrics if any(each.paper for each in results.methods) else ()
    compared = [f"Δ {results.metrics[0]}", "W→R", "R→W", "ratio", "p", "first token"]
    headings = ["method", *results.metrics, *(f"paper {metric}" for metric in theirs), *compared]
    return headings, [_row(each, results.metrics, theirs) for each in results.methods]


def _row(result: MethodResult, metrics: Sequence[str], theirs: Sequence[str]) -> list[str]:
    accuracies = [percent(result.shares[metric]) for metric in metrics]
    accuracies += [f"{100 * result.paper[metric]:.2f}" if metric in result.paper else "–" for metric in theirs]
    versus = result.versus_greedy.get(metrics[0])
    if versus is None or result.method.label == "greedy":
        return [result.method.label, *accuracies, *[""] * 6]
    divergence = result.first_token_divergence or 0.0
    changes = [str(versus.wrong_to_right), str(versus.right_to_wrong), number(versus.ratio), p_value(versus.mcnemar_p)]
    return [result.method.label, *accuracies, signed(versus), *changes, f"{100 * divergence:.1f} %"]


def percent(share: Share) -> str:
    return f"{100 * share.accuracy:.2f} [{100 * share.low:.2f}, {100 * share.high:.2f}]"


def signed(versus: Comparison) -> str:
    return f"{100 * versus.difference:+.2f} [{100 * versus.low:+.2f}, {100 * versus.high:+.2f}]"


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def p_value(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 0.001 else number(value, 3)


def note(results: Results) -> str:
    several = results.seeds is not None and len(results.seeds) > 1
    over_seeds = "of accuracies Student's t over the seeds alone, so that few items show no width"
    explained = NOTE.format(single=over_seeds if several else "of accuracies Wilson's")
    cheats = ", ".join(f"{each.method.label} {each.cheated}" for each in results.methods if each.cheated)
    told = [f"cheated: {cheats} (programs that tried to be taken for right; counted as wrong)."] if cheats else []
    return " ".join([*([] if results.ceiling is None else [results.ceiling.describe()]), *told, explained])


def terminal(results: Results) -> RenderableType:
    headings, rows = cells(results)
    speeds = results.speeds()
    title = f"{results.task}, {results.items} items, {results.model}"
    if results.seeds is not None:
        title += f", seeds {', '.join(map(str, results.seeds))}"
    table = Table(title=title, caption=note(results), caption_justify="left")
    for heading in [*headings, "tok/s", "rel."]:
        table.add_column(
            heading, justify="left" if heading == "method" else "right", overflow="fold", no_wrap=heading == "method"
        )
    for row in rows:
        speed = speeds[row[0]]
        table.add_row(*row, number(speed["tokens_per_second"], 0), number(speed["relative"]))
    return table


def markdown(results: Results, manifest: dict[str, Any], examples: Sequence[Parting], remark: str = "") -> str:
    headings, rows = cells(results)
    lines = [f"# {results.task}, {results.items} items, {results.model}", ""]
    lines += [f"**{remark}**", ""] if remark else []
    lines += [*Grid("", headings, rows).lines(), "", note(results), "", "## What was run", "", *described(manifest), ""]
    if examples:
        lines += [f"## Where greedy and {examples[0].method} part", ""]
        for example in examples:
            lines += _markdown_example(example)
    return "\n".join(lines)


def described(manifest: dict[str, Any]) -> list[str]:
    """The manifest in lines that a reader wants beside the table."""
    settings, versions = manifest["settings"], manifest["versions"]
    task, model = settings["task"], settings["model"]
    data = "; ".join(f"{each['source']} ({each['records']}, sha256 {each['sha256'][:12]}…)" for each in task.get("data", []))
    weights = "".join(f", weights {value[:12]}…" for value in model.get("weights", {}).values())
    methods = [f"    - {name}: {_settings(each)}" for name, each in settings["methods"].items()]
    return [
        f"- protocol: {task['protocol']}",
        f"- data: {data or 'none'}; split: {task.get('split', 'test')}",
        f"- prompt: {task.get('shots', 0)} shots, template {task.get('template', '')!r}",
        f"- generation: at most {task['max_new_tokens']} tokens, stop strings {task['stop']}, "
        f"temperature {settings['temperature']}, "
        f"seeds {settings['seeds'] or 'none (zero initial state; what is drawn follows from 0)'}",
        f"- model: {model['model']}, {model['loops']} loops, {model['dtype']}, batches of {model['batch_size']}{weights}",
        f"- grading: {task.get('grader', task['name'])}{_shut_in(task)}",
        "- methods:",
        *methods,
        f"- versions: {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]


def _shut_in(task: dict[str, Any]) -> str:
    return f"; isolation: {task['isolation']}, {task['limits']}" if "isolation" in task else ""


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings"


def as_csv(results: Results) -> str:
    """One line for each method and metric, fractions with full digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    measured = ["accuracy", "low", "high"]
    compared = ["difference", "difference_low", "difference_high", "wrong_to_right", "right_to_wrong", "ratio", "mcnemar_p"]
    writer.writerow(["task", "model", "items", "method", "metric", *measured, *compared, "first_token_divergence"])
    for each in results.methods:
        for metric in results.metrics:
            got, versus = each.shares[metric], each.versus_greedy.get(metric)
            row: list[Any] = [results.task, results.model, results.items, each.method.label, metric]
            row += [got.accuracy, got.low, got.high]
            if versus is not None:
                row += [versus.difference, versus.low, versus.high, versus.wrong_to_right, versus.right_to_wrong]
                row += [versus.ratio, versus.mcnemar_p, each.first_token_divergence]
            writer.writerow(row + [None] * (5 + len(measured) + len(compared) + 1 - len(row)))
    return out.getvalue()


# -- examples -----------------------------------------------------------------------------------------------------------


def side_by_side(examples: Sequence[Parting], colours: bool = True) -> RenderableType:
    """Where the texts part they are coloured; without colours, in a file say, it stands in brackets."""
    return Group(*(_shown(example, colours) for example in examples))


def _shown(example: Parting, colours: bool) -> RenderableType:
    caption = Text(f"{example.item.id}, gold {example.item.gold}")  # not a string: brackets in it are no markup
    table = Table(title=Text(example.question[-600:]), title_justify="left", caption=caption, expand=True)
    table.add_column(f"greedy ({_verdict(example.greedy_right)})", overflow="fold", ratio=1)
    table.add_column(f"{example.method} ({_verdict(example.other_right)})", overflow="fold", ratio=1)
    if colours:
        table.add_row(_coloured(example.greedy, "bold red"), _coloured(example.other, "bold green"))
    else:
        table.add_row(Text(_bracketed(example.greedy)), Text(_bracketed(example.other)))
    return table


def _coloured(pieces: Sequence[Piece], style: str) -> Text:
    text = Text()
    for piece in pieces:
        text.append(piece.text, style=f"{style} underline" if piece.differs else "")
    return text


def _markdown_example(example: Parting) -> list[str]:
    sides = (
        (f"greedy ({_verdict(example.greedy_right)})", example.greedy),
        (f"{example.method} ({_verdict(example.other_right)})", example.other),
    )
    lines = [f"**{example.item.id}**, gold {example.item.gold}", "", *_quoted(example.question), ""]
    for title, pieces in sides:
        lines += [f"{title}:", "", "```text", *_bracketed(pieces).replace("```", "'''").splitlines(), "```", ""]
    return lines


def _bracketed(pieces: Sequence[Piece]) -> str:
    return "".join(f"⟦{piece.text}⟧" if piece.differs else piece.text for piece in pieces)


def _quoted(text: str) -> list[str]:
    return [f"> {line}" for line in text.splitlines()]


def _verdict(right: bool) -> str:
    return "right" if right else "wrong"
