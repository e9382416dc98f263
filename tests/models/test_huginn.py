"""Huginn: other geometries against the written-out formulas, its initial state, its names and sizes, its configuration."""

import re
from copy import deepcopy
from typing import Any

import pytest
import torch
from transformers import AutoConfig

import family
import reference
from loopcd.models import HuginnConfig, HuginnForCausalLM, LoopCache, LoopedModel, layers, recurrent
from loopcd.models.presets import PUBLIC, empty_model
from standin import devices, placed
from tools import Golden, assert_close, left_padded, logits_of, random_ids, tiny_huginn

TIED = {"tie_embeddings": True, "tie_word_embeddings": True}


# Geometries


@pytest.mark.parametrize(
    "changes",
    [
        {"mean_recurrence": 12, "n_heads": 2},
        {"n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 3, "n_layers_in_coda": 2, **TIED},
        {"n_layers_in_prelude": 3, "n_layers_in_recurrent_block": 1, "n_layers_in_coda": 1, "mean_recurrence": 3},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "qk_bias": False, "n_heads": 8},
        {"qk_bias": False, **TIED},
        {"n_embd": 42, "n_heads": 7, "intermediate_size": 37, "vocab_size": 101, "rope_base": 10_000},
        {"n_embd": 30, "n_heads": 3, "rope_base": 123.5, "norm_eps": 1e-3},
    ],
    ids=str,
)
def test_other_geometries_equal_the_formulas(changes: dict[str, Any]) -> None:
    model = tiny_huginn(seed=3, **changes)
    family.float64_reading(model)
    family.chunked(model)


def test_the_formulas_reproduce_the_golden_numbers(golden_huginn: Golden) -> None:
    """The written-out formulas are a specification only if they say what the public reference says."""
    weights, config = golden_huginn.model.state_dict(), golden_huginn.model.config
    for loop in (1, 5, 8):
        found = reference.huginn_logits(weights, config, golden_huginn.ids("s2")[0], loop)
        assert_close(found, golden_huginn.arrays["s2.logits_per_loop"][loop - 1])


# The initial state


def test_the_initial_state_is_zero_by_default(huginn: LoopedModel) -> None:
    ids = random_ids(2, 6)
    assert not huginn.begin(ids).hidden.any()
    zero = torch.zeros(2, 6, 32)
    assert torch.equal(huginn.begin(ids, init_state=zero).hidden, zero)


def test_a_seed_draws_the_state_that_training_starts_from(huginn: LoopedModel) -> None:
    drawn = huginn.begin(random_ids(1, 200), init_seed=3).hidden
    std = (2 / 5) ** 0.5  # √width × √(2 / (5 width)), cut off at three deviations
    assert drawn.abs().max() <= 3 * std
    assert abs(float(drawn.std()) / std - 0.987) < 0.02
    assert abs(float(drawn.mean())) < 0.03
    assert len(drawn[0].unique(dim=0)) == 200  # every position has a draw of its own


@torch.no_grad()
def test_the_drawn_state_is_what_the_loops_start_from(huginn: LoopedModel) -> None:
    ids = random_ids(1, 9)
    initial = huginn.begin(ids, init_seed=5).hidden[0]
    found = logits_of(huginn, ids, init_seed=5)[0]
    assert_close(found, reference.huginn_logits(huginn.state_dict(), huginn.config, ids[0], 4, initial=initial))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_drawn_state_does_not_depend_on_torchs_defaults(huginn: LoopedModel, dtype: torch.dtype) -> None:
    """Nor do the numbers that are kept for the process, whatever was the default when they were made."""
    ids = random_ids(1, 6)
    wanted = logits_of(huginn, ids, init_seed=5)
    recurrent._drawn_block.cache_clear()
    layers._scalar.cache_clear()
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(logits_of(huginn, ids, init_seed=5), wanted)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_default_device_that_is_not_the_models(own_model: LoopedModel) -> None:
    """And nothing of it stays behind when it is no more the default."""
    ids = random_ids(1, 6)
    wanted = logits_of(own_model, ids)
    layers._scalar.cache_clear()
    with torch.device("meta"):
        assert torch.equal(logits_of(own_model, ids), wanted)
    assert torch.equal(logits_of(own_model, ids), wanted)


@pytest.mark.parametrize("seed", [1.5, "7", True, [1, None]])
def test_a_seed_is_a_whole_number(huginn: LoopedModel, seed: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"init_seed={seed!r}: a whole number, or one a row")):
        huginn(random_ids(2, 3), init_seed=seed)


