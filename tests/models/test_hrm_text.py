"""HRM-Text through the four stages: one high-level cycle is one loop, and the numbers are transformers' own."""

from pathlib import Path

import pytest
import torch
from transformers.models.hrm_text.modeling_hrm_text import HrmTextForCausalLM

import loopcd
from loopcd.models import LoopCache, LoopedHrmText, LoopedModel
from tools import assert_close, logits_of, random_ids, save_model, tiny_hrm


@torch.no_grad()
def transformers_logits(model: LoopedModel, ids: torch.Tensor, loops: int | None = None) -> torch.Tensor:
    """What transformers' own class says with the same weights, run for that many high-level cycles."""
    own = HrmTextForCausalLM(tiny_hrm().config).eval()
    own.load_state_dict(model.state_dict())
    own.config.H_cycles = own.model.config.H_cycles = loops or model.num_loops
    return own(ids, use_cache=False).logits


@pytest.mark.parametrize("loops", [1, 2, 3, 5])
def test_every_loop_equals_transformers_with_as_many_cycles(loops: int) -> None:
    model, ids = tiny_hrm(), random_ids(2, 11)
    assert_close(loopcd.loop_logits(model, ids, loops=[loops])[:, 0], transformers_logits(model, ids, loops))


def test_cached_decoding_equals_transformers() -> None:
    model, ids, cache = tiny_hrm(), random_ids(2, 12), LoopCache()
    said = [logits_of(model, piece, cache) for piece in ids.split([7, 1, 1, 3], dim=1)]
    assert_close(torch.cat(said, dim=1), transformers_logits(model, ids))
    assert len(cache.layers) == model.slot_count() == model.config.num_hidden_layers


def test_greedy_generation_equals_transformers() -> None:
    model = tiny_hrm()
    own = HrmTextForCausalLM(model.config).eval()
    own.load_state_dict(model.state_dict())
    ids = random_ids(2, 7)
    found = model.generate(ids, max_new_tokens=12, do_sample=False)
    wanted = own.generate(ids, max_new_tokens=12, do_sample=False)  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(found, wanted)


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    model, ids = tiny_hrm(), random_ids(1, 6)
    again, tokenizer = loopcd.load(save_model(tmp_path, model), num_loops=2)
    assert isinstance(again, LoopedHrmText) and tokenizer is not None
    assert again.num_loops == 2
    assert_close(logits_of(again, ids, num_loops=3), logits_of(model, ids))


def test_there_is_no_initial_state_to_draw() -> None:
    with pytest.raises(ValueError, match=r"init_seed is for .*Huginn"):
        tiny_hrm()(random_ids(1, 3), init_seed=3)
