"""docs/performance.md, written from a run's JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.paper import ACCEPTANCES, CONTEXT, GPUS, Outlook, outlooks
from benchmarks.parts import register
from benchmarks.plot import draw
from loopcd.bench.parts import merged
from loopcd.bench.tables import leaves, percent, tables
from loopcd.decoding.rounds import NEAR
from loopcd.evaluation.table import Table
from loopcd.tracing.writing import write_whole

_HEAD = """# Performance
{short}
Every figure is a ratio of things that were measured alternately in one process: the median of the rounds' ratios, and in
brackets their 10th and 90th percentile. Methods are compared by wall time over whole generations, prompts included, until
each text ends. [The details]({details}): what the methods did, exactness, where the time goes, what each device
costs, memory, and what a GPU could do on paper.

Machine: {processor}, {cores} cores, one thread, torch {torch}, transformers {transformers}; load average {load_average:.1f}
when the run began.{quick} `loopcd bench` measures the methods, their exactness and decoding anywhere. This page is made by
`python -m benchmarks.page RUN.json` from one or more runs of `python -m benchmarks --json`, not by hand.

![The figures of this page]({plot})
"""

_SHORT = {  # the comparisons that most people ask for, and what they are of
    "loopcd/greedy": "LoopCD",
    "loopcd+draft/greedy": "LoopCD with drafts, the tokens of LoopCD",
    "exit+loopcd/greedy": "LoopCD with early exits",
}

_DETAILS = """# Performance in detail

What stands behind [the performance page]({page}), made with it and measured in the same way.
"""

_BOUNDS = """
In a batch in step the last row decides: of eight texts of tiny-huginn it leaves after 8.3 of 12 loops on average, so that exits
which cost nothing would bring 1.30. Drafts gain least for tiny-ouro, of whose time reading prompts takes a sixth, and whose
drafts take a quarter of a pass each, with a beginning and a readout of their own.
"""

_TIME = """## Where the time goes, and the limit

A step of decoding multiplies every weight once for each loop that it is part of. With one row the processor waits for the
weights, so a step cannot be faster than

    (bytes of weights + bytes of keys and values) / bandwidth

The bandwidth is what one thread streams through matrix–vector products over 512 MB, measured in the same rounds. Small
models are bound by something else: the weights of the built-in ones fit the processor's cache, and a step's time is that of
calling hundreds of operators one after the other. There a loop over several tokens costs hardly more than a loop over one,
which is what drafting lives on.
"""

_BESIDE = """## Beside the public code

Decoding and prompts by the families' public code, in a process and an environment of its own (transformers 4.57), and by ours,
turn by turn, over the same random weights; by CPU time. A prompt is as long as the context. Made by
`loopcd bench --what reference --reference PYTHON,FOLDER`, the full size by `--models ByteDance/Ouro-1.4B`.
"""

_FULL = """## Full size

The shapes of public models with random weights, by wall time: what a machine without a GPU has to expect. A step reads every
weight once for each loop that it is part of, and is bound by that. Made by `loopcd bench --what full-size`.
"""

_COSTS = """## What LoopCD costs

Greedy and LoopCD side by side, a token each by turns: the built-in models on real prompts, and medium ones with random weights,
where nearly every position is contested; a sharpened head gives a share like that of a trained model.
"""

_DEVICES = """## What each device costs

- **The amateur's coda.** It is asked only where a second token is plausible: one token of each contested row, beside the
  expert's entries, nothing kept. Compare "LoopCD" with "asked everywhere" and "own coda" above. A coda of the amateur's own
  has to be caught up with: see "readout of 8" beside "readout of 1" here.
- **Rows of the head.** The amateur is asked about the plausible tokens only: "head, 5 rows" instead of "head".
- **Drafting.** A round runs its first loops token by token and the others for all tokens at once: "loop over 4" instead of
  four times "loop over 1". A draft is read out through the same slots as the final readout, which writes over them: drafting
  keeps nothing beside the plain cache.