def test_the_same_seed_gives_the_same_logits(huginn: LoopedModel) -> None:
    ids = random_ids(1, 6)
    first = logits_of(huginn, ids, init_seed=11, num_loops=1)
    assert torch.equal(first, logits_of(huginn, ids, init_seed=11, num_loops=1))
    torch.manual_seed(99)  # the global generator plays no part, and is left alone
    before = torch.get_rng_state()
    assert torch.equal(first, logits_of(huginn, ids, init_seed=11, num_loops=1))
    assert torch.equal(before, torch.get_rng_state())
    for other in (None, 12):
        assert not torch.allclose(first, logits_of(huginn, ids, init_seed=other, num_loops=1), atol=1e-2)


@pytest.mark.parametrize("chunks", [[70, 1, 1, 5], [1] * 77, [63, 1, 13]])
def test_a_seeded_text_may_be_cut_anywhere(huginn: LoopedModel, chunks: list[int]) -> None:
    ids, cache = random_ids(1, 77), LoopCache()
    said = [logits_of(huginn, piece, cache, init_seed=4) for piece in ids.split(chunks, dim=1)]
    assert_close(torch.cat(said, dim=1), logits_of(huginn, ids, init_seed=4))


def test_a_seeded_padded_row_equals_the_row_alone(huginn: LoopedModel) -> None:
    rows = [random_ids(1, length, seed=length)[0] for length in (3, 8, 5)]
    ids, mask = left_padded(rows)
    seeds = [21, 22, 23]
    for given, each in ((7, [7, 7, 7]), (seeds, seeds)):
        found = logits_of(huginn, ids, attention_mask=mask, init_seed=given)
        for row, seed, logits in zip(rows, each, found, strict=True):
            assert_close(logits[-len(row) :], logits_of(huginn, row[None], init_seed=seed)[0])


def test_seeded_generation_depends_on_the_seed_alone(huginn: LoopedModel) -> None:
    ids = random_ids(1, 6)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    first = huginn.generate(ids, init_seed=1, **options)
    assert torch.equal(first, huginn.generate(ids, init_seed=1, use_cache=False, **options))
    others = {tuple(huginn.generate(ids, init_seed=seed, num_loops=1, **options)[0].tolist()) for seed in range(5)}
    assert len(others) > 1


def test_a_wrong_number_of_seeds(huginn: LoopedModel) -> None:
    with pytest.raises(ValueError, match="init_seed has 3 seeds for 2 rows"):
        logits_of(huginn, random_ids(2, 4), init_seed=[1, 2, 3])


# Early readouts


@torch.no_grad()
def test_a_shared_readout_sees_the_past_by_its_final_readouts(huginn: LoopedModel) -> None:
    """At the last loop it is the final readout; before that it is not the model stopped there."""
    ids, cache = random_ids(2, 9), LoopCache()
    logits_of(huginn, ids[:, :8], cache)
    state, parked = huginn.begin(ids[:, 8:], cache), []
    for _ in range(huginn.num_loops):
        state = huginn.advance(state)
        parked.append(huginn.park(state, "shared"))
    final = huginn.head(huginn.readout(state))
    assert_close(huginn.head(huginn.read_parked(parked[-1])), final)
    stopped = logits_of(huginn, ids, num_loops=1)[:, -1:]
    assert not torch.allclose(huginn.head(huginn.read_parked(parked[0])), stopped, atol=1e-2)


def test_an_early_readout_needs_a_cache(huginn: LoopedModel) -> None:
    with pytest.raises(ValueError, match="it needs a cache"):
        huginn.park(huginn.advance(huginn.begin(random_ids(1, 3))))


# Names and sizes


def public_names(golden: Golden, config: Any) -> set[str]:
    """The golden checkpoint's names, for as many layers as this configuration has."""
    layers = {
        "prelude": config.n_layers_in_prelude,
        "core_block": config.n_layers_in_recurrent_block,
        "coda": config.n_layers_in_coda,
    }
    names = set()
    for name in golden.facts["parameters"]:
        parts = name.split(".")
        count = layers.get(parts[1], 1) if len(parts) > 1 else 1
        names |= {".".join([*parts[:2], str(i), *parts[3:]]) if count > 1 else name for i in range(count)}
    return names


