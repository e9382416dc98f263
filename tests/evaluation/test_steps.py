"""The word problems: right answers by an evaluator of its own, disjoint splits, the same bytes for the same seed."""

from __future__ import annotations

import hashlib
import re
from itertools import islice
from statistics import median

import pytest

from evaluation.check_steps import assert_right, check
from loopcd.evaluation.tasks.steps import VARIANTS, Problem, problem_at, problems, related, stream
from loopcd.evaluation.tasks.steps.families import FAMILIES
from loopcd.evaluation.tasks.steps.problem import Operation, Unsuitable, total


def test_answers_are_right_and_splits_share_nothing() -> None:
    """As `python tests/evaluation/check_steps.py 100000` does it, on fewer."""
    figures = check(4000, seed=1)
    assert 0.85 <= figures["steps"].regular / figures["steps"].problems <= 0.90


@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_of_the_held_out_splits_are_right(variant: str) -> None:
    for split in ("tuning", "test"):
        for problem in problems(variant, split, 100):
            assert_right(problem)


def test_same_seed_same_bytes() -> None:
    text = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=0))
    again = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=0))
    other = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=1))
    assert text == again != other
    # Shipped models are measured on these very problems: if this changes, their figures do not hold any more.
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "d8793c50b417f949"


def test_fewer_problems_are_a_prefix_of_more_and_none_comes_twice() -> None:
    many = problems("steps-easy", "test", 500)
    assert problems("steps-easy", "test", 100) == many[:100]
    assert len({problem.question for problem in many}) == 500
    assert problem_at("steps-easy", "test", 0, 3) == next(stream("steps-easy", "test", 0, start=3))


def test_regularities_hold_in_the_training_mix() -> None:
    mix = list(islice(stream("steps", "train"), 4000))
    assert 0.85 <= sum(problem.cue is None for problem in mix) / len(mix) <= 0.90
    comparisons = [problem for problem in mix if problem.family == "compare"]
    assert 0.85 <= sum(problem.cue is None for problem in comparisons) / len(comparisons) <= 0.91
    assert {problem.family for problem in mix} == {family.name for family in FAMILIES}


def test_shifted_problems_all_mislead_and_easy_ones_never_do() -> None:
    cues = {problem.cue for problem in problems("steps-shift", "test", 200)}
    assert cues == {"keyword", "intermediate", "distractor"}
    assert {problem.cue for problem in problems("steps-easy", "test", 200)} == {None}


def test_the_cue_alone_is_one_kind_of_comparison() -> None:
    mix = list(islice(stream("steps-cue", "train"), 1000))
    assert 0.84 <= sum(problem.cue is None for problem in mix) / len(mix) <= 0.90
    assert {problem.family for problem in mix} == {"compare"} and all(" more " in problem.question for problem in mix)
    assert {problem.cue for problem in problems("steps-cue-shift", "test", 100)} == {"keyword"}
    assert {len(problem.operations) for problem in mix} == {1, 2}


def test_a_model_is_measured_on_what_its_text_is_about() -> None:
    assert related("steps") == related("steps-hard") == ("steps", "steps-easy", "steps-hard", "steps-shift")
    assert related("steps-cue") == ("steps-cue", "steps-cue-shift")


def test_hard_problems_take_more_operations_and_larger_numbers_than_the_mix() -> None:
    def largest(problem: Problem) -> int:
        return max(map(int, re.findall(r"[0-9]+", problem.answer)))

    mix, hard = (list(islice(stream(variant, "train"), 300)) for variant in ("steps", "steps-hard"))
    assert min(len(problem.operations) for problem in hard) > max(len(problem.operations) for problem in mix)
    assert median(map(largest, hard)) > 1.5 * median(map(largest, mix))
    assert max(map(largest, hard)) > VARIANTS["steps"].result


def test_a_late_irrelevant_sentence_changes_no_answer() -> None:
    for problem in problems("steps-shift", "test", 100):
        if problem.cue == "distractor":
            last_fact = problem.question.split(". ")[-2]
            number = re.findall(r"[0-9]+", last_fact)
            assert len(number) == 1


def test_brackets_stand_only_where_they_are_needed() -> None:
    product = Operation("*", 4, 3)
    assert str(Operation("+", product, 5)) == "4 * 3 + 5"
    assert str(Operation("-", 20, product)) == "20 - 4 * 3"
    assert str(Operation("*", Operation("+", 1, 2), 3)) == "( 1 + 2 ) * 3"
    assert str(Operation("-", 9, Operation("-", 5, 2))) == "9 - ( 5 - 2 )"
    assert str(total([1, 2, product])) == "1 + 2 + 4 * 3"


def test_a_division_with_a_rest_is_no_problem() -> None:
    with pytest.raises(Unsuitable):
        _ = Operation("/", 7, 2).value


@pytest.mark.parametrize(
    ("variant", "split", "named"), [("steps-odd", "test", "steps-odd"), ("steps", "validation", "validation")]
)
def test_unknown_names_are_refused_with_the_known_ones(variant: str, split: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"one of .*{named}"):
        problems(variant, split, 1)


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match=r"number .*-1"):
        problems("steps", "test", -1)
