"""What holds for every looped model: how the pass is cut, batched or attended changes nothing about its numbers."""

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import DefaultDeviceType
from transformers import Trainer, TrainingArguments

import loopcd
from loopcd.models import LoopCache, LoopedModel
from loopcd.models.layers import RotaryTable, causal_mask
from loopcd.models.slots import Span
from tools import MAKERS, PAD, VOCABULARY, assert_close, attending, left_padded, logits_of, random_ids, tiny_ouro

few = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


def decoded(model: LoopedModel, ids: torch.Tensor, chunks: Sequence[int], **options: Any) -> torch.Tensor:
    """Logits [rows, time, vocab] of a text fed to one cache piece by piece."""
    cache, said, start = LoopCache(), [], 0
    mask = options.pop("attention_mask", None)
    for length in chunks:
        seen = None if mask is None else mask[:, : start + length]
        said.append(logits_of(model, ids[:, start : start + length], cache, attention_mask=seen, **options))
        start += length
    assert start == ids.shape[1] == cache.get_seq_length()
    return torch.cat(said, dim=1)


# However the text is cut


def test_compiled_layers_say_the_same(own_model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced and cut as for any backend; what a backend's own compiler makes of it is its matter."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    compiled, ids = deepcopy(own_model), random_ids(2, 24)
    compiled.compile_loops()
    assert_close(decoded(compiled, ids, [20, 1, 2, 1]), decoded(own_model, ids, [20, 1, 2, 1]))


@few
@given(chunks=st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_chunked_prefill_equals_the_whole(model: LoopedModel, chunks: list[int]) -> None:
    ids = random_ids(2, sum(chunks))
    assert_close(decoded(model, ids, chunks), logits_of(model, ids))


def test_cached_equals_uncached_token_by_token(model: LoopedModel) -> None:
    ids = random_ids(2, 40)  # past the cache's first block of columns
    assert_close(decoded(model, ids, [1] * 40), logits_of(model, ids))


@few
@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=4), chunk=st.integers(1, 12))
def test_a_left_padded_row_equals_the_row_alone(model: LoopedModel, lengths: list[int], chunk: int) -> None:
    rows = [random_ids(1, length, seed=index)[0] for index, length in enumerate(lengths)]
    ids, mask = left_padded(rows)
    time = ids.shape[1]
    whole = logits_of(model, ids, attention_mask=mask)
    pieces = [min(chunk, time - start) for start in range(0, time, chunk)]
    for together in (whole, decoded(model, ids, pieces, attention_mask=mask)):
        for found, row in zip(together, rows, strict=True):
            assert_close(found[time - len(row) :], logits_of(model, row[None])[0])


def test_what_stands_in_the_padding_does_not_matter(model: LoopedModel) -> None:
    ids, mask = left_padded([random_ids(1, 4)[0], random_ids(1, 9, seed=1)[0]])
    others = torch.where(mask.bool(), ids, torch.full_like(ids, 7))
    found, wanted = (logits_of(model, each, attention_mask=mask)[:, -4:] for each in (others, ids))
    assert torch.equal(found, wanted)


def test_a_mask_of_ones_is_no_mask(model: LoopedModel) -> None:
    ids = random_ids(2, 6)
    assert torch.equal(logits_of(model, ids, attention_mask=torch.ones_like(ids)), logits_of(model, ids))


def test_a_later_token_never_changes_an_earlier_one(model: LoopedModel) -> None:
    ids = random_ids(1, 12)
    changed = torch.cat([ids[:, :8], random_ids(1, 4, seed=9)], dim=1)
    first, second = logits_of(model, ids), logits_of(model, changed)
    assert_close(first[:, :8], second[:, :8])
    assert not torch.allclose(first[:, 8:], second[:, 8:])


def test_embeddings_may_be_given_instead_of_tokens(model: LoopedModel) -> None:
    ids = random_ids(1, 6)
    embeddings = model.get_input_embeddings()(ids)
    with torch.no_grad():
        assert torch.equal(model(inputs_embeds=embeddings).logits, logits_of(model, ids))


# However it is attended


@pytest.mark.parametrize("family", MAKERS)
def test_sdpa_equals_eager(family: str) -> None:
    sdpa, eager = attending(MAKERS[family](), "sdpa"), attending(MAKERS[family](), "eager")
    ids, mask = left_padded([random_ids(1, 5)[0], random_ids(1, 11, seed=1)[0]])
    assert_close(logits_of(sdpa, ids[1:]), logits_of(eager, ids[1:]))
    chunks = [6, 1, 4]
    found, wanted = (decoded(each, ids, chunks, attention_mask=mask)[:, -5:] for each in (sdpa, eager))
    assert_close(found, wanted)


