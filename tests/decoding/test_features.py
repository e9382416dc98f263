"""What transformers' `generate` offers, with a method as `custom_generate`."""

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, TextIteratorStreamer, TextStreamer, set_seed

import loopcd
from decoding.runs import run, tokens_of
from decoding.slow import Slow, Text, probabilities
from loopcd.models import LoopedModel
from tools import EOS, PAD, left_padded, random_ids

METHOD = loopcd.LoopCD(1, 0.9)
IDS = random_ids(1, 6, seed=20)
INF = float("inf")


def contrast_scores(model: LoopedModel, text: Text, plausibility: float = 0.1) -> dict[int, float]:
    """softmax(s) over the plausible tokens, in float64."""
    slow = Slow(model)
    p_e, p_a = probabilities(slow.said(text, slow.loops)), probabilities(slow.early(text, 1))
    weights = {v: p / p_a[v] ** 0.9 for v, p in enumerate(p_e) if p >= plausibility * max(p_e)}
    return {v: weight / sum(weights.values()) for v, weight in weights.items()}


# Scores


def test_scores_are_the_contrast_and_logits_the_expert(own_model: LoopedModel) -> None:
    output = run(own_model, IDS, METHOD, count=4, output_scores=True, output_logits=True)
    assert len(output.scores) == len(output.logits) == 4
    slow, text = Slow(own_model), Text(IDS[0].tolist())
    for step, token in enumerate(output.sequences[0, 6:].tolist()):
        torch.testing.assert_close(output.logits[step][0].double(), slow.said(text, slow.loops), rtol=0, atol=2e-4)
        wanted, found = contrast_scores(own_model, text), output.scores[step][0]
        assert {v for v, score in enumerate(found.tolist()) if score > -INF} == set(wanted)
        assert all(float(found[v].exp()) == pytest.approx(p, abs=2e-4) for v, p in wanted.items())
        assert token == max(wanted, key=lambda v: wanted[v])
        text.append(token)


def test_nothing_is_kept_that_was_not_asked_for(own_model: LoopedModel) -> None:
    output = run(own_model, IDS, METHOD, count=2)
    assert output.scores is None and output.logits is None
    plain = own_model.generate(IDS, custom_generate=METHOD, max_new_tokens=2, do_sample=False)
    assert isinstance(plain, torch.Tensor) and plain.equal(output.sequences)


# Sampling


def test_draws_follow_the_contrast(own_model: LoopedModel) -> None:
    """2000 draws of one token: every frequency within four deviations of softmax(s), and nothing implausible."""
    draws = 2000
    set_seed(7)
    drawn = run(own_model, IDS, METHOD, count=1, do_sample=True, num_return_sequences=draws).sequences[:, -1]
    wanted, counts = contrast_scores(own_model, Text(IDS[0].tolist())), drawn.bincount(minlength=own_model.config.vocab_size)
    assert len(wanted) > 3 and counts.sum() == draws
    for token, count in enumerate(counts.tolist()):
        p = wanted.get(token, 0.0)
        assert abs(count - draws * p) <= 4 * (draws * p * (1 - p)) ** 0.5


