"""SelfEval: how candidates are made, and that the model's own judgement picks among them."""

from typing import Any

import pytest
import torch

import loopcd
from decoding.labels import A, B, labelled_model, labelled_tokenizer
from decoding.runs import run
from decoding.slow import Slow
from loopcd.decoding.self_eval import label_ids
from loopcd.models import LoopedModel
from tools import byte_tokenizer

PROMPT = "What is 1+2?"
NEW = 6


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return labelled_tokenizer()


@pytest.fixture(scope="module", params=["huginn", "ouro"])
def model(request: pytest.FixtureRequest) -> LoopedModel:
    return labelled_model(request.param)


def candidates_of(model: LoopedModel, tokenizer: Any, prompt: Any, **options: Any) -> list[loopcd.Generation]:
    """Four candidates, made without SelfEval's judgement: each is the only one of its call."""
    if model.has_initial_state:
        return [
            loopcd.generate(model, tokenizer, prompt, loopcd.Greedy(), max_new_tokens=NEW, init_seed=k, **options)
            for k in range(4)
        ]
    methods = [loopcd.SelfEval(1, seed=k) for k in range(4)]
    return [loopcd.generate(model, tokenizer, prompt, method, max_new_tokens=NEW, **options) for method in methods]


def judged(slow: Slow, tokenizer: Any, question: str, answer: str) -> float:
    text = f"Q: {question}\nAnswer: {answer.strip()}\nIs the above answer correct?\nA) Yes\nB) No\nAnswer:"
    logits = slow.said(tokenizer(text).input_ids, slow.loops)
    return float(logits[A] - logits[B])


@pytest.mark.parametrize("prompt", [PROMPT, "Name a colour."])
def test_it_keeps_the_candidate_that_the_model_trusts_most(model: LoopedModel, tokenizer: Any, prompt: str) -> None:
    slow, candidates = Slow(model), candidates_of(model, tokenizer, prompt)
    assert len({made.text for made in candidates}) > 1
    values = [judged(slow, tokenizer, prompt, made.text) for made in candidates]
    assert sorted(values)[-1] - sorted(values)[-2] > 1e-3 or len(set(values)) == 1
    chosen = loopcd.generate(model, tokenizer, prompt, loopcd.SelfEval(), max_new_tokens=NEW)
    assert chosen == candidates[values.index(max(values))]


def test_every_row_of_a_batch_has_its_own_choice(model: LoopedModel, tokenizer: Any) -> None:
    prompts = [PROMPT, "Hi", "A rather longer question than the others?"]
    batch = loopcd.generate(model, tokenizer, prompts, loopcd.SelfEval(), max_new_tokens=NEW)
    slow = Slow(model)
    by_candidate = zip(*candidates_of(model, tokenizer, prompts), strict=True)
    for prompt, made, options in zip(prompts, batch, by_candidate, strict=True):
        values = [judged(slow, tokenizer, prompt, each.text) for each in options]
        assert made == options[values.index(max(values))]


def test_the_question_may_be_taken_out_of_the_prompt(model: LoopedModel, tokenizer: Any) -> None:
    slow, candidates = Slow(model), candidates_of(model, tokenizer, f"Example.\n{PROMPT}")
    values = [judged(slow, tokenizer, PROMPT, made.text) for made in candidates]
    method = loopcd.SelfEval(question=lambda text: text.splitlines()[-1])
    chosen = loopcd.generate(model, tokenizer, f"Example.\n{PROMPT}", method, max_new_tokens=NEW)
    assert chosen == candidates[values.index(max(values))]


def test_an_answer_is_judged_without_its_stop_string(model: LoopedModel, tokenizer: Any) -> None:
    made = candidates_of(model, tokenizer, PROMPT)
    texts = [[tokenizer.decode([token]) for token in each.token_ids] for each in made]
    places = [(k, at) for k in range(4) for at in range(1, NEW - 1) if texts[k][at].isascii()]
    which, at = next((k, at) for k, at in places if texts[k].index(texts[k][at]) == at)
    stop = texts[which][at]
    candidates, slow = candidates_of(model, tokenizer, PROMPT, stop=stop), Slow(model)
    assert candidates[which].finish_reason == "stop" and len(candidates[which].token_ids) == at + 1
    values = [judged(slow, tokenizer, PROMPT, made.text) for made in candidates]
    chosen = loopcd.generate(model, tokenizer, PROMPT, loopcd.SelfEval(), max_new_tokens=NEW, stop=stop)
    assert chosen == candidates[values.index(max(values))]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.7), (0.7, 0.9)])
