"""How many requests fit: the formula, by hand, and the table of docs/serving.md."""

from pathlib import Path

import pytest

from loopcd.models import HuginnConfig, OuroConfig
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


@pytest.mark.parametrize(("name", "config"), [("Huginn-0125", HuginnConfig()), ("Ouro-1.4B", OuroConfig())])
def test_the_documented_table_is_what_the_function_says(name: str, config: HuginnConfig | OuroConfig) -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    for device in (24, 48, 80):
        found = room(config, device * GB)
        contexts = " | ".join(str(found.requests(context)) for context in (1024, 2048, 4096))
        row = f"| {name}, {device} GB | {found.slots} | {found.token_bytes / 1e6:.2f} MB | {found.tokens:,} | {contexts} |"
        assert row in lines, row
