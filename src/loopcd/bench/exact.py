"""Whether drafting changes a token: whole texts drafted and undrafted, at several lengths and batch sizes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopcd.bench.jobs import Subject, texts
from loopcd.decoding import Greedy, LoopCD, Method, SelfDraft
from loopcd.decoding.draft import DraftReport
from loopcd.decoding.loop import Rows
from loopcd.models import LoopedModel

METHODS: Mapping[str, Method] = {"greedy": Greedy(), "loopcd": LoopCD()}


def drafts(model: LoopedModel) -> dict[str, SelfDraft]:
    """By rule, and rounds of several lengths that are kept up whatever is refused."""
    deep = max(1, model.num_loops // 4)
    fixed = {f"{k} tokens by {a} loops": SelfDraft(a, k, fallback=False) for a, k in ((1, 2), (deep, 4), (1, 8))}
    return {"by rule": SelfDraft(loops=None, length=None), **fixed}


def compare(subject: Subject, method: Method, draft: SelfDraft, groups: Sequence[Any], plain: Sequence[Rows]) -> dict[str, Any]:
    """How many texts are the same, and how many choices were so near that rounding could have decided them."""
    same, count, reports = 0, 0, list[DraftReport]()
    for group, rows in zip(groups, plain, strict=True):
        drafted = replace(method, draft=draft).rows(subject.job(group))
        pairs = list(zip(texts(drafted), texts(rows), strict=True))
        same, count = same + sum(a == b for a, b in pairs), count + len(pairs)
        reports.append(drafted.drafts)
    return {
        "texts": count,
        "identical_texts": same,
        "choices": sum(each.emitted for each in reports),
        "near_ties": sum(each.near_ties for each in reports),
        "acceptance": sum(each.accepted for each in reports) / max(1, sum(each.proposed for each in reports)),
    }


def bench_exact(
    subjects: Sequence[Subject], batches: Sequence[int], prompts: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """By model, batch, method and draft. A batch is compared with the same batch undrafted."""
    found: dict[str, Any] = {}
    for subject in subjects:
        ids = subject.prompts(prompts)
        for batch in batches:
            groups = [ids[start : start + batch] for start in range(0, len(ids), batch)]
            for name, method in METHODS.items():
                say(f"exact: {subject.name}, batch {batch}, {name}")
                plain = [method.rows(subject.job(group)) for group in groups]
                told = {label: compare(subject, method, draft, groups, plain) for label, draft in drafts(subject.model).items()}
                found.setdefault(subject.name, {}).setdefault(str(batch), {})[name] = told
    return found
