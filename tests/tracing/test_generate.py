"""`loopcd.generate(..., trace=True)`: the trace is of the text that was generated, whatever generated it."""

import inspect
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import loopcd
from decoding.labels import labelled_model, labelled_tokenizer
from loopcd.cli import main
from loopcd.decoding.generate import generate as generate_texts
from loopcd.models import LoopedModel
from loopcd.tracing import TraceWriter, Written, choices, describe, read_traces, trace_texts
from tools import byte_tokenizer, save_model, tiny_huginn, tiny_ouro

PROMPTS = ["once", "a rather longer prompt, é", "x", "two words"]
NEW = 10
METHODS: dict[str, Any] = {
    "greedy": loopcd.Greedy(),
    "loopcd": loopcd.LoopCD(1, 0.9),
    "draft": loopcd.LoopCD(1, 0.9, draft=loopcd.SelfDraft(2, 3)),
    "noise": loopcd.NoiseCD(),
    "mti": loopcd.MTI(entropy_threshold=0.5),
    "hard only": loopcd.LoopCD(1, 0.9, where="hard"),
}


@pytest.fixture(params=["huginn", "ouro"])
def looped(request: pytest.FixtureRequest) -> LoopedModel:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_of_every_method(looped: LoopedModel, tokenizer: Any, method: Any) -> None:
    made = loopcd.generate(looped, tokenizer, PROMPTS, method, max_new_tokens=NEW, batch_size=3, trace=True)
    plain = loopcd.generate(looped, tokenizer, PROMPTS, method, max_new_tokens=NEW, batch_size=3)
    for number, (prompt, one, other) in enumerate(zip(PROMPTS, made, plain, strict=True)):
        trace = one.trace
        assert (one.token_ids, one.text, one.loops) == (other.token_ids, other.text, other.loops) and other.trace is None
        assert trace.token_ids.tolist() == one.token_ids and trace.text == one.text and trace.prompt == prompt
        assert trace.exit_loop.tolist() == one.loops and trace.full_depth
        assert trace.method == describe(method) and trace.extra == {"number": number}
        written = Written.of(prompt, other, describe(method), number=number)
        setting = {"amateur_loop": trace.amateur_loop, "strength": trace.strength}
        assert_near(trace, next(trace_texts(looped, tokenizer, [written], **setting)))


@dataclass(frozen=True)
class Sharper(loopcd.Greedy):
    """A method of the user's own, one of whose settings has no usual value."""

    levels: list[int] = field(default_factory=list, kw_only=True)
    factor: float = field(kw_only=True)


def test_a_method_that_must_be_told_something(looped: LoopedModel, tokenizer: Any) -> None:
    made: Any = loopcd.generate(looped, tokenizer, "x", Sharper(factor=2.0), max_new_tokens=2, trace=True)
    assert made.trace.method == "Sharper(factor=2.0)"
    assert describe(Sharper(factor=2.0, levels=[1])) == "Sharper(levels=[1], factor=2.0)"


def assert_near(one: Any, other: Any) -> None:
    assert one.winner.tolist() == other.winner.tolist() and one.unconstrained.tolist() == other.unconstrained.tolist()
    for name in ("logit", "runner_up", "log_norm", "entropy", "change", "top_logits", "plausible_logits"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-4)


def test_the_method_s_own_choice_is_in_it(looped: LoopedModel, tokenizer: Any) -> None:
    changed = 0
    for name, method in {"greedy": loopcd.Greedy(), "loopcd": loopcd.LoopCD(1, 0.9, 0.05)}.items():
        for made in loopcd.generate(looped, tokenizer, PROMPTS, method, max_new_tokens=NEW, trace=True):
            trace = made.trace
            assert choices(trace)[name].tolist() == made.token_ids
            assert int((trace.plausible_count > 1).sum()) == made.contested or name == "greedy"
            changed += int((trace.winner != trace.token_ids).sum())
            if name == "loopcd":
                assert (trace.amateur_loop, trace.strength, trace.plausibility) == (1, 0.9, 0.05)
    assert changed > 0


def test_a_wrapped_model_is_traced_as_the_one_inside(looped: LoopedModel, tokenizer: Any) -> None:
    wrapped, asked = torch.compile(looped, backend="eager"), (tokenizer, PROMPTS[0], loopcd.LoopCD(1, 0.9))
    traces = [loopcd.generate(each, *asked, max_new_tokens=NEW, trace=True).trace for each in (wrapped, looped)]
    assert traces[0] == traces[1]


def test_sampling_keeps_raw_logits(looped: LoopedModel, tokenizer: Any) -> None:
    options = {"max_new_tokens": NEW, "temperature": 1.7, "top_p": 0.9, "seed": 3}
    made = loopcd.generate(looped, tokenizer, PROMPTS, loopcd.Greedy(), trace=True, **options)
    assert any((each.trace.winner != each.trace.token_ids).any() for each in made)
    for prompt, each in zip(PROMPTS, made, strict=True):
        assert_near(each.trace, next(trace_texts(looped, tokenizer, [Written.of(prompt, each)])))


def test_exits_are_recorded_and_the_view_is_of_full_depth(looped: LoopedModel, tokenizer: Any) -> None:
    method = loopcd.Greedy(exit=loopcd.EarlyExit(threshold=0.5))
    made = loopcd.generate(looped, tokenizer, PROMPTS, method, max_new_tokens=NEW, trace=True)
    assert any(not each.trace.full_depth for each in made)
    for prompt, each in zip(PROMPTS, made, strict=True):
        assert each.trace.exit_loop.tolist() == each.loops and each.trace.num_loops == looped.num_loops
        assert_near(each.trace, next(trace_texts(looped, tokenizer, [Written.of(prompt, each)])))


