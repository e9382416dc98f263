"""transformers' own `generate` on the looped models: every way of decoding it offers, with and without the cache."""

from itertools import product
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria, TextStreamer
from transformers.generation.streamers import BaseStreamer

from loopcd import Greedy, LoopCD, SelfDraft
from loopcd.models import LoopCache, LoopedModel, loop_logits
from loopcd.models.slots import BLOCK
from tools import EOS, MAKERS, PAD, byte_tokenizer, left_padded, random_ids

GREEDY: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}


def texts(*lengths: int) -> list[torch.Tensor]:
    return [random_ids(1, length, seed=index)[0] for index, length in enumerate(lengths)]


def sampled(model: LoopedModel, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return model.generate(ids, **{"max_new_tokens": 12, "do_sample": True, "temperature": 0.8, **options})


# The same text, however it is computed


def test_a_batch_with_left_padding_equals_each_row_alone(model: LoopedModel) -> None:
    rows = texts(3, 9, 6)
    ids, mask = left_padded(rows)
    together = model.generate(ids, attention_mask=mask, **GREEDY)
    for row, found in zip(rows, together, strict=True):
        alone = model.generate(row[None], **GREEDY)[0, len(row) :]
        assert found[ids.shape[1] :].tolist() == alone.tolist()


def test_greedy_is_the_argmax_of_the_last_loop(model: LoopedModel) -> None:
    ids = random_ids(1, 5)
    found = model.generate(ids, **GREEDY)
    logits = loop_logits(model, found[:, :-1], loops=[model.num_loops])[0, 0]
    assert logits[4:].argmax(dim=-1).tolist() == found[0, 5:].tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"prefill_chunk_size": 3},
        {"past_key_values": LoopCache},
        {"cache_implementation": "dynamic"},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_other_ways_to_the_same_text(model: LoopedModel, options: dict[str, Any]) -> None:
    ids = random_ids(1, 7).repeat(1, 2)
    options = {name: value() if value is LoopCache else value for name, value in options.items()}
    assert torch.equal(model.generate(ids, **GREEDY, **options), model.generate(ids, **GREEDY))


def test_an_assistant_does_not_change_the_text(own_model: LoopedModel) -> None:
    """The assistant agrees often (the same model with fewer loops) or hardly ever (a stranger)."""
    ids = random_ids(1, 6)
    wanted = own_model.generate(ids, **GREEDY)
    family = "ouro" if own_model.config.model_type == "ouro" else "huginn"
    for assistant in (MAKERS[family](seed=0), MAKERS[family](seed=1)):
        assistant.set_num_loops(3)
        assert torch.equal(own_model.generate(ids, assistant_model=assistant, **GREEDY), wanted)


def test_a_cache_goes_on_where_the_last_call_ended(model: LoopedModel) -> None:
    ids = random_ids(1, 6)
    whole = model.generate(ids, max_new_tokens=12, do_sample=False)
    first = model.generate(ids, max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    assert isinstance(first.past_key_values, LoopCache)
    rest = model.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=7, do_sample=False)
    assert torch.equal(rest, whole)


METHODS = {"none": None, "greedy": Greedy(), "loopcd": LoopCD(1, 0.5), "draft": Greedy(draft=SelfDraft(1, 3))}