def test_loopcd_generate_draws_from_the_same_distribution(own_model: LoopedModel) -> None:
    draws, temperature = 700, 2.0
    made = loopcd.generate(
        own_model, None, [IDS[0].tolist()] * draws, METHOD, max_new_tokens=1, temperature=temperature, batch_size=350
    )
    flattened = {v: p ** (1 / temperature) for v, p in contrast_scores(own_model, Text(IDS[0].tolist())).items()}
    counts = torch.tensor([each.token_ids[0] for each in made]).bincount(minlength=own_model.config.vocab_size)
    for token, count in enumerate(counts.tolist()):
        p = flattened.get(token, 0.0) / sum(flattened.values())
        assert abs(count - draws * p) <= 4 * (draws * p * (1 - p)) ** 0.5


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"temperature": 0.5}, lambda p: p == p),
        ({"top_k": 2}, lambda p: p >= p.sort(descending=True).values[1]),
        ({"top_p": 0.6}, lambda p: p.cumsum(dim=0) - p < 0.6),
        ({"min_p": 0.4}, lambda p: p >= 0.4 * p.max()),
    ],
)
def test_warpers_come_after_the_contrast(own_model: LoopedModel, options: dict[str, Any], kept: Any) -> None:
    options = {"do_sample": True, "top_k": 0, **options}
    output = run(own_model, IDS, METHOD, count=1, output_scores=True, **options)
    contrasted = contrast_scores(own_model, Text(IDS[0].tolist()))
    tokens = sorted(contrasted, key=lambda v: -contrasted[v])
    p = torch.tensor([contrasted[v] for v in tokens])
    scores = output.scores[0][0]
    possible = {v for v, score in enumerate(scores.tolist()) if score > -INF}
    assert possible == {v for v, keep in zip(tokens, kept(p).tolist(), strict=True) if keep}
    assert possible < set(range(own_model.config.vocab_size))  # what was implausible stays impossible
    assert len(possible) < len(tokens) or "temperature" in options
    if "temperature" in options:
        wanted = (p.log() / 0.5).softmax(dim=0)
        torch.testing.assert_close(scores[torch.tensor(tokens)].softmax(dim=0), wanted, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", [loopcd.Greedy(), METHOD, loopcd.NoiseCD()])
def test_the_same_seed_gives_the_same_text(own_model: LoopedModel, method: Any) -> None:
    made = []
    for seed in (1, 1, 2):
        set_seed(seed)
        made.append(tokens_of(own_model, IDS, method, do_sample=True, top_k=0, num_return_sequences=2))
    assert made[0] == made[1] != made[2]
    assert made[0][0] != made[0][1]


# Processors and stopping


def test_repetition_penalty_works_on_the_contrast(own_model: LoopedModel) -> None:
    ids = torch.cat([IDS, IDS], dim=1)
    plain = run(own_model, ids, METHOD, count=1, output_scores=True).scores[0][0]
    penalised = run(own_model, ids, METHOD, count=1, output_scores=True, repetition_penalty=3.0).scores[0][0]
    seen = torch.zeros_like(plain, dtype=torch.bool).index_fill(0, ids[0], True)
    wanted = torch.where(seen & (plain > -INF), plain * 3.0, plain)  # log probabilities are negative
    torch.testing.assert_close(penalised, wanted)


def test_repetition_penalty_changes_the_text(own_model: LoopedModel) -> None:
    loopy = tokens_of(own_model, IDS, loopcd.Greedy(), count=30)[0]
    varied = tokens_of(own_model, IDS, loopcd.Greedy(), count=30, repetition_penalty=50.0)[0]
    assert len(set(varied)) > len(set(loopy))


class Ban(LogitsProcessor):
    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.index_fill(1, torch.tensor([self.token]), -INF)


def test_a_processor_of_ones_own(own_model: LoopedModel) -> None:
    first = tokens_of(own_model, IDS, METHOD, count=1)[0][0]
    contrasted = contrast_scores(own_model, Text(IDS[0].tolist()))
    second = sorted(contrasted, key=lambda v: -contrasted[v])[1]
    assert tokens_of(own_model, IDS, METHOD, count=1, logits_processor=LogitsProcessorList([Ban(first)])) == [[second]]


def test_the_end_token_ends_its_row_and_the_rest_is_padding(own_model: LoopedModel) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (4, 9)]
    ids, mask = left_padded(rows)
    free = tokens_of(own_model, ids, METHOD, mask=mask, count=8)
    at = next(at for at in range(7) if free[0].index(free[0][at]) == at and free[0][at] not in free[1])
    ended = run(own_model, ids, METHOD, mask=mask, count=8, eos_token_id=free[0][at], pad_token_id=PAD)
    new = ended.sequences[:, ids.shape[1] :].tolist()
    assert new == [free[0][: at + 1] + [PAD] * (7 - at), free[1]]