- **Early exit.** A token that leaves saves its later loops; how far it moved is asked once a loop after `min_loops`. Its
  entries are copied to later loops only when a later token gets there. In a batch in step every row leaves by itself, but a
  pass goes on until the last row has left: where a pass over few rows costs as much as one over many, as in small models, a
  small batch saves little. While most rows stay, they attend on views of all rows; when fewer do, on copies of their own.
- **Compiling** (`compile=True`) fuses what surrounds the attention of each layer; it is paid for at the first passes.
"""

_EXACT = """## Drafting changes no token

Texts by greedy and LoopCD, each drafted by rule and in rounds of several lengths, against the same batch undrafted, and
against each text made alone. A pass over several tokens rounds differently in the last bits from passes over one, as
different batch sizes do. That can only decide between tokens whose scores are nearer than these bits, or whether a token just
at the border of the plausible ones belongs to them. Such a choice is taken as it comes; those nearer than {near} (float32) or
{near_16} (bfloat16) are counted as near ties. In float32 that is next to none; in bfloat16, which keeps three digits, some
texts change, as they do from one batch size to another. Made by `loopcd bench --what exact`, and with `--dtype bfloat16`.
"""

_WORST = """## The worst case

Weights drawn so large that early loops never agree with the last: everything is refused. Drafts are tried by rounds of two
tokens and left alone for longer and longer while they are refused; a draft by rule is not even begun unless the first tokens
promise a gain. By CPU time; the first text has to learn this, the second knows.
"""

_WAVE = """## Waves

`SelfDraft(loops=a, wave=True)`: each token begins as soon as the one before it has run a loops, so that tokens at different
loops share every pass, a *tick*. With acceptance p a wave gives R = 1 / (1 − p) tokens until a draft is refused, and
a token takes

    (R·a + L) / R = a + L·(1 − p)

ticks instead of L; fewer where a second look, at 2a and 4a loops, finds a wrong draft before the last loop does. Random weights
whose latent settles over the loops ("settling"), or later, so that an early loop is wrong more often ("settling late"), and
such that never do ("refusing"), where drafts are tried one at a time and left alone for longer and longer. The
acceptance of a wave is that of drafts that were judged, of rounds that of all, also behind a wrong one. By CPU time, one text.
Made by `python -m benchmarks --what wave`.
"""

_FORETOLD = """## Drafts that are right as often as one says

Drafted LoopCD over plain greedy on the medium models, by CPU time, one text: each draft is computed, then replaced by the
undrafted text's token, or at the remaining share of its places by another; in a wave later looks say the same, so that a
wrong one is found by the last loop only. Made by `python -m benchmarks --what foretold`.
"""

_EVALUATION = """## Whole evaluations

Texts that each go on at their own loop and give their places to the next ones, against batches in step, which rows leave when
their texts end: tokens by CPU time, over greedy in step. Where a loop is short, as in the built-in models, the rule of
`generate` and `loopcd eval` takes batches in step, also for early exits ("in step"); where it is long, as in a public model,
each text at its own loop. Lengths "as of GSM8K" have the spread of its gold answers. Tokens that leave early may choose other
texts. Made by
`python -m benchmarks.evaluation`, or `python -m benchmarks --what evaluation` with fewer problems.
"""

_UNDER = {
    "Compiling": "`load(..., compile=True)`. Start-up is what the first passes take longer. torch keeps compiled code on disk: "
    "where it has none yet, start-up takes some seconds more. On a CPU it brings little: a call of a compiled function takes "
    "14 µs, five operators' time, before it does anything, and there are two in a layer. Of tiny-huginn's layer they make 109 "
    "of 128 µs, beside attention and cache, which stay; of huginn-medium's layer the products take 286 µs, which no compiler "
    "makes faster, and the rest around them falls from 184 to 127 (one token, quiet machine).",
    "Memory of drafting": "Each in a process of its own; where it drafts, a first text is drafted before the model counts as "
    "loaded. The cache takes its room once, for the longest text that a call can make, drafted or not.",
}

_FORMULA = """## On paper: a GPU

