"""Early exit: the public reference's numbers, what is reported, and rows that leave one by one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import loopcd
from decoding.runs import run
from decoding.slow import Slow, decode_with_exits
from loopcd.decoding.exits import run_loops
from loopcd.models import LoopedModel
from loopcd.models.ouro import exit_pdf
from tools import Golden, assert_close, left_padded, random_ids

THRESHOLD = 0.3  # of the golden arrays


# The reference's numbers


@torch.no_grad()
def walk(model: LoopedModel, parts: Sequence[Tensor], rule: Any, count: int) -> tuple[list[int], list[int], Tensor]:
    """Read the parts of a prompt, then `count` − 1 greedy tokens: tokens, loops run at each pass, logits of each pass."""
    cache, exits, said = model.new_cache(rule.exited), [], []
    pending = list(parts)
    tokens: list[int] = []
    while len(said) < count:
        state, ran = run_loops(model, model.begin(pending.pop(0), cache), model.num_loops, rule)
        said.append(model.head(model.readout(state)[0, -1]))
        exits.append(int(ran[0]))
        tokens.append(int(said[-1].argmax()))
        pending = pending or [torch.tensor([tokens[-1:]])]
    return tokens, exits, torch.stack(said)


@pytest.mark.parametrize(("stored", "exited"), [("full", "skip"), ("latest-m4", "last")])
@pytest.mark.parametrize("text", ["s1", "s2"])
def test_golden_exits(golden_huginn: Golden, text: str, stored: str, exited: Any) -> None:
    assert golden_huginn.facts["adaptive"]["threshold"] == THRESHOLD
    name, arrays = f"{text}.adaptive_{stored}", golden_huginn.arrays
    rule = loopcd.EarlyExit(THRESHOLD, exited=exited)
    tokens, exits, logits = walk(golden_huginn.model, [golden_huginn.ids(text)], rule, 32)
    assert exits == arrays[f"{name}.exit_steps"].tolist()
    assert tokens == arrays[f"{name}.tokens"].tolist()
    assert_close(logits, arrays[f"{name}.logits"])


@pytest.mark.parametrize(("stored", "exited"), [("full", "skip"), ("latest-m4", "last")])
@pytest.mark.parametrize("text", ["s1"])
def test_golden_exits_by_generate(golden_huginn: Golden, text: str, stored: str, exited: Any) -> None:
    name, ids = f"{text}.adaptive_{stored}", golden_huginn.ids(text)
    method = loopcd.Greedy(exit=loopcd.EarlyExit(THRESHOLD, exited=exited))
    output = run(golden_huginn.model, ids, method, count=32)
    assert output.sequences[0, ids.shape[1] :].tolist() == golden_huginn.arrays[f"{name}.tokens"].tolist()
    assert output.loops[0].tolist() == golden_huginn.arrays[f"{name}.exit_steps"].tolist()


def test_golden_prompt_token_by_token(golden_huginn: Golden) -> None:
    ids, arrays = golden_huginn.ids("s2"), golden_huginn.arrays
    rule = loopcd.EarlyExit(THRESHOLD, exited="skip")
    _, exits, logits = walk(golden_huginn.model, ids.split(1, dim=1), rule, ids.shape[1])
    assert exits == arrays["s2.adaptive_prefill.exit_steps"].tolist()
    assert_close(logits, arrays["s2.adaptive_prefill.logits"])


# What is reported is what was run


# thresholds at which the tokens of these models leave at several loops
EXITS = {
    "huginn_raven": {"threshold": 0.5},
    "ouro": {"threshold": 0.6},
    "hrm_text": {"threshold": 0.6},
}


def exit_for(model: LoopedModel, **changes: Any) -> loopcd.EarlyExit:
    return loopcd.EarlyExit(**{**EXITS[model.config.model_type], **changes})


def test_threshold_0_is_full_depth(model: LoopedModel) -> None:
    ids = random_ids(2, 6)
    plain = run(model, ids, loopcd.Greedy())
    exiting = run(model, ids, loopcd.Greedy(exit=loopcd.EarlyExit(0.0)))
    assert exiting.sequences.tolist() == plain.sequences.tolist()
    assert exiting.loops.unique().tolist() == [model.num_loops]


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_rows_leave_one_by_one_and_equal_each_row_alone(model: LoopedModel, exited: Any, advances: Any) -> None:
    method = loopcd.Greedy(exit=exit_for(model, exited=exited))
    rows = [random_ids(1, time, seed=time)[0] for time in (4, 9, 6, 5)]
    alone = [run(model, row[None], method) for row in rows]
    ids, mask = left_padded(rows)
    ran = advances(model)
    batch = run(model, ids, method, mask=mask)
    for row, prompt in enumerate(rows):
        assert batch.sequences[row, ids.shape[1] :].tolist() == alone[row].sequences[0, len(prompt) :].tolist()
        assert batch.loops[row].tolist() == alone[row].loops[0].tolist()
    assert sum(ran) == int(batch.loops.sum())  # no row ran a loop that it does not report
    assert len(batch.loops.unique()) > 1 and sum(ran) < batch.loops.numel() * model.num_loops


def test_prompts_that_leave_early_are_not_read_in_chunks(huginn: LoopedModel) -> None:
    """Pieces of a padded prompt are others than those of the prompt alone, and each would leave by itself."""
    method, rows = (
        loopcd.Greedy(exit=loopcd.EarlyExit(0.9, min_loops=1)),
        [random_ids(1, time, seed=time)[0] for time in (4, 9, 6)],
    )
    ids, mask = left_padded(rows)
    options = {"count": 6, "prefill_chunk_size": 2, "output_logits": True}
    made = run(huginn, ids, method, mask=mask, **options)
    for at, row in enumerate(rows):
        alone = run(huginn, row[None], method, **options)
        assert alone.sequences[0, len(row) :].equal(made.sequences[at, ids.shape[1] :]) and alone.loops[0].equal(made.loops[at])
        assert_close(alone.logits[0][0], made.logits[0][at])


@pytest.mark.parametrize("min_loops", [0, 2, 3, 99])
def test_no_token_leaves_before_min_loops(model: LoopedModel, min_loops: int, advances: Any) -> None:
    ran = advances(model)
    leave = loopcd.EarlyExit(1e9, min_loops=min_loops)  # which every token wants
    output = run(model, random_ids(2, 5), loopcd.Greedy(exit=leave), count=4)
    wanted = min(max(min_loops, 1), model.num_loops)
    assert output.loops.unique().tolist() == [wanted]
    assert sum(ran) == 2 * 4 * wanted


def test_loops_that_a_call_asks_for_are_the_most(model: LoopedModel) -> None:
    method = loopcd.Greedy(exit=loopcd.EarlyExit(0.0))
    assert run(model, random_ids(1, 5), method, count=3, num_loops=2).loops.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_random_models_by_a_slow_reading(own_model: LoopedModel, exited: Any) -> None:
    ids, leave = random_ids(1, 5, seed=1), exit_for(own_model, exited=exited)
    wanted, loops = decode_with_exits(Slow(own_model), ids[0].tolist(), 8, leave)
    assert len(set(loops)) > 1
    output = run(own_model, ids, loopcd.Greedy(exit=leave), count=8)
    assert output.sequences[0, 5:].tolist() == wanted
    assert output.loops[0].tolist() == loops


def test_padding_does_not_count_in_the_mean(huginn: LoopedModel) -> None:
    """A prompt's mean change is that of its own tokens: right at a threshold just above and just below it."""
    row = random_ids(1, 5, seed=2)[0]
    states = Slow(huginn).states(row.tolist())
    change = float(((states[2] - states[1]).norm(dim=-1) / states[2].norm(dim=-1)).mean())
    ids, mask = left_padded([row, random_ids(1, 12, seed=3)[0]])
    for threshold, wanted in ((change * 1.001, True), (change * 0.999, False)):
        leave = loopcd.EarlyExit(threshold, min_loops=2)
        loops = run(huginn, ids, loopcd.Greedy(exit=leave), mask=mask, count=1).loops
        assert (int(loops[0, 0]) == 2) is wanted


