"""Tokens that a processor rules out are ruled out before a method looks for plausible ones."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

import loopcd
from decoding.runs import run, tokens_of
from loopcd import MTI, EarlyExit, Greedy, LoopCD, LoopGuidance, NoiseCD, SelfDraft
from loopcd.decoding import rules
from loopcd.models import LoopedModel
from tools import EOS, PAD, VOCABULARY, byte_tokenizer, left_padded, random_ids

DRAFT = SelfDraft(2, 4, fallback=False)
METHODS: dict[str, Any] = {
    "greedy": Greedy(),
    "loopcd": LoopCD(1, 0.9),
    "own coda": LoopCD(1, 0.9, coda="own"),
    "auto": LoopCD("auto", 0.9),
    "where": LoopCD(1, 0.9, where="hard"),
    "guidance": LoopGuidance(),
    "noisecd": NoiseCD(0.5, 0.9),
    "mti": MTI(entropy_threshold=0.1),
    "exit": LoopCD(1, 0.9, exit=EarlyExit(0.5, min_loops=2)),
    "drafted greedy": Greedy(draft=DRAFT),
    "drafted loopcd": LoopCD(1, 0.9, draft=DRAFT),
}
IDS, MASK = left_padded([random_ids(1, 6, seed=20)[0], random_ids(1, 4, seed=21)[0]])
INF = float("inf")
TOKENIZER = byte_tokenizer()
EVEN = list(range(0, VOCABULARY, 2))


class Even(LogitsProcessor):
    """A grammar: a token is followed by one of the other parity. Written as one would, and not known to loopcd."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        odd = torch.arange(scores.shape[1]) % 2
        return scores.masked_fill(odd[None] == input_ids[:, -1:] % 2, -INF)


def pairs(tokens: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(tokens))


def free(model: LoopedModel, method: Any) -> list[list[int]]:
    return tokens_of(model, IDS, method, mask=MASK, count=8, tokenizer=TOKENIZER)


def banned(model: LoopedModel, method: Any, count: int = 7, **options: Any) -> list[list[int]]:
    return tokens_of(model, IDS, method, mask=MASK, count=count, tokenizer=TOKENIZER, **options)


def repeats_no_pair(made: list[list[int]]) -> bool:
    texts = [[token for token in prompt if token != PAD] + row for prompt, row in zip(IDS.tolist(), made, strict=True)]
    return all(len(set(pairs(text))) == len(pairs(text)) for text in texts)


# what `generate` is given, how many tokens are made, and what must then hold of them
WAYS: list[tuple[dict[str, Any], int, Callable[[list[list[int]]], bool]]] = [
    ({"suppress_tokens": EVEN}, 7, lambda made: all(token % 2 for row in made for token in row)),
    ({"no_repeat_ngram_size": 2}, 16, repeats_no_pair),
    (
        {"min_new_tokens": 6, "eos_token_id": EVEN, "pad_token_id": PAD},
        7,
        lambda made: all(token % 2 for row in made for token in row[:6]),
    ),
    (
        {"logits_processor": LogitsProcessorList([Even()])},
        7,
        lambda made: all((a + b) % 2 for row in made for a, b in pairs(row)),
    ),
    (
        {"prefix_allowed_tokens_fn": lambda _, ids: [3, 5, 7 + len(ids)]},
        7,
        lambda made: all(token in (3, 5) or 13 <= token < 20 for row in made for token in row),
    ),
    ({"forced_eos_token_id": EOS}, 5, lambda made: all(row[-1] == EOS for row in made)),
]


