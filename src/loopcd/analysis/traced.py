"""Traces of greedy's answers, made once and kept beside them: in parts, so that an interruption costs one part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from loopcd.analysis.interventions import BEST
from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.decoding import LoopCD
from loopcd.evaluation.engine import using_threads
from loopcd.evaluation.runner import Progress
from loopcd.evaluation.task import Split
from loopcd.tracing import LoopTrace, TraceFile, TraceWriter, Written, read_traces, trace_texts

PART = 64  # answers in a file


def greedy_traces(lab: Laboratory, name: str | None = None, split: Split = "test") -> Iterator[LoopTrace]:
    """What every loop said about greedy's answers to a task, in the items' order, each loaded when it is its turn; made now
    if need be."""
    task = lab.task(name, split)
    (greedy,) = lab.answers(GREEDY, task=name, split=split)
    right = greedy.right(task.metrics[0])
    items = [
        Written(item.prompt, ids, text, extra={**item.notes(task.name), "correct": correct})
        for item, ids, text, correct in zip(task.items, greedy.token_ids, greedy.texts, right, strict=True)
    ]
    with lab.opened(task) as store:
        folder = store.own_folder(f"traces/greedy-amateur{lab.amateur}-strength{lab.strength:g}-top{BEST}")
        return chain.from_iterable(_parts(lab, items, folder))


def _parts(lab: Laboratory, items: Sequence[Written], folder: Path) -> list[TraceFile]:
    report = lab.tally.stage(f"traces in {folder}")
    starts = range(0, len(items), PART)
    paths = [folder / f"{start:06d}.npz" for start in starts]
    found = sum(len(items[start : start + PART]) for start, path in zip(starts, paths, strict=True) if path.exists())
    done, begun = found, time.monotonic()
    report(Progress(done, len(items), found, 0.0))
    for start, path in zip(starts, paths, strict=True):
        if not path.exists():
            part = items[start : start + PART]
            _write(lab, part, path)
            done += len(part)
            report(Progress(done, len(items), found, time.monotonic() - begun))
    return [read_traces(path) for path in paths]


def _write(lab: Laboratory, part: Sequence[Written], path: Path) -> None:
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    engine = lab.engine
    with using_threads(engine.threads), TraceWriter(partial) as writer:
        for trace in trace_texts(
            engine.model,
            engine.tokenizer,
            part,
            amateur_loop=lab.amateur,
            strength=lab.strength,
            plausibility=LoopCD().plausibility,
            top=BEST,  # what Table 1 draws from
            num_loops=engine.num_loops,
            batch_size=max(1, engine.batch_size // 4),  # a pass keeps every loop's readout of all tokens
        ):
            writer.add(trace)
    partial.replace(path)
