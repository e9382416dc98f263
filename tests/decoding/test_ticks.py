"""Texts that go on together, each at its own loop, get the tokens that they get alone."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import LogitsProcessorList, NoRepeatNGramLogitsProcessor

import loopcd
from loopcd.decoding.flight import Row
from loopcd.decoding.generate import MANY, Request, by_ticks
from loopcd.decoding.loop import Sampling
from loopcd.decoding.passes import TRIES, loop_seconds
from loopcd.decoding.ticks import Ticks
from loopcd.models import LoopedModel
from tools import LATER, MAKERS, byte_tokenizer

EARLY = loopcd.EarlyExit(0.9, min_loops=2)
METHODS = [
    loopcd.Greedy(),
    loopcd.Greedy(exit=EARLY),
    loopcd.Greedy(exit=replace(EARLY, exited="skip")),
    loopcd.LoopCD(1, 0.5, 0.05),
    loopcd.LoopCD(1, 0.5, 0.05, exit=EARLY),
    loopcd.LoopCD(1, 0.5, 0.05, coda="own"),
    loopcd.LoopCD("auto", 0.5, 0.05),
    loopcd.LoopGuidance(),
    loopcd.NoiseCD(plausibility=0.01),
]


def prompts(model: LoopedModel, count: int = 7) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 14, (count,), generator=generator).tolist()
    return [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def rows_of(model: LoopedModel, method: Any, sampling: Sampling | None = None, **options: Any) -> list[Row]:
    settings = {"temperature": 0.0, "init_seed": None, "num_loops": None, **options}
    made = []
    for number, prompt in enumerate(prompts(model)):
        request = Request(model, None, method, 4 + 3 * (number % 3), (), top_p=1.0, seed=0, **settings)
        job = request.job([prompt], [number])
        made.append(Row(method, job if sampling is None else replace(job, sampling=sampling)))
    return made


def together(rows: list[Row], at_once: int = 3) -> Ticks:
    ticks = Ticks(rows[0].job.model, at_once)
    for row in rows:
        ticks.add(row)
    for row in ticks.run():
        assert row.error is None
    return ticks


def alone(rows: list[Row]) -> list[tuple[list[int], list[int], list[bool], list[bool]]]:
    made = [row.method.rows(row.job) for row in rows]
    return [tuple(getattr(each, name)[0].tolist() for name in ("tokens", "loops", "contested", "touched")) for each in made]


def told(rows: list[Row]) -> list[tuple[list[int], list[int], list[bool], list[bool]]]:
    return [(row.tokens, row.loops, row.contested, row.touched) for row in rows]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_together_as_alone(model: LoopedModel, method: Any) -> None:
    rows = rows_of(model, method)
    together(rows)
    assert told(rows) == alone(rows_of(model, method))


def test_places_of_a_large_batch_are_filled_a_few_at_a_time(huginn: LoopedModel) -> None:
    rows = [row for _ in range(4) for row in rows_of(huginn, loopcd.Greedy(exit=EARLY))]
    ticks = together(rows, at_once=16)
    assert told(rows) == 4 * alone(rows_of(huginn, loopcd.Greedy(exit=EARLY)))
    assert sorted(ticks.free) == list(range(16)) and not ticks.busy


@pytest.mark.parametrize("exited", ["last", "skip"])
def test_the_gate_lets_tokens_leave_at_different_loops(ouro: LoopedModel, exited: Any) -> None:
    method = loopcd.LoopCD(1, 0.5, 0.05, exit=loopcd.EarlyExit(0.6, min_loops=2, criterion="gate", exited=exited))
    rows = rows_of(ouro, method)
    ticks = together(rows)
    assert told(rows) == alone(rows_of(ouro, method))
    assert len({loop for row in rows for loop in row.loops}) > 1
    assert ticks.ticks < together(rows_of(ouro, loopcd.LoopCD(1, 0.5, 0.05))).ticks


def test_draws_follow_from_each_row_s_own_seed(model: LoopedModel) -> None:
    method = loopcd.LoopCD(1, 0.5, 0.05)
    rows = rows_of(model, method, temperature=1.0)
    together(rows)
    assert told(rows) == alone(rows_of(model, method, temperature=1.0))


def test_a_drawn_initial_state(huginn: LoopedModel) -> None:
    rows = rows_of(huginn, loopcd.Greedy(), init_seed=4)
    together(rows)
    assert told(rows) == alone(rows_of(huginn, loopcd.Greedy(), init_seed=4))


def test_processors_see_each_row_s_own_text(own_model: LoopedModel) -> None:
    sampling = Sampling(processors=LogitsProcessorList([NoRepeatNGramLogitsProcessor(1)]))
    rows = rows_of(own_model, loopcd.LoopCD(1, 0.5, 0.05), sampling)
    together(rows)
    assert told(rows) == alone(rows_of(own_model, loopcd.LoopCD(1, 0.5, 0.05), sampling))
    assert all(len(set(row.tokens)) == len(row.tokens) for row in rows)


def test_rows_of_different_methods_go_together(own_model: LoopedModel) -> None:
    methods = [loopcd.Greedy(), loopcd.LoopCD(1, 0.5, 0.05, exit=EARLY), loopcd.NoiseCD()]
    mixed = [rows_of(own_model, methods[at % 3])[at] for at in range(7)]
    together(mixed)
    assert told(mixed) == alone([rows_of(own_model, methods[at % 3])[at] for at in range(7)])


@pytest.mark.parametrize("after", [0, 1, 3, 6])
def test_a_row_that_is_dropped_disturbs_no_other(own_model: LoopedModel, after: int) -> None:
    method = loopcd.LoopCD(1, 0.5, 0.05, exit=EARLY)
    rows, wanted = rows_of(own_model, method), alone(rows_of(own_model, method))
    ticks = Ticks(own_model, 3)
    for row in rows:
        ticks.add(row)
    for _ in range(after):
        ticks.step()
    ticks.drop(rows[1])
    ticks.drop(rows[-1])  # it is still waiting
    list(ticks.run())
    assert [each for at, each in enumerate(told(rows)) if at not in (1, 6)] == [
        each for at, each in enumerate(wanted) if at not in (1, 6)
    ]
    assert sorted(ticks.free) == [0, 1, 2] and len(rows[1].tokens) < len(wanted[1][0])


def test_one_row_s_trouble_is_no_other_s(huginn: LoopedModel) -> None:
    rows = rows_of(huginn, loopcd.Greedy())
    rows[2] = Row(rows[2].method, replace(rows[2].job, sampling=Sampling(processors=LogitsProcessorList([_refuse]))))
    ticks = Ticks(huginn, 3)
    for row in rows:
        ticks.add(row)
    list(ticks.run())
    assert isinstance(rows[2].error, ArithmeticError)
    assert [each for at, each in enumerate(told(rows)) if at != 2] == [
        each for at, each in enumerate(alone(rows_of(huginn, loopcd.Greedy()))) if at != 2
    ]


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in LATER), ("olmo", {"initial_state_mode": "skip-adapter"})],  # its first loop is another
)
@pytest.mark.parametrize("method", [METHODS[4], METHODS[5]], ids=repr)
def test_families_that_came_later(family: str, changes: dict[str, Any], method: Any) -> None:
    model = LATER[family](**changes)
    rows = rows_of(model, method)
    together(rows)
    assert told(rows) == alone(rows_of(model, method))


@pytest.mark.usefixtures("in_places")
@pytest.mark.parametrize(
    "method",
    [loopcd.MTI(entropy_threshold=0.5), loopcd.LoopCD(1, 0.9, 0.01, where="hard numeric"), loopcd.LoopCD(1, 0.9, where="easy")],
    ids=repr,
)
def test_methods_that_read_text_and_stop_strings(own_model: LoopedModel, method: Any) -> None:
    prompts, options = ["Hello", "A longer prompt, with 12 + 30 in it", "x", "7 or 8"], {"max_new_tokens": 12, "stop": "e"}
    single = [loopcd.generate(own_model, byte_tokenizer(), prompt, method, **options) for prompt in prompts]
    assert loopcd.generate(own_model, byte_tokenizer(), prompts, method, batch_size=3, **options) == single


@pytest.mark.parametrize("cancelled", [False, True])
def test_numbers_gone_wrong_do_not_reach_the_next_text_at_that_place(cancelled: bool) -> None:
    model = MAKERS["huginn"]()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = torch.nan  # pyright: ignore[reportIndexIssue]
    requests = [
        (Request(model, None, loopcd.Greedy(), length, (), 0.0, 1.0, 0, None, None), prompt)
        for prompt, length in (([7] * 20, 4), ([5, 6, 8] * 5, 30), ([9, 10], 6), ([11], 5))
    ]
    rows, wanted = ([Row(loopcd.Greedy(), each.job([ids], [0])) for each, ids in requests] for _ in range(2))
    ticks = Ticks(model, 2)
    for row in rows:
        ticks.add(row)
    for _ in range(2 if cancelled else 0):
        ticks.step()
    if cancelled:
        ticks.drop(rows[0])
    list(ticks.run())
    assert told(rows)[1:] == alone(wanted[1:]) and not rows[0].sound and rows[1].sound and not rows[0].tokens
    assert cancelled or "logits hold numbers that are not finite" in str(rows[0].error)


def _refuse(text: Any, scores: Any) -> Any:
    raise ArithmeticError("no")


def test_texts_go_on_in_step_where_that_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    model, exits, rules = MAKERS["huginn"](), loopcd.Greedy(exit=EARLY), sys.modules["loopcd.decoding.generate"]
    taken = {1: 1e-3, 2: 1.1e-3, 64: 5e-3}  # seconds
    monkeypatch.setattr(rules, "loop_seconds", lambda _, rows: taken[rows])
    assert not by_ticks(loopcd.Greedy(), model, 64) and not by_ticks(exits, model, 2)  # a tick's own work would take as long
    assert by_ticks(loopcd.Greedy(), model) and by_ticks(loopcd.Greedy(draft=loopcd.SelfDraft(1, 2, wave=True)), model, 2)
    taken.update({1: 5e-3, 2: 6e-3, 64: 50e-3})
    assert by_ticks(loopcd.Greedy(), model, 2) and by_ticks(exits, model, 2) and not by_ticks(exits, model, 1)
    assert not by_ticks(exits, model, 64)  # nine tenths are for the rows
    monkeypatch.setattr(rules, "loop_seconds", lambda *_: None)  # a device that is not timed
    assert by_ticks(exits, model, 2) and [by_ticks(loopcd.Greedy(), model, rows) for rows in (MANY - 1, MANY)] == [False, True]
    monkeypatch.setattr(rules, "SMALL", 100)
    assert by_ticks(loopcd.Greedy(), model, 2)


def test_loops_are_timed_once_for_like_numbers_of_rows(advances: Any) -> None:
    model = MAKERS["ouro"]()
    seen = advances(model)
    first = loop_seconds(model, 5)
    assert first is not None and first > 0 and set(seen) == {8} and len(seen) >= TRIES
    seen.clear()
    assert loop_seconds(model, 8) == first and not seen