@pytest.mark.parametrize("name", METHODS)
def test_every_way_to_ban(own_model: LoopedModel, name: str) -> None:
    """Every method once with draws and once without, each on another family; every other way on either."""
    method, number, family = METHODS[name], list(METHODS).index(name), int(own_model.has_initial_state)
    draws = {"do_sample": True, "top_k": 0} if (number + family) % 2 else {}
    first = sorted({row[0] for row in free(own_model, method)})
    made = banned(own_model, method, bad_words_ids=[[token] for token in first], **draws)
    assert not any(token in first for row in made for token in row) and all(len(row) == 7 for row in made)
    for options, count, holds in WAYS[(number // 2 + family) % 2 :: 2]:
        assert holds(banned(own_model, method, count=count, **options, **draws)), options


BANS: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": list(range(0, 256, 3))},
    {"logits_processor": LogitsProcessorList([Even()])},
]


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_is_its_rows_and_a_draft_its_method(own_model: LoopedModel, name: str) -> None:
    """Every method on every family; the ban is another one each time."""
    method, options = METHODS[name], BANS[(list(METHODS).index(name) + own_model.has_initial_state) % len(BANS)]
    together = banned(own_model, method, **options)
    if name != "noisecd":  # whose draw belongs to the step
        for row in range(2):
            ids = IDS[row : row + 1, (MASK[row] == 0).sum() :]
            assert tokens_of(own_model, ids, method, count=7, tokenizer=TOKENIZER, **options) == [together[row]]
    if method.draft is not None:
        plain = Greedy() if isinstance(method, Greedy) else LoopCD(1, 0.9)
        assert banned(own_model, plain, **options) == together


def test_the_plausible_set_is_that_of_what_is_possible(own_model: LoopedModel) -> None:
    """The best token is banned: what is plausible is measured against the next best, and then contrasted."""
    ids = random_ids(1, 6, seed=20)
    said = loopcd.loop_logits(own_model, ids)[0, :, -1]  # [loop, vocab]
    expert = said[-1].clone()
    order = expert.argsort(descending=True)[:5].tolist()
    expert[order] = -INF
    wanted = rules.contrast(expert, said[0], 0.9, rules.plausible(expert, 0.1))
    output = run(own_model, ids, LoopCD(1, 0.9), count=1, suppress_tokens=order, output_scores=True, output_logits=True)
    torch.testing.assert_close(output.scores[0][0], wanted, rtol=0, atol=2e-4)
    assert int(output.sequences[0, -1]) == int(wanted.argmax())
    assert bool(torch.isfinite(output.logits[0]).all())  # the expert's own, as ever


class Pushing(LogitsProcessor):
    """Adds, and rules out."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        scores[:, 10:20] += 30.0
        scores[:, 12] = -INF
        return scores


def test_what_a_processor_adds_is_added_to_the_scores(own_model: LoopedModel) -> None:
    plain = run(own_model, IDS[:1], LoopCD(1, 0.9, 1e-9), count=1, suppress_tokens=[12], output_scores=True).scores[0]
    pushed = run(own_model, IDS[:1], LoopCD(1, 0.9, 1e-9), count=1, logits_processor=[Pushing()], output_scores=True).scores[0]
    wanted = plain.clone()
    wanted[:, 10:20] += 30.0
    torch.testing.assert_close(pushed, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_possible_is_an_error(own_model: LoopedModel, name: str) -> None:
    everything = list(range(own_model.config.vocab_size))
    for options in ({}, {"do_sample": True}):
        with pytest.raises(ValueError, match="the logits processors rule out every token of row 0 after 6 tokens"):
            banned(own_model, METHODS[name], suppress_tokens=everything, **options)


class Thrice(LogitsProcessor):
    """Counts how often it is called."""

    calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        return scores


def test_a_processor_is_called_once_a_token(own_model: LoopedModel) -> None:
    for method in (Greedy(), LoopCD(1, 0.9), LoopGuidance()):
        counted = Thrice()
        tokens_of(own_model, IDS, method, mask=MASK, count=5, logits_processor=[counted])
        assert counted.calls == 5


@pytest.mark.parametrize("method", [Greedy(), LoopCD(1, 0.9), Greedy(draft=DRAFT)], ids=["greedy", "loopcd", "drafted"])
@pytest.mark.parametrize("sampled", [False, True])
def test_a_token_may_be_forced_by_a_score_beyond_all(own_model: LoopedModel, method: Any, sampled: bool) -> None:
    def force(ids: Any, scores: Any) -> Any:
        return scores.index_fill(1, torch.tensor([7 + ids.shape[1] % 2]), INF)

    made = tokens_of(
        own_model, IDS, method, mask=MASK, count=4, do_sample=sampled, logits_processor=LogitsProcessorList([force])
    )
    assert made == [[7, 8, 7, 8]] * 2