def test_stop_strings(own_model: LoopedModel, tokenizer: Any) -> None:
    options = {"count": 30, "repetition_penalty": 3.0, "tokenizer": tokenizer}  # so that the text does not go in circles
    free = tokens_of(own_model, IDS, METHOD, **options)[0]
    pieces = [tokenizer.decode([token]) for token in free]
    at = next(at for at in range(1, 29) if pieces[at].isascii() and pieces.index(pieces[at]) == at)
    assert tokens_of(own_model, IDS, METHOD, **options, stop_strings=[pieces[at]]) == [free[: at + 1]]
    with pytest.raises(ValueError, match="stop_strings needs the tokenizer"):
        tokens_of(own_model, IDS, METHOD, stop_strings=["x"])


class AfterThree(StoppingCriteria):
    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= 9)


def test_a_criterion_of_ones_own(own_model: LoopedModel) -> None:
    assert len(tokens_of(own_model, IDS, METHOD, stopping_criteria=[AfterThree()])[0]) == 3
    assert len(tokens_of(own_model, IDS, METHOD, max_length=8, count=None)[0]) == 2


class Scored(StoppingCriteria):
    """Notes what it was shown, and stops nothing."""

    def __init__(self) -> None:
        self.seen: Any = None

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.seen = scores
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def test_criteria_get_the_scores_where_they_are_kept(own_model: LoopedModel) -> None:
    unkept, criterion = Scored(), Scored()
    own_model.generate(IDS, max_new_tokens=4, do_sample=False, stopping_criteria=[unkept], custom_generate=METHOD)
    assert unkept.seen is None
    kept = run(own_model, IDS, METHOD, count=4, stopping_criteria=[criterion], output_scores=True)
    assert len(criterion.seen) == 4 and all(map(torch.equal, criterion.seen, kept.scores))


def test_rows_that_ended_at_a_string_are_padded(own_model: LoopedModel, tokenizer: Any) -> None:
    """Also where the model has no end token."""
    ids = random_ids(2, 6)
    free = tokens_of(own_model, ids, METHOD, count=8)
    at = next(at for at in range(7) if tokenizer.decode(free[0][at]).isascii() and free[0][at] not in [*free[0][:at], *free[1]])
    options = {"stop_strings": [tokenizer.decode(free[0][at])], "tokenizer": tokenizer, "pad_token_id": PAD}
    assert tokens_of(own_model, ids, METHOD, count=8, **options) == [free[0][: at + 1] + [PAD] * (7 - at), free[1]]


# Streamers


class Collector:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, value: Any) -> None:
        self.seen.append(value.flatten().tolist())

    def end(self) -> None:
        self.seen.append("end")