# Ouro's gate


@pytest.mark.parametrize("threshold", [0.4, 0.6, 0.8, 0.95])
@torch.no_grad()
def test_the_gate_by_the_distribution_of_exits(golden_ouro: Golden, threshold: float) -> None:
    """A pass leaves where the cumulated exit_pdf, averaged over its tokens, reaches the threshold."""
    model, wanted = golden_ouro.model, []
    rule = loopcd.EarlyExit(threshold, criterion="gate")
    for text in ("s0", "s1", "s2", "s3"):
        pdf = golden_ouro.arrays[f"{text}.exit_pdf"]  # [loops, time], from the reference
        reached = pdf.cumsum(dim=0).mean(dim=1) >= threshold
        wanted.append(int(reached.float().argmax()) + 1 if reached[:-1].any() else model.num_loops)
        _, ran = run_loops(model, model.begin(golden_ouro.ids(text), model.new_cache()), model.num_loops, rule)
        assert int(ran[0]) == wanted[-1]
    one = golden_ouro.ids("s0")[:, :1]
    gates, state = [], model.begin(one)
    for _ in range(model.num_loops):
        state = model.advance(state)
        gates.append(model.gate_logits(state)[0])  # pyright: ignore[reportCallIssue]
    first = exit_pdf(torch.stack(gates, dim=-1)).cumsum(dim=-1)[0] >= threshold
    _, ran = run_loops(model, model.begin(one, model.new_cache()), model.num_loops, rule)
    assert int(ran[0]) == (int(first.float().argmax()) + 1 if first[:-1].any() else model.num_loops)


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_rows_leave_by_the_gate_one_by_one(ouro: LoopedModel, exited: Any) -> None:
    leave = loopcd.EarlyExit(0.75, criterion="gate", exited=exited)
    rows = [random_ids(1, time, seed=time)[0] for time in (4, 9, 6)]
    ids, mask = left_padded(rows)
    batch, slow = run(ouro, ids, loopcd.Greedy(exit=leave), mask=mask, count=6), Slow(ouro)
    for row, prompt in enumerate(rows):
        wanted, loops = decode_with_exits(slow, prompt.tolist(), 6, leave)
        assert batch.sequences[row, ids.shape[1] :].tolist() == wanted
        assert batch.loops[row].tolist() == loops
    assert len(batch.loops.unique()) > 1


