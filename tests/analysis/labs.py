"""What the tests of analysis share: a task whose answers are right by a coin, laboratories, an engine that counts."""

from dataclasses import dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from loopcd.analysis.laboratory import Laboratory, Tally
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.session import Session
from loopcd.evaluation.task import Grades, Item
from loopcd.evaluation.tasks.questions import ReadTask


@dataclass(frozen=True, kw_only=True)
class CoinTask(ReadTask):
    """Random models answer nothing rightly; so whether a text is right follows from its hash."""

    def grade(self, items: Any, texts: Any) -> list[Grades]:
        tossed = [sha256(text.encode()).digest()[0] for text in texts]
        return [{"strict": byte % 4 < 2, "flex": byte % 4 < 3} for byte in tossed]


def coin_task(session: Session, split: Any = "test", question: str | None = None) -> CoinTask:
    made = session.make_task(split)
    assert isinstance(made, ReadTask)
    items = made.items
    if question is not None:
        items = [Item(item.id, f"Question: {question}\nAnswer:", item.gold, item.document) for item in items]
    values = {each.name: getattr(made, each.name) for each in fields(ReadTask)}
    return CoinTask(**{**values, "items": items})


def laboratory(folder: Path, cache: Path, limit: int = 12, **changes: Any) -> Laboratory:
    options = {"limit": limit, "max_new_tokens": 10, "batch_size": 7, **changes}
    session = Session(model=str(folder), **options)
    engine = LocalEngine.load(session.model, batch_size=session.batch_size, num_loops=session.num_loops)
    lab = Laboratory(session, engine, cache, Tally(), tuned=False)
    lab._tasks[session.task, "test"] = coin_task(session)
    return lab


class Counting:
    """Counts what an engine is asked to generate, and breaks off after so many batches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int | None = None) -> None:
        self.prompts, self.batches, self.most = 0, 0, most
        original = LocalEngine.complete

        def complete(engine: LocalEngine, prompts: Any, method: Any, request: Any) -> Any:
            if self.most is not None and self.batches >= self.most:
                raise KeyboardInterrupt
            self.batches += 1
            self.prompts += len(prompts)
            return original(engine, prompts, method, request)

        monkeypatch.setattr(LocalEngine, "complete", complete)


def with_limit(lab: Laboratory, limit: int) -> Laboratory:
    session = replace(lab.session, limit=limit)
    changed = Laboratory(session, lab.engine, lab.cache, Tally(), lab.tuned)
    changed._tasks[session.task, "test"] = coin_task(session)
    return changed