def test_streamers(own_model: LoopedModel, tokenizer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    collector = Collector()
    new = tokens_of(own_model, IDS, METHOD, streamer=collector)[0]
    assert collector.seen == [IDS[0].tolist(), *([token] for token in new), "end"]
    tokens_of(own_model, IDS, METHOD, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == tokenizer.decode(new) + "\n"
    iterator = TextIteratorStreamer(tokenizer, skip_prompt=True)
    tokens_of(own_model, IDS, METHOD, streamer=iterator)
    assert "".join(iterator) == tokenizer.decode(new)


# Batches, loops and states


def test_several_sequences_of_padded_prompts(own_model: LoopedModel) -> None:
    ids, mask = left_padded([random_ids(1, time, seed=time)[0] for time in (4, 9)])
    set_seed(0)
    made = tokens_of(own_model, ids, METHOD, mask=mask, do_sample=True, num_return_sequences=3)
    assert len(made) == 6 and len({tuple(row) for row in made}) == 6
    greedy = tokens_of(own_model, ids, METHOD, mask=mask)
    sure = tokens_of(own_model, ids, METHOD, mask=mask, do_sample=True, temperature=1e-4, num_return_sequences=2)
    assert sure == [greedy[0], greedy[0], greedy[1], greedy[1]]


def test_the_number_of_loops_of_a_call(own_model: LoopedModel) -> None:
    for loops in (2, 6):
        output = run(own_model, IDS, METHOD, count=5, num_loops=loops)
        assert output.loops.tolist() == [[loops] * 5]
    assert own_model.num_loops == 4
    plain = own_model.generate(IDS, max_new_tokens=5, do_sample=False, num_loops=2)
    assert run(own_model, IDS, loopcd.Greedy(), count=5, num_loops=2).sequences.equal(plain)


def test_the_initial_state_of_a_call(huginn: LoopedModel, ouro: LoopedModel) -> None:
    made = [tokens_of(huginn, IDS, METHOD, init_seed=seed) for seed in (None, 0, 0, 1)]
    assert made[1] == made[2] and len({str(each) for each in made}) == 3
    plain = huginn.generate(IDS, max_new_tokens=10, do_sample=False, init_seed=3)
    assert run(huginn, IDS, loopcd.Greedy(), init_seed=3).sequences.equal(plain)
    with pytest.raises(ValueError, match="init_seed"):
        tokens_of(ouro, IDS, METHOD, init_seed=0)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_prompt_read_in_chunks(own_model: LoopedModel, chunk: int) -> None:
    ids, mask = left_padded([random_ids(1, time, seed=time)[0] for time in (4, 9)])
    whole = tokens_of(own_model, ids, METHOD, mask=mask)
    assert tokens_of(own_model, ids, METHOD, mask=mask, prefill_chunk_size=chunk) == whole


def test_positions_are_those_of_the_mask(own_model: LoopedModel) -> None:
    ids, mask = left_padded([random_ids(1, time, seed=time)[0] for time in (4, 9)])
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    wanted = tokens_of(own_model, ids, METHOD, mask=mask)
    assert tokens_of(own_model, ids, METHOD, mask=mask, position_ids=positions) == wanted
    with pytest.raises(ValueError, match="position_ids other than those of the attention mask have no effect"):
        tokens_of(own_model, ids, METHOD, mask=mask, position_ids=positions + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exit_threshold": 0.5}, "exit_threshold has no effect with LoopCD"),
        ({"exit_at_step": 0}, "exit_at_step has no effect with LoopCD"),
        ({"use_weighted_exit": True}, "use_weighted_exit has no effect with LoopCD"),
        ({"inputs_embeds": torch.zeros(1, 6, 32)}, "give input_ids of at least one token, not inputs_embeds"),
    ],
)
def test_what_a_method_would_ignore_is_refused(ouro: LoopedModel, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokens_of(ouro, IDS, METHOD, **given)


def test_positions_may_be_told_of_the_tokens_behind_a_cache(own_model: LoopedModel) -> None:
    first = run(own_model, IDS, METHOD, count=4)
    text, cache = first.sequences, first.past_key_values
    positions = torch.arange(cache.length, text.shape[1])[None]
    made = tokens_of(own_model, text, METHOD, count=5, past_key_values=cache, position_ids=positions)
    assert made == [tokens_of(own_model, IDS, METHOD, count=9)[0][4:]]


def test_without_a_cache_of_its_own(own_model: LoopedModel) -> None:
    assert tokens_of(own_model, IDS, METHOD, use_cache=False) == tokens_of(own_model, IDS, METHOD)


def test_rows_that_ended_do_not_disturb_the_others(own_model: LoopedModel) -> None:
    rows = [random_ids(1, time, seed=time)[0] for time in (3, 6, 9)]
    ids, mask = left_padded(rows)
    free = tokens_of(own_model, ids, METHOD, mask=mask, count=12)
    end = free[1][2]
    batch = tokens_of(own_model, ids, METHOD, mask=mask, count=12, eos_token_id=end, pad_token_id=EOS)
    for row, made in zip(free, batch, strict=True):
        stop = row.index(end) + 1 if end in row else 12
        assert made == (row[:stop] + [EOS] * 12)[: len(made)]


@pytest.mark.parametrize(
    "method", [loopcd.LoopCD("auto", 0.9, 0.01), loopcd.LoopCD(1, 0.9, 1e-9), loopcd.NoiseCD(plausibility=0.01)]
)
def test_contrasts_under_autocast(own_model: LoopedModel, method: Any) -> None:
    batch = loopcd.Batch(own_model)
    with torch.autocast("cpu", torch.bfloat16):
        alone, some = (tokens_of(own_model, random_ids(rows, 5), method, count=4) for rows in (1, 5))
        handles = [batch.submit(row, method, max_new_tokens=4) for row in random_ids(2, 5).tolist()]
        assert len(alone) == 1 and len(some) == 5 and all(len(each.result().token_ids) == 4 for each in handles)