# With the other methods


def test_an_exit_may_be_combined_with_every_method(own_model: LoopedModel, tokenizer: Any) -> None:
    leave = exit_for(own_model, min_loops=2)
    methods = (loopcd.LoopCD(1, 0.9, exit=leave), loopcd.NoiseCD(exit=leave), loopcd.MTI(0.0, exit=leave))
    for method in methods:
        batch = loopcd.generate(own_model, tokenizer, ["abc", "defghijk", "lm"], method, max_new_tokens=8)
        for made, prompt in zip(batch, ["abc", "defghijk", "lm"], strict=True):
            assert made == loopcd.generate(own_model, tokenizer, prompt, method, max_new_tokens=8)
        loops = {loop for made in batch for loop in made.loops}
        assert min(loops) >= 2 and len(loops) > 1


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": -0.1}, "threshold=-0.1: a number of at least 0"),
        ({"threshold": float("nan")}, "threshold=nan: a number of at least 0"),
        ({"threshold": float("inf")}, "threshold=inf"),
        ({"min_loops": -1}, "min_loops=-1: a whole number of at least 0"),
        ({"min_loops": 1.5}, "min_loops=1.5"),
        ({"min_loops": True}, "min_loops=True"),
        ({"criterion": "hope"}, 'criterion=\'hope\': "latent" or "gate"'),
        ({"exited": "first"}, 'exited=\'first\': "last" or "skip"'),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loopcd.EarlyExit(**settings)


def test_a_gate_that_the_model_does_not_have(huginn: LoopedModel) -> None:
    with pytest.raises(ValueError, match='criterion="gate": HuginnForCausalLM has no exit gate'):
        run(huginn, random_ids(1, 3), loopcd.Greedy(exit=loopcd.EarlyExit(criterion="gate")))


def test_an_exit_that_is_none(huginn: LoopedModel) -> None:
    with pytest.raises(ValueError, match=r"exit=0\.03: an EarlyExit"):
        loopcd.Greedy(exit=0.03)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("method", "least"),
    [(loopcd.LoopCD(2, 0.3), 3), (loopcd.LoopCD("auto", 0.3), 3), (loopcd.LoopGuidance(1), 2), (loopcd.Greedy(), 1)],
)
def test_without_min_loops_tokens_leave_once_the_method_has_what_it_needs(
    own_model: LoopedModel, method: Any, least: int
) -> None:
    leaving = replace(method, exit=loopcd.EarlyExit(1e9))  # which every token wants
    for prompts in ([[5, 6]], [[5, 6], [7, 8, 9]]):
        made = loopcd.generate(own_model, None, prompts, leaving, max_new_tokens=4)
        assert {loop for each in made for loop in each.loops} == {least}
    assert leaving.settled(own_model).exit == loopcd.EarlyExit(1e9, least if least > 1 else 0)


@pytest.mark.parametrize("min_loops", [0, 1, 2])
def test_an_exit_that_would_undercut_the_amateur(own_model: LoopedModel, min_loops: int, advances: Any) -> None:
    ran = advances(own_model)
    method = loopcd.LoopCD(2, 0.3, exit=loopcd.EarlyExit(min_loops=min_loops))
    with pytest.raises(ValueError, match=rf"min_loops={min_loops} could leave at or before amateur_loop=2"):
        run(own_model, random_ids(1, 3), method)
    assert not ran  # up front
    allowed = loopcd.LoopCD(2, 0.3, exit=loopcd.EarlyExit(1e9, min_loops=3))
    assert run(own_model, random_ids(1, 3), allowed, count=2).loops.tolist() == [[3, 3]]
