"""Honest programs get the verdict that EvalPlus itself would give, whatever their results are made of. Needs EvalPlus."""

import json
import subprocess
import sys
from typing import Any

import pytest

from evaluation.problems import DOUBLE, HALF, settings
from loopcd.evaluation.code.bridge import Program, grade

# Calls EvalPlus as its own command does, program and answers in one process.
EVALPLUS = """
import json, multiprocessing, sys
from types import ModuleType
sys.modules["datasets"] = ModuleType("datasets")
sys.modules["datasets"].load_dataset = None
from evalplus.eval import untrusted_check
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.gen.util import trusted_exec
multiprocessing.set_start_method("fork")
found = []
for dataset, problem, code in json.load(sys.stdin):
    name = problem["entry_point"]
    for part in ("base_input", "plus_input"):
        inputs, reference = problem[part], problem["prompt"] + problem["canonical_solution"]
        not_none = dataset == "mbpp" and name in MBPP_OUTPUT_NOT_NONE_TASKS
        expected, seconds = trusted_exec(reference, inputs, name, record_time=True, output_not_none=not_none)
        found.append(untrusted_check(dataset, code, inputs, name, expected, problem["atol"], seconds, fast_check=True)[0])
print(json.dumps(found))
"""


def problem(name: str, solution: str, base: list[Any], plus: list[Any], tolerance: float = 0) -> dict[str, Any]:
    written = f"\ndef {name}(*given):\n    {solution}\n"
    more = {"base_input": base, "plus_input": plus, "atol": tolerance}
    return {
        **DOUBLE,
        "task_id": f"Mbpp/{9000 + sum(name.encode())}",
        "prompt": "",
        "entry_point": name,
        "canonical_solution": written,
        **more,
    }


PAIR = problem("pair", "return (given[0], given[0] + 1)", [[1]], [[2], [3]])
COUNTS = problem("counts", "return {letter: given[0].count(letter) for letter in given[0]}", [["aab"]], [["b"]])
LONG = problem(
    "find_char_long", "return [word for word in given[0].split() if len(word) > 3]", [["abcd ab"]], [["aaaaa bbbb aaaaa"]]
)
CHECK = problem("check_str", "import re; return re.match('[aeiou]', given[0])", [["annie"]], [["dawood"], ["else"]])
DIVIDE = problem("sum_div", "return sum(d for d in range(1, given[0]) if given[0] % d == 0)", [[8]], [[12], [7]])
AREA = problem("surface_Area", "return given[0] ** 2 + 2 * given[0] * given[1]", [[3, 4]], [[4, 5]])
ANY = problem("are_equivalent", "return given[0] == given[1]", [[1, 1]], [[1, 2]])
SORT = problem("ordered_list", "return sorted(given[0])", [[[2, 1]]], [[[3, 2, 1]], [[]]])
ROOTS = problem("roots", "return [value ** 0.5 for value in given[0]]", [[[4.0, 2.0]]], [[[9.0]]], 1e-6)
BIG = problem("power", "return 7 ** given[0]", [[3]], [[20000]])
MANY = problem("many", "return list(range(given[0]))", [[3]], [[300000]])
ZERO = {**problem("find_zero", "return -given[0][0] / given[0][1]", [[[1, 2]]], [[[4, 2]]], 1e-4), "task_id": "HumanEval/9032"}

