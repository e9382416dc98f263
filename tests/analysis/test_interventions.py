"""Token replacement and Late-Flip reversion, against slow readings of the same protocol."""

from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

from analysis.labs import laboratory
from analysis.readings import answers_read, greedy_on, hard, late_alternative
from loopcd.analysis import statistics
from loopcd.analysis.elements import interventions
from loopcd.analysis.elements.interventions import (
    Source,
    answer_text,
    broken_answers,
    replaced_answers,
    resumed_texts,
    reversions,
)
from loopcd.analysis.laboratory import GREEDY, Laboratory


@pytest.mark.parametrize("source", ["last", "peak"])
def test_only_positions_of_the_kind_change_and_only_to_one_of_the_ten_best(lab: Laboratory, source: Source) -> None:
    changed = 0
    for trace, logits in zip(lab.traces(), answers_read(lab), strict=True):
        kinds = hard(logits)
        assert statistics.hard_tokens(trace).tolist() == kinds
        made = replaced_answers(trace, statistics.hard_tokens(trace), Random(0), source)
        if made is None:
            assert len(set(kinds)) == 1
            continue
        budget = min(5, sum(kinds), len(kinds) - sum(kinds))
        for kind, tokens in made.items():
            places = [at for at, (one, other) in enumerate(zip(trace.token_ids, tokens, strict=True)) if one != other]
            assert len(places) <= budget
            assert all(kinds[at] == (kind == "hard") for at in places)
            assert all(tokens[at] in candidates(logits[at], source) for at in places)
            changed += len(places)
    assert changed > 5


def candidates(logits: Tensor, source: Source) -> list[int]:
    """The ten best tokens of the last loop, or of that at which the final winner's lead is largest; of logits [loop, vocab]."""
    winner = int(logits[-1].argmax())
    others = logits.clone()
    others[:, winner] = -torch.inf
    leads = (logits[:, winner] - others.max(dim=-1).values).tolist()
    return logits[-1 if source == "last" else leads.index(max(leads))].topk(10).indices.tolist()


def test_a_replacement_is_a_uniform_draw_from_the_ten_best(lab: Laboratory) -> None:
    traces = [trace for trace in lab.traces() if 0 < statistics.hard_tokens(trace).sum() < len(trace)]
    trace = traces[0]
    mask = statistics.hard_tokens(trace)
    made = [replaced_answers(trace, mask, Random(seed)) for seed in range(600)]
    changes = [
        sum(one != other for one, other in zip(trace.token_ids.tolist(), each["hard"], strict=True)) for each in made if each
    ]
    budget = min(5, int(mask.sum()), int((~mask).sum()))
    assert abs(sum(changes) / len(changes) / budget - 9 / 10) < 0.04  # the winner itself is one of ten


def test_an_answer_with_one_kind_of_tokens_is_left_out(lab: Laboratory) -> None:
    trace = next(lab.traces())
    assert replaced_answers(trace, statistics.hard_tokens(trace) | True, Random(0)) is None
    assert replaced_answers(trace, statistics.hard_tokens(trace) & False, Random(0)) is None


def test_table_1_counts_right_answers_with_both_kinds(lab: Laboratory) -> None:
    broken, left_out = broken_answers(lab)
    (greedy,) = lab.answers(GREEDY)
    right = [mask for mask, good in zip(map(hard, answers_read(lab)), greedy.right("strict"), strict=True) if good]
    assert len(broken["hard"]) == len(broken["easy"]) == sum(0 < sum(mask) < len(mask) for mask in right) > 0
    assert left_out == len(right) - len(broken["hard"])
    assert broken_answers(lab) == (broken, left_out)


def test_every_late_flip_is_reverted_to_the_other_first_choice(lab: Laboratory) -> None:
    found = {(each.item, each.position): each for i, trace in enumerate(lab.traces()) for each in reversions(trace, i)}
    (greedy,) = lab.answers(GREEDY)
    wanted = {}
    for item, logits in enumerate(answers_read(lab)):
        for position in range(logits.shape[0]):
            other = late_alternative(logits[position])
            if other is not None:
                wanted[item, position] = other
    assert {place: each.prefix[-1] for place, each in found.items()} == wanted and wanted
    for (item, position), each in found.items():
        assert each.prefix == (*greedy.token_ids[item][:position], each.prefix[-1])


def test_greedy_decoding_goes_on_after_a_reversion(lab: Laboratory) -> None:
    task = lab.task()
    wanted = [each for item, trace in enumerate(lab.traces()) for each in reversions(trace, item)][:9]
    for each, text in zip(wanted, resumed_texts(lab, task, wanted), strict=True):
        ids = [*each.prompt, *each.prefix]
        going = greedy_on(lab, ids, task.max_new_tokens - len(each.prefix)) if not ends(lab, each.prefix[-1]) else []
        assert text == answer_text(lab.engine.tokenizer, [*each.prefix, *going], task.stop)


def test_nothing_goes_on_where_the_context_is_full(folders: dict[str, Path], tmp_path: Path) -> None:
    lab = laboratory(folders["ouro"], tmp_path, limit=1)
    full = interventions.Reversion(0, 0, (5,) * (lab.engine.model.max_context - 1), (7,))
    assert resumed_texts(lab, lab.task(), [full]) == [answer_text(lab.engine.tokenizer, [7], lab.task().stop)]


def ends(lab: Laboratory, token: int) -> bool:
    return token == lab.engine.tokenizer.eos_token_id


def test_an_interrupted_reversion_goes_on_where_it_stopped(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = laboratory(folders["ouro"], tmp_path, limit=8)
    wanted = [each for item, trace in enumerate(lab.traces()) for each in reversions(trace, item)]
    assert len(wanted) > lab.engine.batch_size
    original, calls = interventions.generate, []

    def broken(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(interventions, "generate", broken)
    with pytest.raises(KeyboardInterrupt):
        resumed_texts(lab, lab.task(), wanted)
    texts = resumed_texts(lab, lab.task(), wanted)
    assert len(calls) == 1 + -(-len(wanted) // lab.engine.batch_size)
    whole = laboratory(folders["ouro"], tmp_path / "whole", limit=8)
    assert texts == resumed_texts(whole, whole.task(), wanted)
    before = len(calls)
    assert resumed_texts(lab, lab.task(), wanted) == texts and len(calls) == before
