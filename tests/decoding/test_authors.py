"""The tokens that the rule of the paper's authors gives, computed with the public files: the same however it is run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import loopcd
from decoding.runs import tokens_of
from tools import GOLDEN, Golden, left_padded

TEXTS: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "authors_tokens.json").read_text())
NEW = 24
STRONGEST = 0.9


@pytest.fixture(params=["huginn", "ouro"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.getfixturevalue(f"golden_{request.param}")


def texts_by_setting(golden: Golden) -> Iterator[tuple[loopcd.LoopCD, list[list[int]], list[list[int]]]]:
    """A method, the prompts it is asked with, and the tokens it must give."""
    family = "huginn" if golden.model.has_initial_state else "ouro"
    settings = sorted({(text["amateur_loop"], text["strength"]) for text in TEXTS[family]})
    for amateur, strength in settings:
        texts = [text for text in TEXTS[family] if (text["amateur_loop"], text["strength"]) == (amateur, strength)]
        yield loopcd.LoopCD(amateur, strength), [text["prompt"] for text in texts], [text["tokens"] for text in texts]


def alone(golden: Golden, method: loopcd.LoopCD, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    return [tokens_of(golden.model, torch.tensor([ids]), method, count=NEW, **options)[0] for ids in prompts]


def together(golden: Golden, method: loopcd.LoopCD, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """All in one padded batch."""
    ids, mask = left_padded([torch.tensor(ids) for ids in prompts], pad=0)
    return tokens_of(golden.model, ids, method, mask=mask, count=NEW, **options)


def check(golden: Golden, change: dict[str, Any], **options: Any) -> None:
    """Each amateur's texts of the strongest contrast in a batch, and one of them alone: both give the tokens."""
    for method, prompts, wanted in texts_by_setting(golden):
        changed = replace(method, **change)
        if method.strength == STRONGEST:
            assert together(golden, changed, prompts, **options) == wanted, changed
            assert alone(golden, changed, prompts[:1], **options) == wanted[:1], changed


def test_there_are_sixty() -> None:
    assert {family: len(texts) for family, texts in TEXTS.items()} == {"huginn": 36, "ouro": 24}
    assert all(any(text["strength"] == STRONGEST for text in texts) for texts in TEXTS.values())


def test_alone(golden: Golden) -> None:
    """One text of each setting, another one each time."""
    for number, (method, prompts, wanted) in enumerate(texts_by_setting(golden)):
        one = slice(number % len(prompts), number % len(prompts) + 1)
        assert alone(golden, method, prompts[one]) == wanted[one], method


def test_every_text_in_a_padded_batch(golden: Golden) -> None:
    for method, prompts, wanted in texts_by_setting(golden):
        assert together(golden, method, prompts) == wanted, method


def test_prompts_in_chunks(golden: Golden) -> None:
    check(golden, {}, prefill_chunk_size=2)


def test_drafted(golden: Golden) -> None:
    loops, length = (1, 4) if golden.model.has_initial_state else (2, 3)
    check(golden, {"draft": loopcd.SelfDraft(loops, length, fallback=False)})


def test_the_amateur_asked_at_every_position(golden: Golden) -> None:
    check(golden, {"lazy": False})
