"""Ouro: other geometries against the written-out formulas, the gate and its exits, names and sizes, the configuration."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import family
import loopcd
import reference
from loopcd.models import LoopedModel, OuroConfig
from loopcd.models.ouro import exit_loop, exit_pdf
from loopcd.models.presets import PUBLIC, empty_model
from tools import Golden, assert_close, random_ids, tiny_ouro

# Geometries


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2, "num_hidden_layers": 3},
        {"num_key_value_heads": 1, "num_attention_heads": 8, "tie_word_embeddings": True},
        {"rope_theta": 1_000_000.0, "total_ut_steps": 7},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 321.0}},
        {"hidden_size": 42, "num_attention_heads": 7, "intermediate_size": 37, "vocab_size": 101},
        {"hidden_size": 30, "num_attention_heads": 3, "num_hidden_layers": 1, "rms_norm_eps": 1e-3},
    ],
    ids=str,
)
def test_other_geometries_equal_the_formulas(changes: dict[str, Any]) -> None:
    model = tiny_ouro(seed=3, **changes)
    family.float64_reading(model)
    family.chunked(model)


def test_rotary_bases_are_read_in_both_forms() -> None:
    assert tiny_ouro().config.rope_base == 10_000.0
    assert tiny_ouro(rope_theta=500.0).config.rope_base == 500.0
    assert tiny_ouro(rope_parameters={"rope_type": "default", "rope_theta": 321.0}).config.rope_base == 321.0
    again = OuroConfig.from_dict(tiny_ouro(rope_theta=500.0).config.to_dict())
    assert again.rope_base == 500.0


def test_the_formulas_reproduce_the_golden_numbers(golden_ouro: Golden) -> None:
    """The written-out formulas are a specification only if they say what the public reference says."""
    weights, config = golden_ouro.model.state_dict(), golden_ouro.model.config
    ids = golden_ouro.ids("s2")[0]
    for loop in (1, 2, 4):
        found = reference.ouro_logits(weights, config, ids, loop)
        assert_close(found, golden_ouro.arrays["s2.logits_per_loop"][loop - 1])
    assert_close(reference.ouro_exit_pdf(weights, config, ids, 4), golden_ouro.arrays["s2.exit_pdf"])


# The gate


@torch.no_grad()
def test_the_exit_distribution_equals_the_formula(ouro: LoopedModel) -> None:
    ids = random_ids(1, 9)
    hidden = torch.stack(ouro(ids, output_hidden_states=True).hidden_states[1:], dim=-2)  # [1, time, loops, width]
    gate = ouro.model.early_exit_gate(hidden).squeeze(-1)
    wanted = reference.ouro_exit_pdf(ouro.state_dict(), ouro.config, ids[0], ouro.num_loops)
    assert_close(exit_pdf(gate)[0].T, wanted, 1e-5)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=6), st.floats(0, 1))
def test_the_exit_distribution_is_one(gate: list[float], threshold: float) -> None:
    pdf = exit_pdf(torch.tensor(gate, dtype=torch.float64))
    assert bool((pdf >= 0).all()) and float(pdf.sum()) == pytest.approx(1)
    loop = int(exit_loop(pdf, threshold))
    assert 1 <= loop <= len(gate)
    assert float(pdf[: loop - 1].sum()) <= threshold + 1e-12
    assert float(pdf[:loop].sum()) >= threshold - 1e-12 or loop == len(gate)


def test_exits_worked_out_by_hand() -> None:
    pdf = exit_pdf(torch.tensor([0.0, 0.0, 5.0]))  # one half, half of the rest, the rest
    assert pdf.tolist() == [0.5, 0.25, 0.25]
    assert [int(exit_loop(pdf, threshold)) for threshold in (0.0, 0.5, 0.6, 0.75, 0.8, 1.0, 1.5)] == [1, 1, 2, 2, 3, 3, 3]


@torch.no_grad()
def test_exits_take_fewer_loops_and_fewer_logits(ouro: LoopedModel) -> None:
    ids = random_ids(2, 7)
    per_loop = loopcd.loop_logits(ouro, ids)
    assert_close(ouro(ids, exit_at_step=1, num_loops=3).logits, per_loop[:, 1])
    for exits in ({"exit_threshold": 0.6}, {"use_weighted_exit": True}, {"exit_at_step": 2}, {}):
        whole = ouro(ids, **exits)
        assert_close(ouro(ids, logits_to_keep=2, **exits).logits, whole.logits[:, -2:])
        assert_close(ouro(ids, labels=ids, **exits).loss, cross_entropy(whole.logits, ids))
        assert whole.hidden_states is None


def cross_entropy(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("exits", [{"exit_threshold": 0.6}, {"exit_at_step": 0}, {"use_weighted_exit": True}], ids=str)
def test_generation_with_exits_is_the_same_without_a_cache(ouro: LoopedModel, exits: dict[str, Any]) -> None:
    ids = random_ids(1, 5)
    found = ouro.generate(ids, max_new_tokens=8, do_sample=False, **exits)
    assert torch.equal(found, ouro.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False, **exits))
    assert not torch.equal(found, ouro.generate(ids, max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize("step", [-1, 4])
def test_an_exit_step_that_there_is_not(ouro: LoopedModel, step: int) -> None:
    with pytest.raises(ValueError, match=f"exit_at_step={step}: a loop from 0 to 3"):
        ouro(random_ids(1, 3), exit_at_step=step)


@pytest.mark.parametrize("given", [{"init_seed": 3}, {"init_state": torch.zeros(1, 3, 32)}], ids=["seed", "state"])
def test_there_is_no_initial_state_to_choose(ouro: LoopedModel, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"init_seed and init_state are for .*Huginn"):
        ouro.begin(random_ids(1, 3), **given)


def test_the_seed_is_refused_by_a_call_too(ouro: LoopedModel) -> None:
    with pytest.raises(ValueError, match="init_seed"):
        ouro(random_ids(1, 3), init_seed=3)
    with pytest.raises(ValueError, match="init_seed"):
        ouro.generate(random_ids(1, 3), max_new_tokens=2, init_seed=3)


# Names and sizes


@pytest.mark.parametrize(
    ("name", "layers", "parameters"),
    [("ByteDance/Ouro-1.4B", 24, 1_434_652_673), ("ByteDance/Ouro-2.6B-Thinking", 48, 2_667_974_657)],
)
def test_full_size_names_and_parameters(golden_ouro: Golden, name: str, layers: int, parameters: int) -> None:
    model = empty_model(PUBLIC[name]())
    config = model.config
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == (2048, 16, 5632)
    assert (config.num_hidden_layers, config.vocab_size, model.num_loops) == (layers, 49152, 4)
    public = {
        re.sub(r"layers\.\d+\.", f"layers.{index}.", stored)
        for stored in golden_ouro.facts["parameters"]
        for index in range(layers)
    }
    assert set(model.state_dict()) == public
    assert all(weight.is_meta for weight in model.parameters())
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert model.slot_count() == 4 * layers


def test_tiny_names_and_shapes_are_the_stored_ones(golden_ouro: Golden) -> None:
    found = {name: list(weight.shape) for name, weight in golden_ouro.model.state_dict().items()}
    assert found == golden_ouro.facts["parameters"]


# The configuration


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window=True: Ouro is supported as it was released, without it"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': Ouro is supported with 'silu'"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "rope_scaling of type 'yarn': Ouro is supported with plain rotary positions only",
        ),
    ],
    ids=["window", "activation", "rope"],
)
def test_what_is_not_supported_is_refused(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OuroConfig(**field)


def test_sizes_that_the_file_leaves_out() -> None:
    config = OuroConfig(hidden_size=64, num_attention_heads=4)
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
