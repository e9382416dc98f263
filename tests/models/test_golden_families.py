"""Nanbeige, the retrofitted models and Parcae against numbers of the public code: within 2e-4, tokens exactly, in all modes."""

import re
from typing import Any

import pytest
import torch

import loopcd
import reference
from loopcd.models import LoopCache, LoopState
from tools import Golden, assert_close

FAMILIES = ("nanbeige", "retro_llama", "retro_olmo", "parcae")
TEXTS = ("s0", "s1", "s2", "s3")
MODES = ("zero", "skip-adapter", "embed-init")

_read: dict[str, Golden] = {}


def golden_of(family: str) -> Golden:
    return _read.setdefault(family, Golden.read(family))


@torch.no_grad()
def states_of(golden: Golden, text: str) -> list[LoopState]:
    """The states after 0, 1, … loops."""
    states = [golden.model.begin(golden.ids(text))]
    for _ in range(golden.model.num_loops):
        states.append(golden.model.advance(states[-1]))
    return states


def greedy(golden: Golden, text: str, **options: Any) -> tuple[list[int], torch.Tensor]:
    """24 tokens and the logits [24, vocab] that chose them, by transformers' generate."""
    ids = golden.ids(text)
    output = golden.model.generate(
        ids,
        max_new_tokens=24,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    return output.sequences[0, ids.shape[1] :].tolist(), torch.cat(output.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_array_is_checked_here(family: str) -> None:
    """A name that no test below reads would go unnoticed."""
    known = (
        r"s\d\.(input_ids|logits_per_loop|greedy_tokens|greedy_logits|greedy_tokens_depth\d|d_r_mean)"
        r"|s1\.(prelude|initial_state|latents_raw_per_loop|hidden_per_loop|raw_per_loop)"
        r"|s1\.early_readout(_shared_coda|_own_coda)?\.logits"
        r"|s1\.skip_loop_final_norm_true\.logits_per_loop"
        r"|s1\.mode_(zero|skip-adapter|embed-init)\.(logits_per_loop|greedy_tokens)"
    )
    assert [name for name in golden_of(family).arrays if not re.fullmatch(known, name)] == []


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_loop(family: str, text: str) -> None:
    golden = golden_of(family)
    found = loopcd.loop_logits(golden.model, golden.ids(text))[0]
    wanted = golden.arrays[f"{text}.logits_per_loop"]
    assert_close(found[:, golden.stored(text, "logits")], wanted)
    # and the float64 reading that other tests compare with
    for loop in (1, golden.model.num_loops):
        read = reference.logits(golden.model.state_dict(), golden.model.config, golden.ids(text)[0], loop)
        assert_close(read[golden.stored(text, "logits")], wanted[loop - 1])


@pytest.mark.parametrize("text", TEXTS[:3])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_and_logits(family: str, text: str) -> None:
    golden = golden_of(family)
    tokens, logits = greedy(golden, text)
    assert tokens == golden.arrays[f"{text}.greedy_tokens"].tolist()
    assert_close(logits, golden.arrays[f"{text}.greedy_logits"])
    depths = [name for name in golden.arrays if name.startswith(f"{text}.greedy_tokens_depth")]
    assert depths
    for name in depths:
        assert greedy(golden, text, num_loops=int(name[-1]))[0] == golden.arrays[name].tolist()


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_latents_of_the_models_with_a_coda(family: str) -> None:
    golden = golden_of(family)
    states = states_of(golden, "s1")
    assert states[0].tokens.injected is not None
    assert_close(states[0].tokens.injected[0], golden.arrays["s1.prelude"])
    latents = torch.stack([state.hidden[0] for state in states])  # [1 + loops, time, width]
    assert_close(latents[1:], golden.arrays["s1.latents_raw_per_loop"])
    if "s1.initial_state" in golden.arrays:
        assert torch.equal(latents[0], golden.arrays["s1.initial_state"])


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", FAMILIES[1:3])
def test_how_far_each_loop_moves_the_latent(family: str, text: str) -> None:
    latents = torch.stack([state.hidden[0] for state in states_of(golden_of(family), text)])
    moved = (latents[1:] - latents[:-1]).norm(dim=-1) / latents[1:].norm(dim=-1)  # [loops, time]
    assert_close(moved.mean(dim=-1), golden_of(family).arrays[f"{text}.d_r_mean"])


@pytest.mark.parametrize("mode", MODES)
def test_start_states_of_the_retrofitted_olmo(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = golden_of("retro_olmo")
    monkeypatch.setattr(golden.model.config, "initial_state_mode", "random" if mode == "zero" else mode)
    loops = [1, 2, golden.model.num_loops]
    found = loopcd.loop_logits(golden.model, golden.ids("s1"), loops=loops)[0]
    assert_close(found, golden.arrays[f"s1.mode_{mode}.logits_per_loop"])
    assert greedy(golden, "s1")[0] == golden.arrays[f"s1.mode_{mode}.greedy_tokens"].tolist()
    assert golden.model.has_initial_state == (mode == "zero")


def test_a_retrofitted_llama_ignores_the_start_state_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its public code does."""
    golden = golden_of("retro_llama")
    monkeypatch.setattr(golden.model.config, "initial_state_mode", "embed-init")
    assert_close(loopcd.loop_logits(golden.model, golden.ids("s0"))[0], golden.arrays["s0.logits_per_loop"])


@torch.no_grad()
def early_readouts(golden: Golden, coda: Any, count: int) -> torch.Tensor:
    """Decode s1's stored greedy continuation token by token, reading at every loop: logits [token, loop, vocab]."""
    model, cache, early = golden.model, LoopCache(), []
    for ids in [golden.ids("s1"), *golden.arrays["s1.greedy_tokens"][:count, None, None]]:
        state, parked = model.begin(ids, cache), []
        for _ in range(model.num_loops):
            state = model.advance(state)
            parked.append(model.park(state, coda))
        model.readout(state)
        early.append(torch.cat([model.head(model.read_parked(each)[:, -1]) for each in parked]))
    return torch.stack(early[1:])


@pytest.mark.parametrize("coda", ["own", "shared"])
def test_early_readouts_along_a_text(coda: str) -> None:
    golden = golden_of("retro_llama")
    wanted = golden.arrays[f"s1.early_readout_{coda}_coda.logits"]
    assert_close(early_readouts(golden, coda, len(wanted)), wanted)


def test_early_readouts_of_nanbeige_along_a_text() -> None:
    golden = golden_of("nanbeige")
    wanted = golden.arrays["s1.early_readout.logits"]
    assert_close(early_readouts(golden, "shared", len(wanted)), wanted)


@torch.no_grad()
def test_nanbeige_before_and_after_its_norm() -> None:
    golden, raw = golden_of("nanbeige"), []
    norm = golden.model.get_submodule("model.norm")
    hook = norm.register_forward_pre_hook(lambda _, inputs: raw.append(inputs[0][0]))
    try:
        hidden = [golden.model.readout(state)[0] for state in states_of(golden, "s1")[1:]]
    finally:
        hook.remove()
    assert_close(torch.stack(raw), golden.arrays["s1.raw_per_loop"])
    assert_close(torch.stack(hidden), golden.arrays["s1.hidden_per_loop"])


def test_nanbeige_without_a_norm_between_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = golden_of("nanbeige")
    monkeypatch.setattr(golden.model.config, "skip_loop_final_norm", True)
    found = loopcd.loop_logits(golden.model, golden.ids("s1"))[0]
    assert_close(found, golden.arrays["s1.skip_loop_final_norm_true.logits_per_loop"])


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_shapes_are_the_stored_ones(family: str) -> None:
    golden = golden_of(family)
    wanted = {name: tuple(shape) for name, shape in golden.facts["state_dict"].items() if name != "freqs_cis"}
    assert {name: tuple(weight.shape) for name, weight in golden.model.named_parameters()} == wanted
