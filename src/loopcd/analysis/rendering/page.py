"""What all renderers are given: a result with its element's name and everything that it was made with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loopcd.analysis.result import Result


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    result: Result
    settings: dict[str, Any]  # of the laboratory, with the element's own
    command: str  # that makes it

    @property
    def settings_line(self) -> str:
        return "; ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in self.settings.items())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
