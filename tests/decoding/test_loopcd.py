"""LoopCD against a slow reading of its formula: identical tokens, however it is run."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopcd
from decoding.runs import run, tokens_of
from decoding.slow import Slow, Text, decode, decode_with_exits, loopcd_rule
from loopcd.decoding.early import EarlyLoop
from loopcd.decoding.loop import Job, Sampling, steps
from loopcd.models import LoopedModel
from tools import MAKERS, PAD, Golden, left_padded, random_ids, tiny_huginn

NEW = 10


@pytest.fixture(params=["huginn", "ouro"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.getfixturevalue(f"golden_{request.param}")


# On the golden models

CASES = {
    "huginn": [(1, 0.3, "s1"), (2, 0.9, "s0"), (4, 0.9, "s2"), (7, 0.9, "s1"), (6, 0.6, "s0")],
    "ouro": [(1, 0.2, "s1"), (1, 0.9, "s0"), (2, 0.9, "s2"), (3, 0.9, "s1"), (2, 0.2, "s0")],
}


@pytest.mark.parametrize(
    ("family", "amateur", "strength", "text"), [(family, *case) for family, cases in CASES.items() for case in cases]
)
def test_golden_models(
    family: str, amateur: int, strength: float, text: str, request: pytest.FixtureRequest, slow_of: Any
) -> None:
    golden: Golden = request.getfixturevalue(f"golden_{family}")
    ids = golden.ids(text)
    wanted = decode(ids[0].tolist(), NEW, loopcd_rule(slow_of(golden.model), amateur, strength))
    assert wanted != golden.arrays[f"{text}.greedy_tokens"][:NEW].tolist()  # the contrast matters here
    assert tokens_of(golden.model, ids, loopcd.LoopCD(amateur, strength)) == [wanted]


@pytest.mark.parametrize(("amateur", "strength", "text"), [(1, 0.9, "s1"), (4, 0.9, "s2"), (2, 0.3, "s0")])
def test_golden_huginn_with_a_coda_of_its_own(
    golden_huginn: Golden, amateur: int, strength: float, text: str, slow_of: Any
) -> None:
    model, ids = golden_huginn.model, golden_huginn.ids(text)
    wanted = decode(ids[0].tolist(), NEW, loopcd_rule(slow_of(model), amateur, strength, coda="own"))
    assert tokens_of(model, ids, loopcd.LoopCD(amateur, strength, coda="own")) == [wanted]


def test_the_shared_coda_is_not_the_own_one(golden_huginn: Golden) -> None:
    model, ids = golden_huginn.model, golden_huginn.ids("s1")
    own, shared = (tokens_of(model, ids, loopcd.LoopCD(1, 0.9, coda=coda)) for coda in ("own", "shared"))  # pyright: ignore
    assert own != shared


@pytest.mark.parametrize("plausibility", [0.01, 0.5])
def test_other_plausibilities(golden: Golden, plausibility: float, slow_of: Any) -> None:
    ids = golden.ids("s1")
    wanted = decode(ids[0].tolist(), 6, loopcd_rule(slow_of(golden.model), 1, 0.9, plausibility))
    assert tokens_of(golden.model, ids, loopcd.LoopCD(1, 0.9, plausibility), count=6) == [wanted]


@pytest.mark.parametrize("coda", ["own", "shared"])
def test_a_golden_batch_with_left_padding(golden: Golden, coda: Any, slow_of: Any) -> None:
    rows = [golden.ids(text)[0] for text in ("s0", "s2", "s1")]
    rule = loopcd_rule(slow_of(golden.model), 1, 0.9, coda=coda)
    wanted = [decode(row.tolist(), 6, rule) for row in rows]
    ids, mask = left_padded(rows, pad=0)
    assert tokens_of(golden.model, ids, loopcd.LoopCD(1, 0.9, coda=coda), mask=mask, count=6) == wanted


# With early exit: the loop at which a token leaves is the expert


@pytest.mark.parametrize("exited", ["last", "skip"])
@pytest.mark.parametrize(("threshold", "amateur", "text"), [(0.35, 2, "s1"), (0.5, 1, "s2")])
def test_golden_huginn_with_early_exit(
    golden_huginn: Golden, exited: Any, threshold: float, amateur: int, text: str, slow_of: Any
) -> None:
    model, ids = golden_huginn.model, golden_huginn.ids(text)
    leave = loopcd.EarlyExit(threshold, min_loops=amateur + 1, exited=exited)
    wanted, loops = decode_with_exits(slow_of(model), ids[0].tolist(), 8, leave, amateur, 0.9)
    assert min(loops) < 8
    output = run(model, ids, loopcd.LoopCD(amateur, 0.9, exit=leave), count=8)
    assert output.sequences[0, ids.shape[1] :].tolist() == wanted
    assert output.loops[0].tolist() == loops


@pytest.mark.parametrize("exited", ["last", "skip"])
@pytest.mark.parametrize(("criterion", "threshold"), [("latent", 0.75), ("gate", 0.7)])
def test_golden_ouro_with_early_exit(golden_ouro: Golden, exited: Any, criterion: Any, threshold: float, slow_of: Any) -> None:
    model, ids = golden_ouro.model, golden_ouro.ids("s1")
    leave = loopcd.EarlyExit(threshold, min_loops=2, criterion=criterion, exited=exited)
    wanted, loops = decode_with_exits(slow_of(model), ids[0].tolist(), 8, leave, 1, 0.9)
    assert len(set(loops)) > 1
    output = run(model, ids, loopcd.LoopCD(1, 0.9, exit=leave), count=8)
    assert output.sequences[0, ids.shape[1] :].tolist() == wanted
    assert output.loops[0].tolist() == loops


# On tiny random models of every family


@pytest.mark.parametrize("strength", [0.3, 0.9])
def test_random_models_of_every_family(model: LoopedModel, strength: float, slow_of: Any) -> None:
    ids = random_ids(1, 7, seed=3)
    for amateur in range(1, model.num_loops):
        wanted = decode(ids[0].tolist(), 5, loopcd_rule(slow_of(model), amateur, strength))
        assert tokens_of(model, ids, loopcd.LoopCD(amateur, strength), count=5) == [wanted]


def test_a_random_batch_of_every_family(model: LoopedModel, slow_of: Any) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (3, 9, 5)]
    wanted = [decode(row.tolist(), 4, loopcd_rule(slow_of(model), 1, 0.9)) for row in rows]
    ids, mask = left_padded(rows)
    assert tokens_of(model, ids, loopcd.LoopCD(1, 0.9), mask=mask, count=4) == wanted


def test_fewer_loops_have_another_expert(own_model: LoopedModel) -> None:
    shallow, ids = Slow(own_model), random_ids(1, 6, seed=4)
    shallow.loops = 3
    wanted = decode(ids[0].tolist(), 5, loopcd_rule(shallow, 1, 0.9))
    assert tokens_of(own_model, ids, loopcd.LoopCD(1, 0.9), count=5, num_loops=3) == [wanted]


# One text, many ways


def walk(model: LoopedModel, ids: Tensor, mask: Tensor | None, method: Any, chunk: int | None, count: int = 8) -> list[Any]:
    """Tokens and scores of `count` steps."""
    job = Job(model, ids, mask, NO_STOP, Sampling(keep_scores=True), chunk=chunk)  # pyright: ignore[reportArgumentType]
    made = [step for step, _ in zip(steps(method, job), range(count), strict=False)]
    return [torch.stack([step.tokens for step in made]), torch.stack([step.scores for step in made])]  # pyright: ignore


def NO_STOP(text: Tensor, scores: Any) -> Tensor:  # noqa: N802
    return torch.zeros(len(text), dtype=torch.bool)


@pytest.fixture(scope="module")
def sharp() -> dict[str, LoopedModel]:
    """Heads so sharp that many positions have one plausible token: there the lazy form defers."""
    made = {name: make(1) for name, make in MAKERS.items()}
    with torch.no_grad():
        for model in made.values():
            model.lm_head.weight.mul_(2.5)
    return made


@given(data=st.data())
@settings(max_examples=10, derandomize=True)
def test_lazy_and_eager_chunked_and_whole_are_the_same(data: st.DataObject, sharp: dict[str, LoopedModel]) -> None:
    model = sharp[data.draw(st.sampled_from(sorted(sharp)))]
    times = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    seed = data.draw(st.integers(0, 50))
    ids, mask = left_padded([random_ids(1, time, seed=seed + time)[0] for time in times])
    settings_ = {
        "amateur_loop": data.draw(st.integers(1, model.num_loops - 1)),
        "strength": data.draw(st.sampled_from([0.1, 0.3, 0.9])),
        "coda": data.draw(st.sampled_from(["own", "shared"])),
    }
    lazy, eager = (loopcd.LoopCD(**settings_, lazy=lazy) for lazy in (True, False))
    wanted = walk(model, ids, mask, eager, None)
    for method, chunk in ((lazy, None), (lazy, data.draw(st.integers(1, 5))), (eager, 2)):
        found = walk(model, ids, mask, method, chunk)
        assert torch.equal(found[0], wanted[0])
        torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=2e-4)


@pytest.mark.parametrize("coda", ["shared", "own"])
def test_coda_passes_are_made_where_tokens_are_contested(
    sharp: dict[str, LoopedModel], monkeypatch: pytest.MonkeyPatch, coda: Any
) -> None:
    model, passes = sharp["huginn"], []
    through = type(model).through_coda  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(type(model), "through_coda", lambda *args, **more: (passes.append(1), through(*args, **more))[1])
    ids = random_ids(1, 6)
    output = run(model, ids, loopcd.LoopCD(1, 0.3, coda=coda), count=20)
    contested = int(output.contested.sum())
    assert 0 < contested < 20
    assert len(passes) == 20 + contested
    run(model, ids, loopcd.LoopCD(1, 0.3, coda=coda, lazy=False), count=20)
    assert len(passes) == 20 + contested + 40


def test_only_contested_rows_go_through_the_coda(sharp: dict[str, LoopedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """One token each, once the prompt is read."""
    model, shapes = sharp["huginn"], []
    read = type(model).read_parked
    monkeypatch.setattr(
        type(model), "read_parked", lambda *args: (made := read(*args), shapes.append(tuple(made.shape[:2])))[0]
    )
    output = run(model, random_ids(4, 6), loopcd.LoopCD(1, 0.3), count=20)
    contested = [int(rows) for rows in output.contested.sum(dim=0) if rows]
    assert min(contested) < 4
    assert shapes == [(rows, 1) for rows in contested]


@given(seed=st.integers(0, 1000), strength=st.floats(0, 1), family=st.sampled_from(["huginn", "ouro", "hrm"]))
@settings(max_examples=6, derandomize=True)
def test_strength_0_and_plausibility_1_are_greedy(
    seed: int, strength: float, family: str, sharp: dict[str, LoopedModel]
) -> None:
    model, ids = sharp[family], random_ids(2, 5, seed=seed)
    greedy = tokens_of(model, ids, loopcd.Greedy(), count=5)
    assert tokens_of(model, ids, loopcd.LoopCD(1, 0.0), count=5) == greedy
    assert tokens_of(model, ids, loopcd.LoopCD(1, strength, plausibility=1.0), count=5) == greedy


def test_strength_0_is_greedy_where_rounding_makes_logits_equal(huginn: LoopedModel) -> None:
    narrow: Any = copy.deepcopy(huginn).bfloat16()
    for ids in (random_ids(1, 5), random_ids(4, 5, seed=1)):
        greedy = tokens_of(narrow, ids, loopcd.Greedy(), count=32)
        assert tokens_of(narrow, ids, loopcd.LoopCD(1, 0.0), count=32) == greedy
        assert tokens_of(narrow, ids, loopcd.NoiseCD(strength=0.0), count=32) == greedy


def test_the_preset_is_what_none_means(golden: Golden) -> None:
    ids = golden.ids("s1")
    setting = (2, 0.3) if golden.model.has_initial_state else (2, 0.2)  # 8 loops: a quarter; 4 loops of Ouro: the paper's
    assert loopcd.LoopCD().resolve(golden.model) == setting
    assert tokens_of(golden.model, ids, loopcd.LoopCD()) == tokens_of(golden.model, ids, loopcd.LoopCD(*setting))


@pytest.mark.parametrize(
    "options", [{}, {"coda": "own"}, {"amateur_loop": "auto"}, {"draft": loopcd.SelfDraft(1, 3, fallback=False)}]
)
def test_strength_0_is_greedy_also_where_the_amateur_would_be_asked_everywhere(
    model: LoopedModel, options: dict[str, Any]
) -> None:
    ids = random_ids(2, 5, seed=4)
    eager = loopcd.LoopCD(**{"amateur_loop": 1, "strength": 0.0, "lazy": False, **options})
    assert tokens_of(model, ids, eager) == tokens_of(model, ids, loopcd.Greedy())


def test_a_cache_goes_on_where_loopcd_left_it(own_model: LoopedModel) -> None:
    ids, method = random_ids(1, 6, seed=8), loopcd.LoopCD(1, 0.9)
    whole = run(own_model, ids, method, count=9).sequences
    first = run(own_model, ids, method, count=4)
    assert first.past_key_values.length == ids.shape[1] + 3  # the last token has not been read yet
    rest = run(own_model, first.sequences, method, count=5, past_key_values=first.past_key_values)
    assert rest.sequences.tolist() == whole.tolist()


def test_a_cache_that_another_method_filled(own_model: LoopedModel, slow_of: Any) -> None:
    """What it holds was written token by token, so it is seen by the expert's entries."""
    ids = random_ids(1, 6, seed=8)
    first = run(own_model, ids, loopcd.Greedy(), count=4)
    options = {"past_key_values": first.past_key_values, "count": 5}
    wanted = decode(Text(first.sequences[0].tolist(), prompt=6), 5, loopcd_rule(slow_of(own_model), 1, 0.9))
    assert tokens_of(own_model, first.sequences, loopcd.LoopCD(1, 0.9), **options) == [wanted]


