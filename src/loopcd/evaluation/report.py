"""The results for a reader: a table on the terminal, a report in Markdown, a CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopcd.evaluation.partings import Parting, markdown_lines
from loopcd.evaluation.results import BASELINE, MethodResult, Results
from loopcd.evaluation.table import NOTHING, Estimate, Table, csv_text, one_line, shown

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
    accuracies = [shown(Estimate.of(result.shares[metric]), "percent") for metric in metrics]
    accuracies += [shown(result.paper.get(metric), "percent") for metric in theirs]
    versus = result.versus_greedy.get(metrics[0])
    if versus is None or result.method.label == BASELINE:
        return [result.method.label, *accuracies, *[""] * 6]
    divergence = result.first_token_divergence or 0.0
    changes = [str(versus.wrong_to_right), str(versus.right_to_wrong), number(versus.ratio), p_value(versus.mcnemar_p)]
    difference = shown(Estimate.difference(versus), "points")
    return [result.method.label, *accuracies, difference, *changes, f"{100 * divergence:.1f} %"]


def number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def p_value(value: float | None) -> str:
    return "< 0.001" if value is not None and value < 0.001 else number(value, 3)


def note(results: Results) -> str:
    several = results.seeds is not None and len(results.seeds) > 1
    over_seeds = "of accuracies Student's t over the seeds alone, so that few items show no width"
    explained = NOTE.format(single=over_seeds if several else "of accuracies Wilson's")
    cheats = ", ".join(f"{each.method.label} {each.cheated}" for each in results.methods if each.cheated)
    told = [f"cheated: {cheats} (programs that tried to be taken for right; counted as wrong)."] if cheats else []
    return " ".join([*([] if results.ceiling is None else [results.ceiling.describe()]), *told, explained])


def terminal(results: Results) -> Any:
    headings, rows = cells(results)
    speeds = results.speeds()
    title = f"{results.task}, {results.items} items, {results.model}"
    if results.seeds is not None:
        title += f", seeds {', '.join(map(str, results.seeds))}"
    timed = [
        [*row, number(speeds[row[0]]["tokens_per_second"], 0), number(speeds[row[0]]["relative"])]  # by the method's label
        for row in rows
    ]
    return Table.of(title, [*headings, "tok/s", "rel."], timed, note=note(results)).rich(unbroken=(0,))


def markdown(results: Results, manifest: dict[str, Any], examples: Sequence[Parting], remark: str = "") -> str:
    headings, rows = cells(results)
    lines = [f"# {results.task}, {results.items} items, {results.model}", ""]
    lines += [f"**{remark}**", ""] if remark else []
    lines += [Table.of("", headings, rows).markdown(), "", note(results), "", "## What was run", "", *described(manifest), ""]
    if examples:
        lines += [one_line(f"## Where greedy and {examples[0].other.method} part"), ""]
        for example in examples:
            lines += markdown_lines(example)
    return "\n".join(lines)


def described(manifest: dict[str, Any]) -> list[str]:
    """The manifest in lines that a reader wants beside the table."""
    settings, versions = manifest["settings"], manifest["versions"]
    task, model = settings["task"], settings["model"]
    data = "; ".join(f"{each['source']} ({each['records']}, sha256 {each['sha256'][:12]}…)" for each in task.get("data", []))
    weights = "".join(f", weights {value[:12]}…" for value in model.get("weights", {}).values())
    methods = [
        one_line(f"    - {name}: {', '.join(f'{key}={value}' for key, value in each.items()) or 'no settings'}")
        for name, each in settings["methods"].items()
    ]
    shut_in = f"; isolation: {task['isolation']}, {task['limits']}" if "isolation" in task else ""
    return [
        f"- protocol: {task['protocol']}",
        f"- data: {data or 'none'}; split: {task.get('split', 'test')}",
        f"- prompt: {task.get('shots', 0)} shots, template {task.get('template', '')!r}",
        f"- generation: at most {task['max_new_tokens']} tokens, stop strings {task['stop']}, "
        f"temperature {settings['temperature']}, "
        f"seeds {settings['seeds'] or 'none (zero initial state; what is drawn follows from 0)'}",
        f"- model: {model['model']}, {model['loops']} loops, {model['dtype']}, batches of {model['batch_size']}{weights}",
        f"- grading: {task.get('grader', task['name'])}{shut_in}",
        "- methods:",
        *methods,
        f"- versions: {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]


def as_csv(results: Results) -> str:
    """One line for each method and metric, fractions with full digits."""
    keys = ["task", "model", "items", "method", "metric", "accuracy", "low", "high"]
    keys += ["difference", "difference_low", "difference_high", "wrong_to_right", "right_to_wrong", "ratio", "mcnemar_p"]
    rows: list[Sequence[Any]] = [[*keys, "first_token_divergence"]]
    for each in results.methods:
        for metric in results.metrics:
            got, versus = each.shares[metric], each.versus_greedy.get(metric)
            row = [results.task, results.model, results.items, each.method.label, metric, got.accuracy, got.low, got.high]
            if versus is not None:
                row += [versus.difference, versus.low, versus.high, versus.wrong_to_right, versus.right_to_wrong]
                row += [versus.ratio, versus.mcnemar_p, each.first_token_divergence]
            rows.append([*row, *[None] * (len(rows[0]) - len(row))])
    return csv_text(rows)