HONEST: list[tuple[str, dict[str, Any], str]] = [
    ("mbpp", PAIR, "return [given[0], given[0] + 1]"),
    ("mbpp", PAIR, "from collections import namedtuple; return namedtuple('Pair', 'a b')(given[0], given[0] + 1)"),
    ("mbpp", PAIR, "return (float(given[0]), True + given[0])"),
    ("mbpp", PAIR, "import numpy; return tuple(numpy.array([given[0], given[0] + 1]))"),
    ("mbpp", PAIR, "import numpy; return numpy.array([given[0], given[0] + 1])"),
    ("mbpp", PAIR, "return (value for value in (given[0], given[0] + 1))"),
    ("mbpp", PAIR, "raise ValueError('no')"),
    ("mbpp", PAIR, "return None"),
    ("mbpp", COUNTS, "from collections import Counter; return Counter(given[0])"),
    (
        "mbpp",
        COUNTS,
        "from collections import defaultdict; d = defaultdict(int)\n    for c in given[0]: d[c] += 1\n    return d",
    ),
    (
        "mbpp",
        COUNTS,
        "from collections import OrderedDict; return OrderedDict((c, given[0].count(c)) for c in sorted(given[0]))",
    ),
    ("mbpp", COUNTS, "return sorted((c, given[0].count(c)) for c in set(given[0]))"),
    ("mbpp", LONG, "return (word for word in given[0].split() if len(word) > 3)"),
    ("mbpp", LONG, "return set(word for word in given[0].split() if len(word) > 3)"),
    ("mbpp", LONG, "return dict.fromkeys(word for word in given[0].split() if len(word) > 3).keys()"),
    ("mbpp", LONG, "return given[0].split()"),
    ("mbpp", CHECK, "import re; return re.search('^[aeiou]', given[0])"),
    ("mbpp", CHECK, "return given[0][0] in 'aeiou'"),
    ("mbpp", CHECK, "return None"),
    ("mbpp", DIVIDE, "return 0"),
    ("mbpp", DIVIDE, "return 1"),
    ("mbpp", AREA, "import math; b, h = given; return round(b * b + 2 * b * math.sqrt((b / 2) ** 2 + h ** 2))"),
    ("mbpp", AREA, "return 5"),
    ("mbpp", ANY, "return 'anything'"),
    ("mbpp", SORT, "given[0].sort(); return given[0]"),
    ("mbpp", SORT, "given[0].clear(); return given[0]"),
    ("mbpp", SORT, "import numpy; return numpy.sort(given[0]).tolist()"),
    ("mbpp", SORT, "from collections import deque; return deque(sorted(given[0]))"),
    ("mbpp", SORT, "class Own(list): pass\n    return Own(sorted(given[0]))"),
    ("mbpp", ROOTS, "import math; return [math.sqrt(value) + 1e-9 for value in given[0]]"),
    ("mbpp", ROOTS, "import math; return tuple(math.sqrt(value) + 1e-9 for value in given[0])"),
    ("mbpp", ROOTS, "import numpy; return list(numpy.sqrt(given[0]) + 1e-9)"),
    ("mbpp", ROOTS, "import numpy; return numpy.sqrt(given[0]) + 1e-9"),
    ("mbpp", ROOTS, "from fractions import Fraction; return [Fraction(value) for value in given[0]]"),
    ("mbpp", BIG, "result = 1\n    for _ in range(given[0]): result *= 7\n    return result"),
    ("mbpp", BIG, "return float(7 ** given[0])"),
    ("mbpp", MANY, "return [value for value in range(given[0])]"),
    ("mbpp", MANY, "return range(given[0])"),
    ("humaneval", ZERO, "return -given[0][0] / given[0][1]"),
    ("humaneval", HALF, "import decimal; return float(decimal.Decimal(given[0]) / 2)"),
]


@pytest.fixture(scope="module")
def both() -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """(ours, EvalPlus's) for base and plus of each."""
    codes = [f"def {each['entry_point']}(*given):\n    {body}\n    return None\n" for _, each, body in HONEST]
    ours: dict[int, tuple[str, str]] = {}
    for dataset in ("humaneval", "mbpp"):
        chosen = [number for number, (name, _, _) in enumerate(HONEST) if name == dataset]
        problems = list({HONEST[number][1]["task_id"]: HONEST[number][1] for number in chosen}.values())
        programs = [Program(HONEST[number][1]["task_id"], codes[number]) for number in chosen]
        verdicts = grade(dataset, problems, programs, settings()).verdicts
        ours.update({number: (verdict.base, verdict.plus) for number, verdict in zip(chosen, verdicts, strict=True)})
    asked = json.dumps([(dataset, each, code) for (dataset, each, _), code in zip(HONEST, codes, strict=True)])
    told = subprocess.run([sys.executable, "-c", EVALPLUS], input=asked, capture_output=True, text=True, check=True)
    theirs = json.loads(told.stdout.splitlines()[-1])
    return [(ours[number], (theirs[2 * number], theirs[2 * number + 1])) for number in range(len(HONEST))]


@pytest.mark.parametrize("number", range(len(HONEST)), ids=[f"{each['entry_point']} {body[:40]}" for _, each, body in HONEST])
def test_the_verdict_is_evalpluss(both: list[tuple[tuple[str, str], tuple[str, str]]], number: int) -> None:
    ours, theirs = both[number]
    assert ours == theirs


def test_some_pass_and_some_fail(both: list[tuple[tuple[str, str], tuple[str, str]]]) -> None:
    bases = [base for _, (base, _) in both]
    assert bases.count("pass") > 12 and bases.count("fail") > 12