@torch.no_grad()
def test_ouro_samples_from_the_nucleus(tokenizer: Any, temperature: float, top_p: float) -> None:
    model, seen = labelled_model("ouro"), set()
    for seed in range(4):
        method = loopcd.SelfEval(1, temperature, top_p, seed=seed)
        made = loopcd.generate(model, tokenizer, PROMPT, method, max_new_tokens=NEW)
        seen.add(tuple(made.token_ids))
        text = tokenizer(PROMPT).input_ids
        for token in made.token_ids:
            p = (model(torch.tensor([text])).logits[0, -1].double() / temperature).softmax(dim=-1)
            assert float(p[p > p[token]].sum()) < top_p + 1e-4  # tokens ahead of it do not fill the nucleus yet
            text.append(token)
    assert len(seen) == 4


def test_huginn_starts_from_other_states_and_takes_the_best_token(tokenizer: Any) -> None:
    model = labelled_model("huginn")
    made = [loopcd.generate(model, tokenizer, PROMPT, loopcd.SelfEval(1, seed=k), max_new_tokens=NEW) for k in range(4)]
    assert made == [
        loopcd.generate(model, tokenizer, PROMPT, loopcd.Greedy(), max_new_tokens=NEW, init_seed=k) for k in range(4)
    ]
    assert len({tuple(each.token_ids) for each in made}) > 1


def test_through_transformers_generate(model: LoopedModel, tokenizer: Any) -> None:
    inputs = tokenizer([PROMPT, "Hi"], return_tensors="pt", padding=True, return_token_type_ids=False)
    output = run(model, inputs.input_ids, loopcd.SelfEval(), mask=inputs.attention_mask, count=NEW, tokenizer=tokenizer)
    wanted = loopcd.generate(model, tokenizer, [PROMPT, "Hi"], loopcd.SelfEval(), max_new_tokens=NEW)
    assert output.sequences[:, inputs.input_ids.shape[1] :].tolist() == [made.token_ids for made in wanted]


def test_labels_must_be_single_and_different_tokens(model: LoopedModel, tokenizer: Any) -> None:
    assert label_ids(tokenizer) == (A, B)
    with pytest.raises(ValueError, match="the label ' A' as one token, but this tokenizer makes 2 of it"):
        loopcd.generate(model, byte_tokenizer(), PROMPT, loopcd.SelfEval(), max_new_tokens=2)

    class Blind:
        def __call__(self, text: str, **_: Any) -> Any:
            return type("Encoded", (), {"input_ids": [7]})

    with pytest.raises(ValueError, match='needs " A" and " B" to be different tokens'):
        label_ids(Blind())


def test_it_cannot_be_streamed(model: LoopedModel, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="SelfEval cannot be streamed"):
        list(loopcd.stream(model, tokenizer, PROMPT, loopcd.SelfEval(), max_new_tokens=2))
    from transformers import TextStreamer

    with pytest.raises(ValueError, match="SelfEval cannot be streamed"):
        run(model, torch.tensor([[1, 2]]), loopcd.SelfEval(), streamer=TextStreamer(tokenizer), tokenizer=tokenizer)


def test_it_can_be_interrupted_within_any_candidate(model: LoopedModel, tokenizer: Any) -> None:
    """The method's work is many texts long, and whoever waits for it may go away."""

    class Gone(Exception):
        pass

    asked: list[int] = []

    def count(last: int) -> None:
        asked.append(1)
        if len(asked) == last:
            raise Gone

    options: dict[str, Any] = {"max_new_tokens": NEW}
    whole = loopcd.generate(model, tokenizer, PROMPT, loopcd.SelfEval(), interrupt=lambda: count(-1), **options)
    assert whole == loopcd.generate(model, tokenizer, PROMPT, loopcd.SelfEval(), **options)
    tokens = len(asked)
    assert tokens > NEW  # it is asked in every candidate
    for last in (1, tokens // 2, tokens):
        asked.clear()
        with pytest.raises(Gone):
            loopcd.generate(model, tokenizer, PROMPT, loopcd.SelfEval(), interrupt=lambda last=last: count(last), **options)
        assert len(asked) == last