Bytes moved for a token at batch 1 in bfloat16, context {context}, and the speed if nothing but memory took time. On a GPU,
too, one row is bound by memory as long as the kernels are launched fast enough (CUDA graphs or `torch.compile`). Nothing
here was measured on one.

A round of `SelfDraft(loops=a, length=k)` runs a loops for k tokens one by one, then the other loops for all k at once. If a
draft is accepted with probability p, it makes (1 − pᵏ) / (1 − p) tokens, so that over plain decoding of L loops

    gain(p) = (1 − pᵏ) / (1 − p) · (b + L + r) / (k·(b + a) + (k − 1)·r + (L − a + r)·(1 + 0.06·(k − 1)))

with b the weights before the loops and r those of readout and head, as shares of one loop's, and 0.06 what each further token
adds to a pass over several (measured on a CPU; nearer 0 on a GPU). A wave (`SelfDraft(loops=a, wave=True)`) has up to L / a
tokens in flight and no rounds; with c(n) the cost of a pass over n tokens, that is 1 + 0.06·(n − 1),

    gain(p) = (b + L + r) / ((1 − p)·Σ c(1 + ⌊t / a⌋) + p·a·c(L / a) + (1 + (1 − p)·(L / a − 1))·(b + r)),   t = 0 … L − 1

A wrong draft that a look at 2a or 4a loops finds costs as many passes of c(L / a) instead of the sum, and takes fewer along;
the rule counts that, where it knows how often later loops are right, and the table does not.

