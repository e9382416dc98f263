"""The local engine: what it draws for an item follows from the seed and the item, and from nothing else."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from decoding.labels import LABEL_PAD, labelled_tokenizer
from evaluation.fakes import contents, steps_with
from loopcd.decoding import Greedy, SelfDraft, SelfEval
from loopcd.evaluation.data import item_number
from loopcd.evaluation.engine import AHEAD, CompletionRequest, LocalEngine, seeded, weights_hash
from loopcd.evaluation.evaluate import evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.store import Store
from loopcd.evaluation.task import Item
from loopcd.models import LoopedModel
from tools import tiny_huginn, tiny_ouro

pytestmark = pytest.mark.usefixtures("in_places")

DRAWN = {
    "sampled": ("greedy", {"seeds": (0, 1), "temperature": 1.0, "top_p": 0.9}),
    "candidates": ("selfeval:candidates=2,noisecd", {"seeds": (1,)}),
}


@pytest.fixture(scope="module", params=["huginn", "ouro"])
def model(request: pytest.FixtureRequest) -> LoopedModel:
    made = {"huginn": tiny_huginn, "ouro": tiny_ouro}[request.param]
    room = {"huginn": "block_size", "ouro": "max_position_embeddings"}[request.param]
    return made(2, vocab_size=260, pad_token_id=LABEL_PAD, **{room: 512})


def texts(model: LoopedModel, out: Path, batch_size: int, methods: str, limit: int = 6, **options: Any) -> dict[str, Any]:
    """What each run made of each item."""
    items = [Item(f"short/{number}", "ab" * (1 + number % 3) + str(number), 0) for number in range(limit)]
    task = steps_with(items, name="short", max_new_tokens=4)
    engine = LocalEngine(model, labelled_tokenizer(), "tiny", batch_size=batch_size, threads=1)
    evaluate(task, engine, RunPlan(parse_methods(methods), **options), out)
    found = {}
    for path in sorted((out / "samples").iterdir()):
        lines = map(json.loads, path.read_text().splitlines())
        found[path.name] = {line["id"]: line["token_ids"] for line in lines}
    return found


def test_stopped_ten_times_it_goes_on_to_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that go on together are kept as they end; whatever company they are in afterwards, they and their order stay."""
    model = tiny_huginn(2, vocab_size=260, pad_token_id=LABEL_PAD, block_size=512)
    methods, options = "greedy,loopcd:amateur_loop=1", {"limit": 30, "seeds": (1,), "temperature": 1.0}
    texts(model, tmp_path / "whole", 2, methods, **options)
    chance, add, stops = random.Random(0), Store.add_samples, 0

    def torn(store: Store, run: str, lines: Any) -> None:
        nonlocal left
        left -= len(lines)
        add(store, run, lines)
        if left <= 0:
            path = store.folder / "samples" / f"{run}.jsonl"
            path.write_bytes(path.read_bytes()[: -chance.randrange(1, 40)])
            raise InterruptedError

    monkeypatch.setattr(Store, "add_samples", torn)
    for _ in range(10):
        left = chance.randrange(2, 5)
        with pytest.raises(InterruptedError):
            texts(model, tmp_path / "stopped", 2, methods, **options)
        stops += 1
    left = 1000
    texts(model, tmp_path / "stopped", 2, methods, **options)
    assert stops == 10 and contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def test_more_than_a_batch_is_handed_over_where_places_are_filled_again(tmp_path: Path) -> None:
    made = LocalEngine(tiny_ouro(), labelled_tokenizer(), "tiny", batch_size=2, threads=1)
    assert made.ahead(Greedy()) == AHEAD and made.ahead(SelfEval()) == 1
    assert made.ahead(Greedy(draft=SelfDraft())) == 1 and made.ahead(Greedy(draft=SelfDraft(wave=True))) == AHEAD
    seen: list[int] = []
    request = CompletionRequest(5, (), str, tuple(range(9)), ended=lambda place, text: seen.append(place))
    texts = made.complete([f"{number}" * (1 + number % 4) for number in range(9)], Greedy(), request)
    assert sorted(seen) == list(range(9)) and len(texts) == 9


@pytest.mark.parametrize("kind", DRAWN)
def test_draws_depend_neither_on_the_batch_nor_on_a_stop_nor_on_other_items(
    model: LoopedModel, tmp_path: Path, kind: str
) -> None:
    methods, options = DRAWN[kind]
    whole = texts(model, tmp_path / "3", 3, methods, **options)
    for size in (1, 8):
        assert texts(model, tmp_path / str(size), size, methods, **options) == whole
    for path in (tmp_path / "3" / "samples").iterdir():  # as a kill leaves them: some items, and a torn line
        path.write_bytes(path.read_bytes()[:300])
    assert texts(model, tmp_path / "3", 3, methods, **options) == whole
    fewer = texts(model, tmp_path / "fewer", 2, methods, limit=2, **options)
    assert fewer == {run: {item: whole[run][item] for item in made} for run, made in fewer.items()}
    if kind == "sampled":
        assert whole["greedy.seed0.jsonl"] != whole["greedy.seed1.jsonl"]


def test_seeds_share_no_candidate() -> None:
    def first_of(seed: int | None) -> int:
        made = seeded(SelfEval(), CompletionRequest(9, (), str, (1,), seed))
        assert isinstance(made, SelfEval) and made.question is str
        return made.seed

    assert first_of(None) == first_of(0) and first_of(1) - first_of(0) >= 100


def test_items_have_numbers_of_their_own() -> None:
    assert len({item_number(f"steps/test/{number}") for number in range(2000)}) == 2000


def test_what_is_no_file_is_not_hashed(tmp_path: Path) -> None:
    """A name that leads to a device would be read without end."""
    (tmp_path / "config.json").write_text("{}")
    before = weights_hash(tmp_path)
    (tmp_path / "more.safetensors").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "tokenizer.json")
    assert weights_hash(tmp_path) == before


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tokenizer.json", "vocab.json", "merges.txt"])
def test_whatever_is_read_of_a_model_is_in_its_hash(tmp_path: Path, name: str) -> None:
    found = set()
    for content in ("one", "two"):
        (tmp_path / name).write_text(content)
        found.add(weights_hash(tmp_path)["sha256"])
    assert len(found) == 2


def test_pickled_weights_beside_others_are_not_read_and_not_hashed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("one")
    before = weights_hash(tmp_path)
    (tmp_path / "pytorch_model.bin").write_text("two")
    assert weights_hash(tmp_path) == before
