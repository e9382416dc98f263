"""Both families against the public references' numbers: within 2e-4, tokens exactly."""

from typing import Any

import pytest
import torch

import loopcd
from loopcd.models import HuginnForCausalLM, LoopCache, LoopState, OuroForCausalLM
from loopcd.models.ouro import exit_loop, exit_pdf
from tools import Golden, assert_close

TEXTS = ("s0", "s1", "s2", "s3")
HUGINN_LOOPS, OURO_LOOPS = 8, 4


@pytest.fixture(params=["huginn", "ouro"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return request.getfixturevalue(f"golden_{request.param}")


def huginn_of(golden: Golden) -> HuginnForCausalLM:
    assert isinstance(golden.model, HuginnForCausalLM)
    return golden.model


def ouro_of(golden: Golden) -> OuroForCausalLM:
    assert isinstance(golden.model, OuroForCausalLM)
    return golden.model


@torch.no_grad()
def states_of(golden: Golden, text: str) -> list[LoopState]:
    """The states after 0, 1, … loops."""
    states = [golden.model.begin(golden.ids(text))]
    for _ in range(golden.model.num_loops):
        states.append(golden.model.advance(states[-1]))
    return states


def greedy(golden: Golden, text: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """32 tokens and the logits [32, vocab] that chose them, by transformers' generate."""
    ids = golden.ids(text)
    output = golden.model.generate(
        ids, max_new_tokens=32, do_sample=False, output_logits=True, return_dict_in_generate=True, **options
    )
    return output.sequences[0, ids.shape[1] :], torch.cat(output.logits)


# Both families


@pytest.mark.parametrize("text", TEXTS)
def test_logits_of_every_loop(golden: Golden, text: str) -> None:
    found = loopcd.loop_logits(golden.model, golden.ids(text))[0]
    assert_close(found[:, golden.stored(text, "logits")], golden.arrays[f"{text}.logits_per_loop"])


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_tokens_and_logits(golden: Golden, text: str) -> None:
    tokens, logits = greedy(golden, text)
    assert tokens.tolist() == golden.arrays[f"{text}.greedy_tokens"].tolist()
    assert_close(logits, golden.arrays[f"{text}.greedy_logits"])


# Huginn


@pytest.mark.parametrize("text", TEXTS)
def test_huginn_raw_latents_and_how_far_each_loop_moved_them(golden_huginn: Golden, text: str) -> None:
    latents = torch.stack([state.hidden[0] for state in states_of(golden_huginn, text)])  # [1 + loops, time, width]
    stored = golden_huginn.stored(text, "latents")
    assert_close(latents[1:, stored], golden_huginn.arrays[f"{text}.latents_raw_per_loop"])

    moved = (latents[1:] - latents[:-1]).norm(dim=-1) / latents[1:].norm(dim=-1)  # [loops, time]
    assert_close(moved, golden_huginn.arrays[f"{text}.d_r_per_position"])
    assert_close(moved.mean(dim=-1), golden_huginn.arrays[f"{text}.d_r_mean"])


@torch.no_grad()
def test_huginn_latent_states_are_the_normed_raw_ones(golden_huginn: Golden) -> None:
    norm = huginn_of(golden_huginn).transformer["ln_f"]
    found = torch.stack([norm(state.hidden[0]) for state in states_of(golden_huginn, "s0")[1:]])
    assert_close(found, golden_huginn.arrays["s0.latent_states_per_loop"])


@torch.no_grad()
def decode_with_readouts(golden: Golden, coda: Any, loops: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode s1's stored greedy continuation token by token, reading early at `loops`.

    Gives the early logits [token, loop, vocab] and the final ones [token, vocab].
    """
    model, cache = golden.model, LoopCache()
    tokens = golden.arrays["s1.greedy_tokens"].long()[: len(golden.arrays["s1.early_readout_own_coda.logits"])]
    early, final = [], []
    for ids in [golden.ids("s1"), *tokens[:, None, None]]:
        state, parked = model.begin(ids, cache), []
        for loop in range(1, model.num_loops + 1):
            state = model.advance(state)
            if loop in loops:
                parked.append(model.park(state, coda))
        final.append(model.head(model.readout(state)[:, -1]))
        early.append(torch.cat([model.head(model.read_parked(each)[:, -1]) for each in parked]))
    return torch.stack(early[1:]), torch.cat(final[1:])


@pytest.mark.parametrize("coda", ["own", "shared"])
def test_huginn_early_readouts_along_a_text(golden_huginn: Golden, coda: str) -> None:
    wanted = golden_huginn.arrays[f"s1.early_readout_{coda}_coda.logits"]
    assert wanted.shape[1] == HUGINN_LOOPS
    early, final = decode_with_readouts(golden_huginn, coda, range(1, HUGINN_LOOPS + 1))
    assert_close(early, wanted)
    # reading early, here after the final readout, leaves the tokens that follow as they were
    assert_close(final, golden_huginn.arrays["s1.greedy_logits"][1 : len(final) + 1])


@pytest.mark.parametrize("loop", [1, 4])
@pytest.mark.parametrize("coda", ["own", "shared"])
def test_huginn_one_early_readout_does_not_need_the_others(golden_huginn: Golden, coda: str, loop: int) -> None:
    early, _ = decode_with_readouts(golden_huginn, coda, range(loop, loop + 1))
    assert_close(early[:, 0], golden_huginn.arrays[f"s1.early_readout_{coda}_coda.logits"][:, loop - 1])


# Ouro


@pytest.mark.parametrize("text", TEXTS)
@torch.no_grad()
def test_ouro_hidden_gate_and_exit_distribution(golden_ouro: Golden, text: str) -> None:
    model = ouro_of(golden_ouro)
    states = states_of(golden_ouro, text)[1:]
    hidden = torch.stack([model.readout(state)[0] for state in states])
    assert_close(hidden[:, golden_ouro.stored(text, "hidden")], golden_ouro.arrays[f"{text}.hidden_per_loop"])

    gate = torch.stack([model.gate_logits(state)[0] for state in states])  # [loops, time]
    assert_close(gate, golden_ouro.arrays[f"{text}.gate_logits"])
    assert_close(exit_pdf(gate.T).T, golden_ouro.arrays[f"{text}.exit_pdf"])


def test_ouro_exit_steps_at_every_threshold(golden_ouro: Golden) -> None:
    thresholds = golden_ouro.facts["exit"]["thresholds"]
    assert len(thresholds) == 7
    pdf = golden_ouro.arrays["s2.exit_pdf"].T  # [time, loops]
    gate = torch.stack([ouro_of(golden_ouro).gate_logits(state)[0] for state in states_of(golden_ouro, "s2")[1:]])
    for threshold, wanted in thresholds.items():
        assert (exit_loop(pdf, float(threshold)) - 1).tolist() == wanted["exit_step_0based"]
        assert (exit_loop(exit_pdf(gate.T), float(threshold)) - 1).tolist() == wanted["exit_step_0based"]
    assert (exit_loop(pdf, 0.5) - 1).tolist() == golden_ouro.arrays["s2.exit_threshold_0.5.steps0"].tolist()


@torch.no_grad()
def test_ouro_exits_choose_which_loop_is_read(golden_ouro: Golden) -> None:
    model, ids = golden_ouro.model, golden_ouro.ids("s2")
    per_loop = golden_ouro.arrays["s2.logits_per_loop"]
    assert_close(model(ids, exit_threshold=0.5).logits[0], golden_ouro.arrays["s2.exit_threshold_0.5.logits"])
    assert_close(model(ids, use_weighted_exit=True).logits[0], golden_ouro.arrays["s2.weighted_logits"])
    for step in range(OURO_LOOPS):
        assert_close(model(ids, exit_at_step=step).logits[0], per_loop[step])
    for threshold, wanted in golden_ouro.facts["exit"]["thresholds"].items():
        steps = torch.tensor(wanted["exit_step_0based"])
        assert_close(model(ids, exit_threshold=float(threshold)).logits[0], per_loop[steps, torch.arange(len(steps))])


def test_ouro_greedy_with_exits(golden_ouro: Golden) -> None:
    tokens, logits = greedy(golden_ouro, "s2", exit_threshold=0.5)
    assert tokens.tolist() == golden_ouro.arrays["s2.greedy_exit0.5.tokens"].tolist()
    assert_close(logits, golden_ouro.arrays["s2.greedy_exit0.5.logits"])
    tokens, _ = greedy(golden_ouro, "s2", exit_at_step=1)
    assert tokens.tolist() == golden_ouro.arrays["s2.greedy_exit_at_step1.tokens"].tolist()