@pytest.mark.parametrize("family", ["huginn", "ouro"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_grouped_heads_are_attended_alike(family: str, implementation: str) -> None:
    model = MAKERS[family](num_key_value_heads=2)
    wanted = logits_of(model, random_ids(2, 9))
    assert_close(decoded(attending(model, implementation), random_ids(2, 9), [5, 1, 3]), wanted)


def test_even_a_padded_token_sees_itself() -> None:
    """An attention that takes a softmax over nothing would put NaN into the keys that others weigh by 0."""
    valid = torch.tensor([[False, False, True], [True, True, True]])
    mask = causal_mask(Span(2, 0, 3), torch.device("cpu"), valid, "sdpa")
    assert mask is not None and mask.shape == (2, 1, 3, 3)
    assert mask[0, 0].tolist() == [[True, False, False], [False, True, False], [False, False, True]]
    assert torch.equal(mask[1, 0], torch.ones(3, 3, dtype=torch.bool).tril())


# However many loops


@pytest.mark.parametrize("loops", [1, 2, 7])
def test_fewer_and_more_loops_at_the_call(model: LoopedModel, loops: int) -> None:
    ids = random_ids(1, 6)
    wanted = loopcd.loop_logits(model, ids, loops=[loops])[:, 0]
    assert_close(logits_of(model, ids, num_loops=loops), wanted)
    assert_close(decoded(model, ids, [3, 3], num_loops=loops), wanted)
    if loops != model.num_loops:
        assert not torch.allclose(wanted, logits_of(model, ids), atol=1e-2)


@pytest.mark.parametrize("family", MAKERS)
def test_set_num_loops(family: str) -> None:
    model = MAKERS[family]()
    ids = random_ids(1, 6)
    wanted = loopcd.loop_logits(model, ids, loops=[2])[:, 0]
    model.set_num_loops(2)
    assert model.num_loops == 2
    assert_close(logits_of(model, ids), wanted)
    model.num_loops = 3  # the same, as people write it
    assert_close(logits_of(model, ids), loopcd.loop_logits(model, ids, loops=[3])[:, 0])


def test_loop_logits_are_the_model_stopped_there(model: LoopedModel) -> None:
    ids, mask = left_padded([random_ids(1, 3)[0], random_ids(1, 7, seed=1)[0]])
    found = loopcd.loop_logits(model, ids, mask)
    assert found.shape == (2, model.num_loops, 7, VOCABULARY)
    for loop in range(1, model.num_loops + 1):
        wanted = logits_of(model, ids, attention_mask=mask, num_loops=loop)
        assert_close(found[0, loop - 1, -3:], wanted[0, -3:])
        assert_close(found[1, loop - 1], wanted[1])
    chosen = loopcd.loop_logits(model, ids, mask, loops=[3, 1, 3])
    assert torch.equal(chosen[1], found[1, [2, 0, 2]])


def test_latents_and_kept_logits(model: LoopedModel) -> None:
    ids = random_ids(1, 6)
    with torch.no_grad():
        output = model(ids, output_hidden_states=True, logits_to_keep=2)
        state = model.begin(ids)
        for latent in output.hidden_states:
            assert torch.equal(latent, state.hidden)
            state = model.advance(state)
    assert len(output.hidden_states) == model.num_loops + 1
    assert_close(output.logits, logits_of(model, ids)[:, -2:])
    assert model(ids).hidden_states is None


@pytest.mark.parametrize(("held", "columns"), [(0, 5), (0, 2), (8, 5), (8, 12)])
def test_a_mask_of_other_tokens_is_refused(model: LoopedModel, held: int, columns: int) -> None:
    cache = LoopCache()
    if held:
        logits_of(model, random_ids(2, held), cache)
    mask = torch.ones(2, columns, dtype=torch.long)
    mask[0, 0] = 0
    wanted = "[2, 3]" + (" or [2, 11]" if held else "")
    with pytest.raises(ValueError, match=re.escape(f"attention_mask has shape (2, {columns}): ") + ".*" + re.escape(wanted)):
        logits_of(model, random_ids(2, 3), cache, attention_mask=mask)


def test_a_cache_has_a_mask_of_its_own(own_model: LoopedModel) -> None:
    """Whoever gave one may write over it."""
    ids, mask = left_padded([random_ids(1, 4)[0], random_ids(1, 7, seed=1)[0]])
    mask, said = mask.bool(), []
    for overwritten in (False, True):
        cache = LoopCache()
        logits_of(own_model, ids, cache, attention_mask=mask)
        if overwritten:
            mask.fill_(True)
        said.append(logits_of(own_model, random_ids(2, 1), cache))
    assert torch.equal(*said)


def test_a_pass_of_other_rows_hides_nothing(own_model: LoopedModel) -> None:
    """It is refused, and leaves the cache as it was."""
    ids, cache, mask = random_ids(2, 6), LoopCache(), torch.ones(3, 6, dtype=torch.long)
    logits_of(own_model, ids[:, :5], cache)
    mask[:, 2] = 0
    with pytest.raises(ValueError, match="a pass of 3 rows on a cache of 2 rows"):
        logits_of(own_model, random_ids(3, 1), cache, attention_mask=mask)
    assert_close(logits_of(own_model, ids[:, 5:], cache), logits_of(own_model, ids)[:, 5:])


def test_the_loss_is_that_of_the_next_token(model: LoopedModel) -> None:
    ids = random_ids(2, 6)
    logits = logits_of(model, ids)[:, :-1].flatten(0, 1)
    assert_close(model(ids, labels=ids).loss, torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()))


def test_the_loss_of_smoothed_labels_and_of_several_steps(own_model: LoopedModel, tmp_path: Path) -> None:
    """What transformers' Trainer asks of a model: that it is known to shift labels, and counts them over accumulated steps."""
    ids = random_ids(2, 6)
    trainer = Trainer(own_model, TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, report_to=[], use_cpu=True))
    logits = logits_of(own_model, ids)[:, :-1].flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.1)
    with torch.no_grad():
        loss: Any = trainer.compute_loss(own_model, {"input_ids": ids, "labels": ids})
        assert_close(loss, wanted)
        output = own_model(ids, labels=ids, num_items_in_batch=20)
    assert_close(output.loss, torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum") / 20)


def test_a_tuple_where_one_is_asked_for(model: LoopedModel) -> None:
    ids = random_ids(1, 4)
    logits, latents = model(ids, return_dict=False, output_hidden_states=True)
    assert_close(logits, logits_of(model, ids))
    assert len(latents) == model.num_loops + 1


def test_masks_of_another_shape_are_refused(model: LoopedModel) -> None:
    for shape in ((2, 2), (1, 3), (2, 1, 3, 3)):
        with pytest.raises(ValueError, match=r"attention_mask has shape .*: for 2 rows of 3 tokens it is \[2, 3\]"):
            model(random_ids(2, 3), attention_mask=torch.ones(shape, dtype=torch.long))


def test_the_head_of_a_few_tokens_only(model: LoopedModel) -> None:
    hidden = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    tokens = random_ids(6, 5).view(2, 3, 5)
    with torch.no_grad():
        assert_close(model.head(hidden, tokens), model.head(hidden).gather(-1, tokens), 1e-5)


# The stages by hand


@torch.no_grad()
def test_rows_of_a_state_may_go_on_alone(model: LoopedModel) -> None:
    rows = [random_ids(1, length, seed=length)[0] for length in (6, 3, 5)]
    ids, mask = left_padded(rows)
    state = model.advance(model.begin(ids, attention_mask=mask)).keep(torch.tensor([2, 0]))
    state = model.advance(state).keep(torch.tensor([0]))
    found = model.head(model.readout(model.advance(state)))
    assert_close(found[0, -5:], logits_of(model, rows[2][None], num_loops=3)[0])


# Numbers of other kinds


def test_gradient_checkpointing_changes_no_gradient(own_model: LoopedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is kept in the forward pass, and made again in the backward one."""
    monkeypatch.setattr(DefaultDeviceType, "_default_device_type", "cpu")  # and not the stand-in device of other tests
    ids = random_ids(2, 6)
    grads, asked = [], []
    for checkpointed in (False, True):
        model = type(own_model)(own_model.config)
        model.load_state_dict(own_model.state_dict())
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable()
            for layer in (module for module in model.modules() if getattr(module, "gradient_checkpointing", False)):
                again: Any = layer._gradient_checkpointing_func
                spied: Any = lambda *args, again=again, **more: asked.append(1) or again(*args, **more)  # noqa: E731
                layer._gradient_checkpointing_func = spied
        model(ids, labels=ids).loss.backward()
        grads.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    assert len(asked) >= own_model.num_loops
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad)


# Bad input


def test_attention_weights_are_refused_and_not_left_out(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="output_attentions=True: attention weights are not kept"):
        model(random_ids(1, 3), output_attentions=True)
    assert model(random_ids(1, 3), output_attentions=False).attentions is None


def test_token_ids_that_are_no_tensor(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match=r"input_ids=\[\[1, 2\]\]: a tensor \[batch, time\] of token ids"):
        loopcd.loop_logits(model, [[1, 2]])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("loops", [0, -1, 2.5, True, "3"])
def test_a_wrong_number_of_loops(model: LoopedModel, loops: Any) -> None:
    ids = random_ids(1, 3)
    for call in (
        lambda: model(ids, num_loops=loops),
        lambda: model.generate(ids, max_new_tokens=2, num_loops=loops),
        lambda: model.set_num_loops(loops),
    ):
        with pytest.raises(ValueError, match=rf"num_loops={loops!r}: a whole number of loops, at least 1"):
            call()
    with pytest.raises(ValueError, match="at least 1"):
        loopcd.loop_logits(model, ids, loops=[1, loops])


def test_no_loops_named(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match=r"loops=\[\]"):
        loopcd.loop_logits(model, random_ids(1, 3), loops=[])


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 10**6])
def test_a_token_outside_the_vocabulary(model: LoopedModel, wrong: int) -> None:
    ids = random_ids(2, 3)
    ids[1, 1] = wrong
    for call in (model, lambda x: model.generate(x, max_new_tokens=2), lambda x: loopcd.loop_logits(model, x)):
        with pytest.raises(ValueError, match=f"input_ids holds token id {wrong}: the vocabulary has ids 0 to 258"):
            call(ids)


def test_an_empty_prompt(model: LoopedModel) -> None:
    empty = torch.zeros(1, 0, dtype=torch.long)
    for call in (model, lambda x: model.generate(x, max_new_tokens=2), lambda x: loopcd.loop_logits(model, x)):
        with pytest.raises(ValueError, match=r"input_ids has shape \(1, 0\): .* at least one token"):
            call(empty)


def test_neither_tokens_nor_embeddings(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        model()


def test_a_context_past_the_limit(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="257 tokens do not fit the model's context of 256"):
        model(random_ids(1, 257))
    cache = LoopCache()
    logits_of(model, random_ids(1, 256), cache)
    with pytest.raises(ValueError, match="257 tokens do not fit the model's context of 256"):
        logits_of(model, torch.tensor([[PAD]]), cache)


def test_the_public_name_of_the_number_of_loops(own_model: LoopedModel) -> None:
    ids = random_ids(1, 4)
    for run in (own_model, lambda ids, **options: own_model.generate(ids, max_new_tokens=2, do_sample=False, **options)):
        found, wanted = run(ids, num_steps=2), run(ids, num_loops=2)
        assert torch.equal(getattr(found, "logits", found), getattr(wanted, "logits", wanted))
        with pytest.raises(ValueError, match="num_steps=2 is another name of num_loops, which is 3"):
            run(ids, num_steps=2, num_loops=3)


def test_an_adapter_on_the_head_counts_for_some_tokens_too() -> None:
    class Adapted(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1.5 * input[..., :1]

    model, tokens = tiny_ouro(), torch.tensor([[5, 200, 7]])
    head = Adapted(32, VOCABULARY, bias=False)
    head.weight = model.lm_head.weight
    model.lm_head = head
    hidden = torch.randn(1, 32)
    assert_close(model.head(hidden, tokens), model.head(hidden).gather(1, tokens))


@pytest.mark.parametrize("complex_numbers", [False, True])
def test_threads_that_make_the_rotary_table_at_once(complex_numbers: bool) -> None:
    """Another one stores a shorter table before ours is looked up, or a longer one before ours is stored."""

    class Raced(dict[Any, Any]):
        def __setitem__(self, key: Any, tables: tuple[torch.Tensor, ...]) -> None:
            super().__setitem__(key, tuple(each[:300] for each in tables))

    def look_up(table: RotaryTable, at: torch.Tensor) -> torch.Tensor:
        return table.turns(at, 600) if complex_numbers else table(at, 600, torch.float32)[0]

    at, table = torch.tensor([[599]]), RotaryTable(100.0, 8, "halves")
    wanted, table._made = look_up(table, at), Raced()
    assert torch.equal(look_up(table, at), wanted)
    make = table._make

    def make_after_another(length: int, *where: Any) -> tuple[torch.Tensor, ...]:
        table._made[where] = make(2 * length, *where)
        return make(length, *where)

    table._made, table._make = {}, make_after_another  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(look_up(table, at), wanted)
    assert [len(each[0]) for each in table._made.values()] == [2400]
