"""What the page steps through: a prompt with the texts that methods made of it, from files or from a search."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from loopcd.analysis.statistics import hard_tokens
from loopcd.decoding import Generation, LoopCD, Method
from loopcd.evaluation.engine import CompletionRequest, LocalEngine
from loopcd.evaluation.task import Item, Task
from loopcd.lens import payload
from loopcd.tracing import LoopTrace, Written, describe, read_traces, trace_texts

BATCH = 16  # problems that a search looks at together
MOST = 2_000_000_000  # bytes of traces that are shown together
EACH = 4  # examples of a kind that it looks for
KINDS = ("gained", "lost", "same")  # what may have become of a problem on which the texts differ


@dataclass(frozen=True)
class Example:
    """One prompt, and a trace of each text that was made of it."""

    id: str
    label: str
    traces: tuple[LoopTrace, ...]

    @property
    def outcome(self) -> str | None:
        """Right or wrong before and after: of greedy's text and the next one, where both were graded; or of the only one."""
        match [trace.extra.get("correct") for trace in in_order(self.traces)[:2]]:
            case [bool(before), bool(after)]:
                return _kind(before, after) if before != after else "right" if before else "wrong"
            case [bool(only)]:
                return "right" if only else "wrong"
        return None

    def summary(self) -> dict[str, Any]:
        """What a list of examples needs to know."""
        first = self.traces[0]
        return {
            "id": self.id,
            "label": self.label,
            "prompt": first.prompt,
            "gold": next((t.extra["gold"] for t in self.traces if isinstance(t.extra.get("gold"), str | int | float)), None),
            "outcome": self.outcome,
            "texts": len(self.traces),
            "differs": any(not np.array_equal(first.token_ids, other.token_ids) for other in self.traces[1:]),
            "hard": max(int(hard_tokens(trace).sum()) for trace in self.traces),
        }

    def payloads(self) -> list[dict[str, Any]]:
        return [payload.whole(trace) for trace in in_order(self.traces)]


def in_order(traces: Iterable[LoopTrace]) -> list[LoopTrace]:
    """Greedy's first, as the page shows them."""
    return sorted(traces, key=lambda trace: not trace.method.lower().startswith("greedy"))


def examples_of(traces: Iterable[LoopTrace], limit: int | None = None, prefix: str = "file") -> tuple[list[Example], int]:
    """Texts of one prompt by one model together, in the order of the prompts; and how many prompts `limit` left out."""
    groups, left_out, kept = dict[tuple[str, str], list[LoopTrace]](), set[tuple[str, str]](), 0
    for trace in traces:
        key = (trace.model, trace.prompt)
        if key in groups or limit is None or len(groups) < limit:
            groups.setdefault(key, []).append(trace)
            texts = (trace.prompt, trace.text, *trace.pieces, *trace.token_texts.values())
            kept += trace.nbytes + sum(60 + len(text) for text in texts)  # about its bytes in memory
            if kept > MOST:
                raise ValueError(f"the first {len(groups)} prompts take more than {MOST / 1e9:g} GB: take fewer by --limit")
        else:
            left_out.add(key)
    made = [Example(f"{prefix}-{number}", label(group[0]), tuple(group)) for number, group in enumerate(groups.values(), 1)]
    return made, len(left_out)


def label(trace: LoopTrace) -> str:
    """How a list names the example: the item, and how its prompt ends."""
    asked = trace.prompt.strip().removesuffix("Answer:").rstrip().rpartition("\n")[2].removeprefix("Question: ")
    item = trace.extra.get("item")
    return f"{item}: {asked}"[:120] if isinstance(item, str) else asked[:120]


def read_examples(paths: Sequence[Path], limit: int | None = None, prefix: str = "file") -> tuple[list[Example], int]:
    """The examples of trace files; texts of one prompt are put together across files."""
    with ExitStack() as stack:
        files = [stack.enter_context(closing(read_traces(path))) for path in paths]
        return examples_of((trace for file in files for trace in file), limit, prefix)


# The search for problems on which two methods differ