def test_initial_states(huginn: LoopedModel, tokenizer: Any) -> None:
    drawn = loopcd.generate(huginn, tokenizer, PROMPTS, loopcd.Greedy(), max_new_tokens=NEW, init_seed=5, trace=True)
    for each in drawn:
        assert each.trace.init_seed == 5 and choices(each.trace)["greedy"].tolist() == each.token_ids


def test_the_initial_state_of_the_kept_candidate() -> None:
    """SelfEval on Huginn: each answer comes from the state of its own seed, and is greedy from there."""
    model, tokenizer = labelled_model("huginn"), labelled_tokenizer()
    made = loopcd.generate(model, tokenizer, PROMPTS, loopcd.SelfEval(seed=2), max_new_tokens=NEW, trace=True)
    assert {each.trace.init_seed for each in made} <= {2, 3, 4, 5} and len({each.trace.init_seed for each in made}) > 1
    for each in made:
        assert choices(each.trace)["greedy"].tolist() == each.token_ids


def test_self_eval_where_nothing_is_drawn_but_tokens() -> None:
    model, tokenizer = labelled_model("ouro"), labelled_tokenizer()
    made = loopcd.generate(model, tokenizer, PROMPTS, loopcd.SelfEval(), max_new_tokens=NEW, trace=True)
    assert all(each.trace.init_seed is None and each.trace.token_ids.tolist() == each.token_ids for each in made)


def test_stop_strings_and_numbers_of_loops(looped: LoopedModel, tokenizer: Any) -> None:
    whole = loopcd.generate(looped, tokenizer, "once", loopcd.Greedy(), max_new_tokens=NEW, num_loops=2)
    stop = tokenizer.decode(whole.token_ids[3:5], skip_special_tokens=True)
    made = loopcd.generate(looped, tokenizer, "once", loopcd.Greedy(), max_new_tokens=NEW, num_loops=2, stop=stop, trace=True)
    assert made.trace.num_loops == 2 and made.trace.text == made.text and stop not in made.text
    assert "".join(made.trace.pieces) == tokenizer.decode(made.token_ids)


def test_prompts_of_ids(looped: LoopedModel) -> None:
    (made,) = loopcd.generate(looped, None, [[5, 6, 7]], loopcd.Greedy(), max_new_tokens=3, trace=True)
    assert made.trace.prompt_ids.tolist() == [5, 6, 7] and made.trace.prompt == "" and made.trace.pieces == ("", "", "")
    assert made.trace.token_texts == {}


def test_a_writer_gets_them_batch_by_batch(huginn: LoopedModel, tokenizer: Any, tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "traces.npz") as writer:
        seen: list[int] = []
        options: Any = {"max_new_tokens": NEW, "batch_size": 1, "progress": lambda done, _: seen.append(writer.written)}
        made = loopcd.generate(huginn, tokenizer, PROMPTS, trace=writer, **options)
    assert seen == [1, 2, 3, 4]  # as soon as each is made
    traces = {trace.extra["number"]: trace for trace in read_traces(tmp_path / "traces.npz")}
    assert sorted(traces) == [0, 1, 2, 3]
    for number, each in enumerate(made):
        assert each.trace is None and traces[number].token_ids.tolist() == each.token_ids


def test_signature_and_refusals(huginn: LoopedModel, tokenizer: Any) -> None:
    assert {"prompts", "max_new_tokens", "trace", "init_seed"} <= set(inspect.signature(loopcd.generate).parameters)
    with pytest.raises(ValueError, match="trace='yes': True"):
        loopcd.generate(huginn, tokenizer, "x", loopcd.Greedy(), trace="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="trace=True: a function"):
        generate_texts(huginn, tokenizer, "x", trace=True)  # pyright: ignore[reportArgumentType]


def test_methods_are_described() -> None:
    assert describe(loopcd.Greedy()) == "Greedy()"
    assert describe(loopcd.LoopCD(2, plausibility=0.2)) == "LoopCD(amateur_loop=2, plausibility=0.2)"
    assert describe(loopcd.SelfEval(question=str.strip)) == "SelfEval(question=strip)"


def test_command(tmp_path: Path) -> None:
    folder, file = save_model(tmp_path / "model", tiny_huginn(1)), tmp_path / "traces.npz"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a\nlonger\n", encoding="utf-8")
    arguments = ["generate", "--file", prompts, "--model", folder, "--max-new-tokens", 4, "--trace", file, "--json"]
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    texts = [each["text"] for each in json.loads(result.stdout)["results"]]
    traces = sorted(read_traces(file), key=lambda trace: trace.extra["number"])
    assert [trace.text for trace in traces] == texts and [trace.prompt for trace in traces] == ["a", "longer"]
    streamed = CliRunner().invoke(main, ["generate", "x", "--model", str(folder), "--stream", "--trace", str(file)])
    assert streamed.exit_code == 2 and "--trace" in streamed.stderr


def test_a_model_from_a_folder_is_named_after_it(tmp_path: Path) -> None:
    model, _ = loopcd.load(save_model(tmp_path / "some-model", tiny_ouro(0)))
    assert (
        loopcd.generate(model, byte_tokenizer(), "x", loopcd.Greedy(), max_new_tokens=2, trace=True).trace.model == "some-model"
    )