# not transformers' own loop in chunks: older releases hand these a mask that begins at the first column
@pytest.mark.parametrize(("name", "chunk"), [("none", None), *product(list(METHODS)[1:], (None, 2))])
def test_a_second_turn_of_a_batch(own_model: LoopedModel, name: str, chunk: int | None) -> None:
    """A row that ended in the first turn was filled up behind its end, which the second turn's mask hides."""
    rows, more = texts(4, 7), random_ids(2, 5, seed=9)
    options: dict[str, Any] = {**GREEDY, "custom_generate": METHODS[name], "prefill_chunk_size": chunk}
    end = int(own_model.generate(rows[0][None], **options)[0, 6])

    def turns(ids: torch.Tensor, mask: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        stops = {"eos_token_id": end, "pad_token_id": PAD, "return_dict_in_generate": True}
        first = own_model.generate(ids, attention_mask=mask, **options, **stops)
        new = first.sequences[:, ids.shape[1] :]
        ids, mask = torch.cat([ids, new, more], dim=1), torch.cat([mask, new != PAD, torch.ones_like(more)], dim=1)
        second = own_model.generate(ids, attention_mask=mask, past_key_values=first.past_key_values, **options)
        return second[:, ids.shape[1] :]

    together = turns(*left_padded(rows), more)
    for row, new, found in zip(rows, more, together, strict=True):
        assert torch.equal(found, turns(row[None], torch.ones(1, len(row), dtype=torch.long), new[None])[0])


@pytest.mark.parametrize("loops", [1, 2, 6])
def test_fewer_and_more_loops(model: LoopedModel, loops: int) -> None:
    ids = random_ids(1, 6)
    found = model.generate(ids, num_loops=loops, **GREEDY)
    logits = loop_logits(model, found[:, :-1], loops=[loops])[0, 0]
    assert logits[5:].argmax(dim=-1).tolist() == found[0, 6:].tolist()


@pytest.mark.parametrize("draft", [None, SelfDraft(2, 4, fallback=False), SelfDraft(1, fallback=False, wave=True)], ids=str)
def test_a_method_notes_the_loops_that_its_tokens_ran(model: LoopedModel, draft: SelfDraft | None) -> None:
    """Whoever runs them: with as many a cache goes on, with more it is refused."""
    cache, method, ids = LoopCache(), Greedy(draft=draft), random_ids(1, 5)
    for _ in range(2):
        found = model.generate(ids, custom_generate=method, past_key_values=cache, **GREEDY)
        assert torch.equal(found, model.generate(ids, **GREEDY))
        ids = torch.cat([found, random_ids(1, 3)], dim=1)
    ids = model.generate(ids, custom_generate=Greedy(), past_key_values=cache, num_loops=1, **GREEDY)
    assert cache.length > BLOCK  # more than there is room for at later loops
    with pytest.raises(ValueError, match="ran num_loops=1, which cannot be seen at loop 2"):
        model.generate(ids, custom_generate=method, past_key_values=cache, **GREEDY)


# Every way of choosing


def test_sampling_depends_on_the_generator_alone(model: LoopedModel) -> None:
    ids = random_ids(2, 5)
    first = sampled(model, ids)
    assert torch.equal(first, sampled(model, ids))
    assert torch.equal(first, sampled(model, ids, use_cache=False))
    assert not torch.equal(first, sampled(model, ids, temperature=5.0))
    assert torch.equal(sampled(model, ids, top_k=1), model.generate(ids, **GREEDY))
    assert torch.equal(sampled(model, ids, top_p=1e-6), model.generate(ids, **GREEDY))


def test_several_sequences_a_prompt(model: LoopedModel) -> None:
    ids, mask = left_padded(texts(3, 5))
    found = sampled(model, ids, attention_mask=mask, num_return_sequences=3)
    assert found.shape == (6, 17)
    assert torch.equal(found[:, :5], ids.repeat_interleave(3, dim=0))
    assert len(found[:3].unique(dim=0)) > 1


def beam_search_by_hand(model: LoopedModel, ids: torch.Tensor, beams: int, steps: int) -> tuple[list[int], float]:
    """The best of `beams` texts [steps] by their summed log-probability, every prefix recomputed."""
    best: list[tuple[float, list[int]]] = [(0.0, ids[0].tolist())]
    for _ in range(steps):
        grown = []
        for score, text in best:
            logits = loop_logits(model, torch.tensor([text]), loops=[model.num_loops])[0, 0, -1]
            values, tokens = logits.log_softmax(dim=-1).topk(beams)
            grown += [(score + float(value), [*text, int(token)]) for value, token in zip(values, tokens, strict=True)]
        best = sorted(grown, reverse=True)[:beams]
    return best[0][1], best[0][0]


def test_beam_search_finds_what_a_search_by_hand_finds(model: LoopedModel) -> None:
    ids = random_ids(1, 4)
    output = model.generate(
        ids, num_beams=3, max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    text, score = beam_search_by_hand(model, ids, beams=3, steps=6)
    assert output.sequences[0].tolist() == text
    assert float(output.sequences_scores[0]) * 6 == pytest.approx(score, abs=1e-3)
    assert len(output.scores) == 6


def test_beam_search_in_a_padded_batch_equals_each_row_alone(model: LoopedModel) -> None:
    rows = texts(3, 7)
    ids, mask = left_padded(rows)
    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 2, **GREEDY}
    together = model.generate(ids, attention_mask=mask, **options).view(2, 2, -1)
    for row, found in zip(rows, together, strict=True):
        alone = model.generate(row[None], **options)[:, len(row) :]
        assert torch.equal(found[:, 7:], alone)


def test_scores_and_logits_are_returned(model: LoopedModel) -> None:
    ids = random_ids(2, 5)
    output = model.generate(
        ids, **GREEDY, return_dict_in_generate=True, output_scores=True, output_logits=True, repetition_penalty=1.3
    )
    wanted = loop_logits(model, output.sequences[:, :-1], loops=[model.num_loops])[:, 0, 4:]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), wanted, rtol=0, atol=2e-4)
    assert len(output.scores) == 12
    assert not torch.equal(torch.stack(output.scores), torch.stack(output.logits))