@dataclass(frozen=True)
class Looked:
    """How far a search has come."""

    done: int
    differ: int
    right: tuple[int, ...]  # of each method

    def sentence(self, task: Task, methods: Sequence[Method]) -> str:
        """For the page's foot: what was looked at, so that a choice of examples is not taken for a result."""
        scores = ", ".join(f"{type(method).__name__} {right}" for method, right in zip(methods, self.right, strict=True))
        return (
            f"Chosen because the texts differ: {self.differ} of the {self.done} problems of {task.name} that were looked at; "
            f"kept are the first {EACH} of each kind (became right, became wrong, neither). "
            f"Right among all {self.done}: {scores}."
        )


def search(
    engine: LocalEngine, task: Task, methods: tuple[Method, Method], interrupt: Callable[[], None] | None = None
) -> Iterator[Example | Looked]:
    """Run both methods on the task's items until `EACH` examples of each kind are found; `Looked` after every batch.

    Kinds: wrong → right, right → wrong, and differing texts that are graded alike. What `interrupt` raises ends it.
    """
    looked, kept, numbers = Looked(0, 0, (0, 0)), dict.fromkeys(KINDS, 0), count(1)
    for start in range(0, len(task.items), BATCH):
        items = task.items[start : start + BATCH]
        numbered = tuple(range(start, start + len(items)))
        asked = CompletionRequest(task.max_new_tokens, task.stop, task.question, numbered, interrupt=interrupt)
        made = [engine.complete([item.prompt for item in items], method, asked) for method in methods]
        graded = [[each[task.metrics[0]] for each in task.grade(items, [text.text for text in texts])] for texts in made]
        differing = [place for place in range(len(items)) if made[0][place].token_ids != made[1][place].token_ids]
        right = tuple(before + sum(now) for before, now in zip(looked.right, graded, strict=True))
        looked = Looked(looked.done + len(items), looked.differ + len(differing), right)
        for kind in KINDS:
            places = [place for place in differing if _kind(graded[0][place], graded[1][place]) == kind]
            for place in places[: EACH - kept[kind]]:
                kept[kind] += 1
                pair = [(method, made[side][place], graded[side][place]) for side, method in enumerate(methods)]
                yield _traced(engine, task, items[place], pair, f"found-{next(numbers)}")
        yield looked
        if min(kept.values()) >= EACH:
            return


def _kind(before: bool, after: bool) -> str:
    return "same" if before == after else "gained" if after else "lost"


def searched(
    engine: LocalEngine,
    task: Task,
    methods: tuple[Method, Method],
    told: Callable[[Looked, int], None] = lambda looked, found: None,
) -> tuple[list[Example], str]:
    """All that a search finds, those that became right first, then those that became wrong; and a sentence on what was looked
    at. `told` hears of each batch, and how many examples there are."""
    found, note = list[Example](), ""
    for each in search(engine, task, methods):
        if isinstance(each, Example):
            found.append(each)
        else:
            note = each.sentence(task, methods)
            told(each, len(found))
    return sorted(found, key=lambda one: KINDS.index(one.outcome if one.outcome in KINDS else "same")), note


def _traced(engine: LocalEngine, task: Task, item: Item, pair: Sequence[tuple[Method, Generation, bool]], name: str) -> Example:
    notes, methods, traces = item.notes(task.name), [method for method, _, _ in pair], list[LoopTrace]()
    for method, made, right in pair:
        written = Written.of(item.prompt, made, describe(method), correct=right, **notes)
        traces += traces_by(engine, method, methods, [written])
    return Example(name, label(traces[0]), tuple(traces))


def traces_by(
    engine: LocalEngine, method: Method, methods: Sequence[Method], written: Sequence[Written]
) -> Iterator[LoopTrace]:
    """Traces of what one of the methods wrote: for its own setting where it is a LoopCD, else for that of one beside it."""
    setting = setting_of(engine, (method, *methods))
    return trace_texts(engine.model, engine.tokenizer, written, **setting, num_loops=engine.num_loops)


def setting_of(engine: LocalEngine, methods: Iterable[Method]) -> dict[str, Any]:
    """Amateur, strength and plausibility of the first LoopCD; the model's preset where there is none."""
    for method in methods:
        if isinstance(method, LoopCD):
            amateur, strength = method.resolve(engine.model, engine.num_loops)
            return {"amateur_loop": amateur, "strength": strength, "plausibility": method.plausibility}
    return {}
