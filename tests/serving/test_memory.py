"""How many requests fit: the formula, by hand, and the table of docs/serving.md."""

from pathlib import Path

import pytest

from loopcd.models import HuginnConfig
from loopcd.models.presets import PUBLIC
from loopcd.serving.memory import ACTIVATIONS, UTILISATION, room

GB = 10**9
DOCS = Path(__file__).parents[2] / "docs" / "serving.md"


def test_huginn_by_hand() -> None:
    found = room(HuginnConfig(), 80 * GB)
    slots = 2 + 4 * 32 + 2  # prelude, core, coda
    assert found.slots == slots and found.weight_bytes == 3_564_976_800 * 2
    assert found.token_bytes == 2 * slots * 5280 * 2
    assert found.tokens == int((UTILISATION * 80 * GB - found.weight_bytes - ACTIVATIONS) // found.token_bytes)
    assert found.requests(4096) == found.tokens // 4096


def test_a_device_that_is_too_small_holds_nothing() -> None:
    assert room(HuginnConfig(), 8 * GB).tokens == 0


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("Huginn-0125", "tomg-group-umd/huginn-0125"),
        ("Ouro-1.4B", "ByteDance/Ouro-1.4B"),
        ("Nanbeige4.2-3B", "Nanbeige/Nanbeige4.2-3B"),
        ("Recurrent-Llama-3.2", "smcleish/Recurrent-Llama-3.2-train-recurrence-32"),
    ],
)
def test_the_documented_table_is_what_the_function_says(name: str, public: str) -> None:
    config = PUBLIC[public]()
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    for device in (24, 48, 80):
        found = room(config, device * GB)
        contexts = " | ".join(str(found.requests(context)) for context in (1024, 2048, 4096))
        row = f"| {name}, {device} GB | {found.slots} | {found.token_bytes / 1e6:.2f} MB | {found.tokens:,} | {contexts} |"
        assert row in lines, row
