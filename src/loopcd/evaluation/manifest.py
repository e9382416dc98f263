"""The manifest: everything that may change a text or a grade. A run goes on only under the manifest it was begun with."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from loopcd.evaluation.engine import Engine
from loopcd.evaluation.plan import RunPlan
from loopcd.evaluation.store import MANIFEST, Store, StoreError
from loopcd.evaluation.task import Item, Task

FORMAT = 1
_ABSENT = object()  # not even None stands there
_LIBRARIES = ("loopcd", "torch", "transformers", "tokenizers")  # what grades is named by the task


def make_manifest(task: Task, engine: Engine, plan: RunPlan) -> dict[str, Any]:
    """`settings` and `versions` must stay the same in a folder; `machine` is only recorded."""
    described = task.describe()
    return {
        "format": FORMAT,
        "settings": {
            "task": {
                "name": task.name,
                "protocol": task.protocol,
                "items": len(task.items),
                "items_sha256": items_hash(task.items),
                "metrics": list(task.metrics),
                "stop": list(task.stop),
                "max_new_tokens": task.max_new_tokens,
                **{key: value for key, value in described.items() if key != "machine"},
            },
            "model": engine.describe(),
            "methods": {spec.label: engine.settings(spec.build()) for spec in plan.methods},
            "seeds": None if plan.seeds is None else list(plan.seeds),
            "temperature": plan.temperature,
            "top_p": plan.top_p,
        },
        "versions": {"python": sys.version.split()[0], **library_versions()},
        "machine": {**engine.machine(), **described.get("machine", {})},
    }


def begin(store: Store, manifest: dict[str, Any]) -> None:
    """Write the manifest into an empty folder; in one with a run, refuse to go on under other settings."""
    before = store.manifest()
    if before is None:
        store.write_manifest(manifest)
        return
    parts = ("format", "settings", "versions")
    try:
        changed = list(differences({part: before.get(part) for part in parts}, {part: manifest[part] for part in parts}))
    except RecursionError as error:
        raise StoreError(f"{store.folder}/{MANIFEST} is damaged ({error}): use another folder") from error
    if changed:
        raise StoreError(
            f"{store.folder} holds a run with other settings: {'; '.join(changed[:4])}"
            f"{f'; and {len(changed) - 4} more' if len(changed) > 4 else ''}. "
            "Run it with the same settings, or use another --out"
        )


def differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from differences(before.get(key, _ABSENT), now.get(key, _ABSENT), f"{name}.{key}" if name else str(key))
    elif before != now:
        yield f"{name.removeprefix('settings.')} was {_shown(before)} and is now {_shown(now)}"


def items_hash(items: Sequence[Item]) -> str:
    return sha256("\n".join(f"{item.id}\t{item.prompt!r}\t{item.gold!r}" for item in items).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _shown(value: Any) -> str:
    text = "not set" if value is None or value is _ABSENT else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