class Only(LogitsProcessor):
    """Allows a few tokens only."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        allowed = torch.full_like(scores, -torch.inf)
        allowed[:, self.tokens] = scores[:, self.tokens]
        return allowed


def test_logits_processors(model: LoopedModel) -> None:
    found = model.generate(random_ids(2, 5), logits_processor=[Only(3, 8, 9)], **GREEDY)
    assert set(found[:, 5:].flatten().tolist()) <= {3, 8, 9}
    unrepeated = model.generate(random_ids(1, 5), no_repeat_ngram_size=1, **GREEDY)
    assert len(unrepeated[0].unique()) == len(unrepeated[0])


# Stopping and streaming


def test_stop_strings(model: LoopedModel) -> None:
    tokenizer = byte_tokenizer()
    ids = torch.tensor([tokenizer("count: ")["input_ids"]])
    allowed = [Only(*tokenizer("abcxyz")["input_ids"])]
    free = str(tokenizer.decode(model.generate(ids, logits_processor=allowed, **GREEDY)[0, ids.shape[1] :]))
    stop = free[4:6]
    found = model.generate(ids, logits_processor=allowed, stop_strings=[stop], tokenizer=tokenizer, **GREEDY)
    assert tokenizer.decode(found[0, ids.shape[1] :]) == free[: free.index(stop) + 2]


class AfterSeven(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 7)


def test_stopping_criteria_and_end_of_text(model: LoopedModel) -> None:
    ids = random_ids(1, 4)
    assert model.generate(ids, stopping_criteria=[AfterSeven()], **GREEDY).shape == (1, 7)
    assert model.generate(ids, logits_processor=[Only(EOS)], eos_token_id=EOS, **GREEDY)[0, 4:].tolist() == [EOS]


class Heard(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_streamers(model: LoopedModel, capsys: pytest.CaptureFixture[str]) -> None:
    ids, heard = random_ids(1, 4), Heard()
    found = model.generate(ids, streamer=heard, **GREEDY)
    assert heard.ended and heard.tokens == found[0].tolist()
    tokenizer = byte_tokenizer()
    letters = [Only(*tokenizer("abcdefgh")["input_ids"])]
    found = model.generate(ids, streamer=TextStreamer(tokenizer, skip_prompt=True), logits_processor=letters, **GREEDY)  # pyright: ignore
    assert capsys.readouterr().out.strip() == tokenizer.decode(found[0, 4:])


def test_a_custom_loop_gets_streamer_tokenizer_and_stop_strings(own_model: LoopedModel) -> None:
    """transformers drops these for a callable `custom_generate`; the looped models hand them on."""
    seen: dict[str, Any] = {}

    def loop(model: LoopedModel, input_ids: torch.Tensor, *, streamer: Any, tokenizer: Any, **kwargs: Any) -> torch.Tensor:
        seen.update(kwargs, streamer=streamer, tokenizer=tokenizer)
        return input_ids

    heard, tokenizer, ids = Heard(), byte_tokenizer(), random_ids(1, 4)
    found = own_model.generate(
        ids, custom_generate=loop, streamer=heard, tokenizer=tokenizer, stop_strings=["x"], max_new_tokens=3
    )
    assert torch.equal(found, ids)
    assert seen["streamer"] is heard and seen["tokenizer"] is tokenizer
    assert "StopStringCriteria" in [type(criterion).__name__ for criterion in seen["stopping_criteria"]]
    with pytest.raises(ValueError, match="stop_strings needs the tokenizer"):
        own_model.generate(ids, custom_generate=loop, stop_strings=["x"])


# Refused


@pytest.mark.parametrize("name", ["static", "offloaded", "quantized"])
def test_other_caches_are_refused_by_name(model: LoopedModel, name: str) -> None:
    with pytest.raises(ValueError, match=rf"cache_implementation='{name}': .* its own cache; leave it unset"):
        model.generate(random_ids(1, 3), cache_implementation=name, **GREEDY)


def test_another_cache_is_refused(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache: a looped model needs a loopcd LoopCache"):
        model.generate(random_ids(1, 3), past_key_values=DynamicCache(), **GREEDY)
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache"):
        model(random_ids(1, 3), past_key_values=DynamicCache())


def test_leaving_at_a_layer_is_refused(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="assistant_early_exit=1: a looped model stops at a loop, not at a layer"):
        model.generate(random_ids(1, 3), assistant_early_exit=1, **GREEDY)


def test_generating_past_the_context(model: LoopedModel) -> None:
    with pytest.raises(ValueError, match="257 tokens do not fit the model's context of 256"):
        model.generate(random_ids(1, 250), max_new_tokens=20, do_sample=False, num_loops=1)