def test_full_size_names_and_parameters(golden_huginn: Golden) -> None:
    model = empty_model(PUBLIC["tomg-group-umd/huginn-0125"]())
    config = model.config
    assert (config.n_embd, config.n_heads, config.vocab_size, model.num_loops) == (5280, 55, 65536, 32)
    assert all(weight.is_meta for weight in model.parameters())
    # the rotary table is computed, and the head of a tied model is not stored
    stored = public_names(golden_huginn, config) - {"freqs_cis", "lm_head.weight"}
    assert {name for name, _ in model.named_parameters()} == stored
    assert sum(weight.numel() for weight in model.parameters()) == 3_564_976_800
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert shapes["transformer.adapter.weight"] == (5280, 10560)
    assert shapes["transformer.core_block.3.attn.Wqkv.weight"] == (15840, 5280)
    assert shapes["transformer.core_block.3.attn.qk_bias"] == (2, 1, 55, 96)
    assert shapes["transformer.coda.1.mlp.fc.weight"] == (35840, 5280)
    assert shapes["transformer.prelude.0.mlp.proj.weight"] == (5280, 17920)
    assert model.slot_count() == 2 + 2 + 4 * 32


def test_tiny_names_and_shapes_are_the_stored_ones(golden_huginn: Golden) -> None:
    wanted = {name: tuple(shape) for name, shape in golden_huginn.facts["parameters"].items() if name != "freqs_cis"}
    found = {name: tuple(weight.shape) for name, weight in golden_huginn.model.state_dict().items()}
    assert {**wanted, "lm_head.weight": (128, 64)} == found


# The configuration


@pytest.mark.parametrize(
    ("given", "tied"),
    [
        ({}, True),
        ({"tie_embeddings": False}, False),
        ({"tie_word_embeddings": False}, False),
        ({"tie_embeddings": False, "tie_word_embeddings": False}, False),
        ({"tie_embeddings": False, "tie_word_embeddings": True}, False),
    ],
    ids=str,
)
def test_either_switch_unties_the_head(given: dict[str, bool], tied: bool) -> None:
    model = tiny_huginn(**{**TIED, **given})
    assert model.config.tie_embeddings is model.config.tie_word_embeddings is tied
    assert (model.lm_head.weight is model.transformer["wte"].weight) is tied
    again = HuginnConfig.from_dict(model.config.to_dict())
    assert again.tie_word_embeddings is tied


def test_unknown_fields_of_the_public_configuration_are_kept(golden_huginn: Golden) -> None:
    config = AutoConfig.from_pretrained(golden_huginn.folder)
    assert isinstance(config, HuginnConfig)
    assert config.injection_type == "linear" and config.sampling_scheme == "poisson-lognormal-filling"
    assert (config.hidden_size, config.num_hidden_layers, config.max_position_embeddings) == (64, 8, 256)


@pytest.mark.parametrize("heads", [3, 32])
def test_heads_that_do_not_divide_the_width(heads: int) -> None:
    with pytest.raises(ValueError, match=f"n_embd=32 does not divide into n_heads={heads} heads of even size"):
        HuginnConfig(n_embd=32, n_heads=heads)


@torch.no_grad()
def test_fresh_weights_are_those_that_training_starts_from() -> None:
    torch.manual_seed(0)
    model = HuginnForCausalLM(HuginnConfig(n_embd=32, n_heads=4, intermediate_size=48, vocab_size=99, mean_recurrence=4))
    std = (2 / (5 * 32)) ** 0.5
    layer: Any = model.get_submodule("transformer.core_block.0")
    assert abs(float(layer.attn.Wqkv.weight.std()) / std - 1) < 0.1
    assert float(layer.attn.proj.weight.std()) < 0.5 * std  # smaller with depth: 2 + 4 × 4 + 2 layers
    assert not layer.attn.qk_bias.any() and bool((layer.norm_1.weight == 1).all())


# What layers write over


@torch.no_grad()
def test_a_layer_that_was_put_in_later_is_looked_at_too() -> None:
    """Off the CPU layers write over their inputs, unless somebody hooked one."""
    ids, seen = random_ids(1, 5), dict[str, list[torch.Tensor]]()
    with devices():
        for name, model in {"cpu": tiny_huginn(), "standin": placed(tiny_huginn(), "standin:0")}.items():
            model(ids.to(model.device))
            core: Any = model.transformer["core_block"]
            core[0], there = deepcopy(core[0]), seen.setdefault(name, [])
            core[0].register_forward_hook(lambda _, given, __, there=there: there.append(given[0]))
            model(ids.to(model.device))
        for mine, other in zip(seen["standin"], seen["cpu"], strict=True):
            assert_close(mine.cpu(), other)
