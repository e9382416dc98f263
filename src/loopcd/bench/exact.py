"""Whether drafting or a batch changes a token: whole texts, drafted at several lengths and not, in batches and one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopcd.bench.subjects import Subject, texts
from loopcd.bench.timing import Say
from loopcd.decoding import Greedy, LoopCD, Method, SelfDraft
from loopcd.decoding.draft import DraftReport
from loopcd.decoding.loop import Rows
from loopcd.models import LoopedModel

METHODS: Mapping[str, Method] = {"greedy": Greedy(), "loopcd": LoopCD()}


def drafts(model: LoopedModel) -> dict[str, SelfDraft]:
    """By rule, and rounds of several lengths that are kept up whatever is refused."""
    deep = max(1, model.num_loops // 4)
    fixed = {f"{k} tokens by {a} loops": SelfDraft(a, k, fallback=False) for a, k in ((1, 2), (deep, 4), (1, 8))}
    return {"by rule": SelfDraft(), **fixed}


def told_by(made: Sequence[Rows], against: Mapping[str, Sequence[list[int]]]) -> dict[str, Any]:
    """How many texts are the same as others of the same prompts, and how many choices were so near that rounding could have
    decided them: only drafted ones are looked at that closely."""
    written = [text for rows in made for text in texts(rows)]
    reports: list[DraftReport] = [rows.drafts for rows in made if rows.drafts is not None]
    same = {name: sum(a == b for a, b in zip(written, other, strict=True)) for name, other in against.items()}
    return {
        "texts": len(written),
        **same,
        "choices": sum(each.emitted for each in reports),
        "near_ties": sum(each.near_ties for each in reports),
        "acceptance": sum(each.accepted for each in reports) / max(1, sum(each.proposed for each in reports)),
    }


def bench_exact(subjects: Sequence[Subject], batches: Sequence[int], prompts: int, say: Say) -> dict[str, Any]:
    """By model, batch, method and draft. A drafted batch is compared with the same batch undrafted (`identical_texts`), and
    every batch with its texts made one by one (`identical_alone`)."""
    found: dict[str, Any] = {}
    for subject in subjects:
        ids = subject.prompts(prompts)
        for name, method in METHODS.items():
            say(f"exact: {subject.name}, {name}, one by one")
            one_by_one = [method.rows(subject.job([each])) for each in ids]
            alone = [text for rows in one_by_one for text in texts(rows)]
            for batch in batches:
                groups = [ids[start : start + batch] for start in range(0, len(ids), batch)]
                say(f"exact: {subject.name}, {name}, batch {batch}")
                plain = one_by_one if batch == 1 else [method.rows(subject.job(group)) for group in groups]
                written = [text for rows in plain for text in texts(rows)]
                against = {"identical_texts": written, "identical_alone": alone}
                told = {"no draft": told_by(plain, against)}
                for label, draft in drafts(subject.model).items():
                    made = [replace(method, draft=draft).rows(subject.job(group)) for group in groups]
                    told[label] = told_by(made, against)
                found.setdefault(subject.name, {}).setdefault(str(batch), {})[name] = told
    return found