Both are `DraftPlan.gain` in `decoding/draft.py`. Ouro-1.4B's acceptance of two loops of four, measured elsewhere, is 0.71 to
0.92 in rounds of four tokens; for Huginn-0125 none is published.
An amateur that is asked everywhere would add
{coda} to the bytes of a token of Huginn-0125; ours adds that only where a second token is plausible.
"""


def write_report(run: Mapping[str, Any], path: Path) -> list[Path]:
    """Write the page, the one with its details and its plot beside it; the files written."""
    picture = path.with_suffix(".svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    views = outlooks()
    draw(run, views, picture)
    made = {table.title.split(" (")[0]: table for table in tables(run)}
    beside = path.with_name(f"{path.stem}-details.md")
    pages = {path: page(run, made, beside.name, picture.name), beside: details(path.name, made, views)}
    return [*(write_whole(place, text) for place, text in pages.items()), picture]


def page(run: Mapping[str, Any], made: Mapping[str, Table], details: str, plot: str) -> str:
    quick = " **A quick run: few rounds, wide spreads.**" if run.get("quick") else ""
    parts = [_HEAD.format(**run["machine"], details=details, plot=plot, quick=quick, short=_short(run))]
    if "Methods" in made:
        parts += ["## Methods", _rounds(run), made["Methods"].markdown(), _refused(run), _BOUNDS]
    parts += _sections(made, {"Beside the public code": _BESIDE, "Full size": _FULL})
    parts += _sections(made, {"Evaluation": _EVALUATION, "Waves": _WAVE})
    return _joined(parts)


def _short(run: Mapping[str, Any]) -> str:
    """The figures of the page, of all models together."""
    by_batch = [(int(batch), told) for each in run.get("ratios", {}).values() for batch, told in each.items()]
    lines = []
    for name, what in _SHORT.items():
        told = [(batch, ratios[name]["median"]) for batch, ratios in by_batch if name in ratios]
        groups = {"one text": [x for batch, x in told if batch == 1], "in batches": [x for batch, x in told if batch > 1]}
        said = [f"{where} {_range(found)}" for where, found in groups.items() if found]
        lines += [f"- {what}: {', '.join(said)} of greedy's tokens per second."] if said else []
    beside = [each["decode"]["median"] for _, each in leaves(run.get("reference", {}), 2)]
    lines += [f"- Beside the public code, one text of the same weights: {_range(beside)} of its speed."] if beside else []
    return "\n".join(["", *lines, ""]) if lines else ""


def _range(values: Sequence[float]) -> str:
    low, high = (f"{each:.2f}" for each in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def details(page: str, made: Mapping[str, Table], views: Mapping[str, Outlook]) -> str:
    parts = [_DETAILS.format(page=page)]
    if "Details" in made:
        parts += ["## What the methods did", made["Details"].markdown()]
    exact = _EXACT.format(near=NEAR[torch.float32], near_16=NEAR[torch.bfloat16])
    parts += _sections(made, {"Drafting changes no token": exact, "Worst case": _WORST, "Foretold drafts": _FORETOLD})
    parts.append(_TIME)
    where = ("Decoding", "Across batches and contexts", "Where the time of a step goes")
    parts += [made[title].markdown() for title in where if title in made]
    parts += _sections(made, {"What LoopCD costs": _COSTS, "What each device costs, as a share of a step": _DEVICES})
    for title in ("Compiling", "Memory of drafting", "Loading"):
        parts += [f"## {title}", _UNDER.get(title, ""), made[title].markdown()] if title in made else []
    coda = percent(views["Huginn-0125"].coda)
    parts += [_FORMULA.format(context=CONTEXT, coda=coda), traffic_table(views).markdown()]
    return _joined([*parts, *(each.markdown() for each in plan_tables(views))])


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _sections(made: Mapping[str, Table], texts: Mapping[str, str]) -> list[str]:
    """Each text with the table of its title below it, where that was made."""
    return [part for title, text in texts.items() if title in made for part in (text, made[title].markdown())]


def _rounds(run: Mapping[str, Any]) -> str:
    """How many rounds stand behind the spreads: of one round the spread says nothing."""
    counted = [f"{n} ({model}, batch {b})" for model, each in run.get("rounds", {}).items() for b, n in each.items()]
    return f"Rounds: {', '.join(counted)}." if counted else ""


def _refused(run: Mapping[str, Any]) -> str:
    lines = [f"- {model}, {name}: {why}" for model, each in run.get("refused", {}).items() for name, why in each.items()]
    return "Not run:\n" + "\n".join(lines) if lines else ""


def traffic_table(views: Mapping[str, Outlook]) -> Table:
    columns = ["bytes for a token", "one loop", "loops", "rest of the weights", "keys and values", "in all"]
    rows = []
    for name, view in views.items():
        traffic = view.traffic
        rest = traffic.weights - traffic.loops * traffic.loop
        sizes = [f"{size / 1e9:.2f} GB" for size in (rest, traffic.cache, traffic.per_token())]
        limits = [f"{view.limits[gpu]:.0f}" for gpu in GPUS]
        rows.append([name, f"{traffic.loop / 1e9:.2f} GB", str(traffic.loops), *sizes, *limits])
    return Table.of("Traffic", [*columns, *(f"tokens/s, {gpu}" for gpu in GPUS)], rows)


def plan_tables(views: Mapping[str, Outlook]) -> Iterator[Table]:
    """Rounds, then waves."""
    rounds, waves = [], []
    for name, view in views.items():
        for loops, each in view.by_loops().items():
            label = f"{name}, {loops} of {view.traffic.loops} loops draft"
            rounds.append([label, *(f"{x.gain:.2f} (k = {x.length})" for x in each)])
            waves.append([label, *(f"{x.wave:.2f}" for x in each)])
    chances = [f"p = {p}" for p in ACCEPTANCES]
    yield Table.of("Plans", ["expected gain by acceptance, rounds", *chances], rounds)
    yield Table.of("Plans of waves", ["expected gain by acceptance, waves", *chances], waves)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs/performance.md"), show_default=True)
def main(runs: tuple[Path, ...], out: Path) -> None:
    """Make the page of the JSON of RUNS; of a part that several have, the last."""
    register()
    for path in write_report(merged([json.loads(each.read_text()) for each in runs]), out):
        click.echo(f"wrote {path}", err=True)


if __name__ == "__main__":
    main()
