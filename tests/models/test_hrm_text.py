"""HRM-Text through the four stages: one high-level cycle is one loop, and the numbers are transformers' own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.hrm_text.modeling_hrm_text import HrmTextForCausalLM

import loopcd
from loopcd.models import LoopCache, LoopedHrmText, LoopedModel
from tools import (
    assert_close,
    byte_tokenizer,
    left_padded,
    logits_of,
    random_ids,
    save_model,
    tiny_hrm,
    tiny_ouro,
)


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


# A prompt is read in both directions


def own_class(model: LoopedModel) -> Any:
    """transformers' own class with the same weights."""
    own = HrmTextForCausalLM(model.config).eval()
    own.load_state_dict(model.state_dict())
    return own


@pytest.fixture(scope="module")
def prefixed() -> LoopedHrmText:
    return tiny_hrm(prefix_lm=True)


@pytest.mark.parametrize("prompt", [0, 1, 4, 9])
@torch.no_grad()
def test_a_pass_with_token_types_equals_transformers(prefixed: LoopedHrmText, prompt: int) -> None:
    ids = random_ids(2, 9)
    types = (torch.arange(9) < prompt).long().expand(2, -1)
    wanted = own_class(prefixed)(ids, token_type_ids=types, use_cache=False).logits
    for attention in ("eager", "sdpa"):
        prefixed.set_attn_implementation(attention)
        assert_close(logits_of(prefixed, ids, token_type_ids=types), wanted)
    if prompt == 0:  # as in transformers, a pass without types is causal
        assert_close(logits_of(prefixed, ids), wanted)
    elif prompt > 1:
        assert not torch.allclose(logits_of(prefixed, ids), wanted, atol=1e-2)


@torch.no_grad()
def test_a_padded_prompt_equals_the_prompt_alone(prefixed: LoopedHrmText) -> None:
    rows = [random_ids(1, length, seed=length)[0] for length in (3, 8, 5)]
    ids, mask = left_padded(rows)
    found = logits_of(prefixed, ids, attention_mask=mask, token_type_ids=torch.ones_like(ids))
    for row, logits in zip(rows, found, strict=True):
        alone = logits_of(prefixed, row[None], token_type_ids=torch.ones(1, len(row)))
        assert_close(logits[-len(row) :], alone[0])


@pytest.mark.parametrize("types", ["given", "by default", "causal"])
@pytest.mark.parametrize("method", [None, loopcd.Greedy(), loopcd.Greedy(draft=loopcd.SelfDraft(1, 3, fallback=False))])
def test_generation_equals_transformers(prefixed: LoopedHrmText, types: str, method: Any) -> None:
    """What is given to go on from is a prompt unless the types say otherwise; what is written is causal."""
    ids = random_ids(2, 7)
    ones = torch.ones_like(ids)
    wanted = own_class(prefixed).generate(
        ids, token_type_ids=torch.zeros_like(ids) if types == "causal" else ones, max_new_tokens=12, do_sample=False
    )
    told = {"given": {"token_type_ids": ones}, "by default": {}, "causal": {"token_type_ids": torch.zeros_like(ids)}}
    found = prefixed.generate(ids, custom_generate=method, max_new_tokens=12, do_sample=False, **told[types])
    assert torch.equal(found, wanted)


def test_generation_without_a_cache_reads_only_the_prompt_in_both_directions(prefixed: LoopedHrmText) -> None:
    ids = random_ids(1, 6)
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    assert torch.equal(prefixed.generate(ids, use_cache=False, **options), prefixed.generate(ids, **options))


@torch.no_grad()
def test_a_prompt_in_pieces_or_embedded_is_read_in_both_directions(prefixed: LoopedHrmText) -> None:
    ids = random_ids(2, 9)
    wanted = prefixed.generate(ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(prefixed.generate(ids, max_new_tokens=6, do_sample=False, prefill_chunk_size=2), wanted)
    embeddings = prefixed.get_input_embeddings()(ids)
    assert torch.equal(prefixed.generate(inputs_embeds=embeddings, max_new_tokens=6, do_sample=False), wanted[:, 9:])


@pytest.mark.parametrize("assisted", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted_decoding_is_refused_unless_the_prompt_is_causal(prefixed: LoopedHrmText, assisted: str) -> None:
    ids, options = random_ids(1, 9), {assisted: prefixed if assisted == "assistant_model" else 3}
    with pytest.raises(ValueError, match=r"prompt_lookup_num_tokens: .* draft with loopcd.SelfDraft"):
        prefixed.generate(ids, max_new_tokens=6, do_sample=False, **options)
    causal: dict[str, Any] = {"token_type_ids": torch.zeros_like(ids), "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(prefixed.generate(ids, **causal, **options), prefixed.generate(ids, **causal))


def test_a_cache_is_refused_where_checkpointing_drops_it() -> None:
    model, ids = tiny_hrm(), random_ids(1, 5)
    wanted = model.generate(ids, max_new_tokens=4, do_sample=False)
    model.gradient_checkpointing_enable()
    model.train()
    with pytest.raises(ValueError, match=r"gradient checkpointing in training mode.*model.eval\(\), or"):
        model.generate(ids, max_new_tokens=4, do_sample=False)
    model(ids, labels=ids).loss.backward()
    assert torch.equal(model.eval().generate(ids, max_new_tokens=4, do_sample=False), wanted)


def test_methods_in_batches_and_pieces(prefixed: LoopedHrmText) -> None:
    prompts = ["Hello", "A longer prompt, with more in it", "x"]
    for method in (loopcd.LoopCD(1, 0.5), loopcd.LoopGuidance(1, 0.7), loopcd.Greedy(exit=loopcd.EarlyExit(0.5))):
        together = loopcd.generate(prefixed, byte_tokenizer(), prompts, method, max_new_tokens=8)
        alone = [loopcd.generate(prefixed, byte_tokenizer(), prompt, method, max_new_tokens=8) for prompt in prompts]
        assert [each.token_ids for each in together] == [each.token_ids for each in alone]  # pyright: ignore
    ids, greedy = random_ids(1, 9), loopcd.Greedy()
    whole = prefixed.generate(ids, custom_generate=greedy, max_new_tokens=6)
    assert torch.equal(prefixed.generate(ids, custom_generate=greedy, max_new_tokens=6, prefill_chunk_size=4), whole)


def test_a_trace_says_what_was_written(prefixed: LoopedHrmText) -> None:
    """Both ways of taking one read the prompt as generation did."""
    made = loopcd.generate(prefixed, byte_tokenizer(), "Hello there", loopcd.Greedy(), max_new_tokens=8, trace=True)
    assert made.trace.top_ids[:, -1, 0].tolist() == list(made.token_ids)  # pyright: ignore


def test_types_where_prompts_are_causal() -> None:
    ids = random_ids(1, 4)
    for model in (tiny_hrm(), tiny_ouro()):
        with pytest.raises(ValueError, match=r"token_type_ids: .* leave them out"):
            model(ids, token_type_ids=torch.ones_like(ids))
        model(ids, token_type_ids=torch.zeros_like(ids))


def test_there_is_no_initial_state_to_draw() -> None:
    with pytest.raises(ValueError, match=r"init_seed is for .*Huginn"):
        tiny_hrm()(random_ids(1, 3), init_seed=3)