def test_an_amateur_with_a_coda_of_its_own_cannot_go_on_from_a_foreign_cache(huginn: LoopedModel) -> None:
    first = run(huginn, random_ids(1, 6, seed=8), loopcd.Greedy(), count=4)
    with pytest.raises(ValueError, match="the cache holds tokens whose early latents were not kept"):
        run(huginn, first.sequences, loopcd.LoopCD(1, 0.9, coda="own"), past_key_values=first.past_key_values)


def test_rows_and_positions_that_were_contested_are_counted(own_model: LoopedModel, slow_of: Any) -> None:
    from decoding.slow import plausible_count

    slow, rows = slow_of(own_model), [random_ids(1, time, seed=time)[0] for time in (4, 7)]
    ids, mask = left_padded(rows)
    output = run(own_model, ids, loopcd.LoopCD(1, 0.9, plausibility=0.8), mask=mask, count=6)
    for row, prompt in enumerate(rows):
        text = [*prompt.tolist(), *output.sequences[row, ids.shape[1] :].tolist()]
        wanted = [plausible_count(slow.said(text[: len(prompt) + step], slow.loops), 0.8) > 1 for step in range(6)]
        assert output.contested[row].tolist() == wanted == output.touched[row].tolist()
    assert 0 < int(output.contested.sum()) < 12


@pytest.mark.parametrize("batch", [2, 6])
def test_nobody_is_asked_about_a_text_that_has_ended(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_huginn()
    ids, method = random_ids(batch, 6), loopcd.LoopCD(2, 0.5, plausibility=1e-4)
    free = tokens_of(model, ids, method, mask=torch.ones_like(ids))
    end = free[0][2]  # where the first text will end
    asked: list[list[int]] = []
    read = EarlyLoop.read

    def spied(self: EarlyLoop, reading: Any, rows: Tensor) -> Tensor:
        asked.append(rows.tolist())
        return read(self, reading, rows)

    monkeypatch.setattr(EarlyLoop, "read", spied)
    made = tokens_of(model, ids, method, mask=torch.ones_like(ids), eos_token_id=end, pad_token_id=PAD)
    lengths = [row.index(end) + 1 if end in row else len(row) for row in free]
    assert [row[:length] for row, length in zip(made, lengths, strict=True)] == [
        row[:length] for row, length in zip(free, lengths, strict=True)
    ]
    for step, rows in enumerate(asked):  # with this plausibility every text is contested at every step
        assert rows == [row for row, length in enumerate(lengths) if step < length]
