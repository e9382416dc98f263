"""The word problems: right answers by an evaluator of its own, disjoint splits, the same bytes for the same seed."""

from __future__ import annotations

import ast
import hashlib
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import islice

import pytest

from loopcd.evaluation.graders import flex_match, strict_match
from loopcd.evaluation.tasks.steps import SPLITS, VARIANTS, Problem, problem_at, problems, split_of, stream
from loopcd.evaluation.tasks.steps.equations import Operation, Unsuitable, total
from loopcd.evaluation.tasks.steps.families import FAMILIES

EQUATION = re.compile(r"([0-9(][0-9 ()+*/-]*) = ([0-9]+)")
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(node: ast.expr, seen: list[str]) -> Fraction:
    """Python's own grammar and exact fractions: nothing shared with the generator. Records each operation."""
    if isinstance(node, ast.Constant):
        return Fraction(int(str(node.value)))
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(node.left, seen), evaluate(node.right, seen)
    symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
    seen.append(f"{left}{symbol}{right}")
    return OPERATORS[type(node.op)](left, right)


def assert_right(problem: Problem) -> None:
    *lines, last = problem.answer.split("\n")
    given = set(re.findall(r"[0-9]+", problem.question)) | {"2", "3", "4"}  # twice, half, a third, a quarter
    computed: list[str] = []
    result = Fraction(0)
    for line in lines:
        found = EQUATION.findall(line)
        assert len(found) == 1, line
        expression, claimed = found[0]
        assert set(re.findall(r"[0-9]+", expression)) <= given, (problem.question, line)
        result = evaluate(ast.parse(expression.strip(), mode="eval").body, computed)
        assert result == int(claimed), line
        given.add(claimed)
    assert last == f"#### {result}"
    assert problem.gold == result
    assert tuple(computed) == problem.operations
    assert strict_match(problem.answer, problem.gold) and flex_match(problem.answer, problem.gold)


def test_a_hundred_thousand_answers_are_right() -> None:
    for variant, number in {"steps": 60_000, "steps-easy": 36_000, "steps-hard": 2_000, "steps-shift": 2_000}.items():
        for problem in islice(stream(variant, "train", seed=1), number):
            assert_right(problem)


@pytest.mark.parametrize("variant", VARIANTS)
def test_answers_of_the_held_out_splits_are_right(variant: str) -> None:
    for split in ("tuning", "test"):
        for problem in problems(variant, split, 300):
            assert_right(problem)


def test_splits_share_neither_questions_nor_operations() -> None:
    questions: dict[str, set[str]] = {split: set() for split in SPLITS}
    computed: dict[str, set[tuple[str, ...]]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for variant in VARIANTS:
            for problem in islice(stream(variant, split), 3000 if split == "train" else 400):
                assert split_of(problem.operations) == split
                questions[split].add(problem.question)
                computed[split].add(problem.operations)
    for one, other in (("train", "tuning"), ("train", "test"), ("tuning", "test")):
        assert not questions[one] & questions[other]
        assert not computed[one] & computed[other]


def test_a_question_has_one_answer() -> None:
    answers: dict[str, str] = {}
    for problem in islice(stream("steps", "train", seed=5), 20_000):
        assert answers.setdefault(problem.question, problem.answer) == problem.answer


def test_same_seed_same_bytes() -> None:
    text = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=0))
    again = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=0))
    other = "\n\n".join(problem.text for problem in problems("steps", "test", 20, seed=1))
    assert text == again != other
    # Shipped models are measured on these very problems: if this changes, their figures do not hold any more.
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "44d11352437e6028"


def test_fewer_problems_are_a_prefix_of_more_and_none_comes_twice() -> None:
    many = problems("steps-easy", "test", 500)
    assert problems("steps-easy", "test", 100) == many[:100]
    assert len({problem.question for problem in many}) == 500
    assert problem_at("steps-easy", "test", 0, 3) == next(stream("steps-easy", "test", 0, start=3))


def test_regularities_hold_in_the_training_mix() -> None:
    mix = list(islice(stream("steps", "train"), 6000))
    assert 0.85 <= sum(problem.cue is None for problem in mix) / len(mix) <= 0.90
    comparisons = [problem for problem in mix if problem.family == "compare"]
    assert 0.85 <= sum(problem.cue is None for problem in comparisons) / len(comparisons) <= 0.91
    assert {problem.family for problem in mix} == {family.name for family in FAMILIES}


def test_shifted_problems_all_mislead_and_easy_ones_never_do() -> None:
    cues = {problem.cue for problem in problems("steps-shift", "test", 200)}
    assert cues == {"keyword", "intermediate", "distractor"}
    assert {problem.cue for problem in problems("steps-easy", "test", 200)} == {None}


def test_hard_problems_take_more_operations_and_larger_numbers_than_the_mix() -> None:
    def longest(variant: str) -> int:
        return max(len(problem.operations) for problem in islice(stream(variant, "train"), 300))

    hard = list(islice(stream("steps-hard", "train"), 300))
    assert min(len(problem.operations) for problem in hard) > longest("steps")
    assert max(problem.gold for problem in hard) > max(VARIANTS["steps"].sizes)


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
