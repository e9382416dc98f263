"""Programs that solve nothing and want to be taken for right: none is, at any level of isolation. Needs EvalPlus."""

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import asdict
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy
import pytest

from evaluation.cheats import GOT_THROUGH, HELD
from evaluation.hostile import Way, interpreter_with_evalplus, package_folder
from evaluation.problems import DOUBLE, settings
from loopcd.evaluation.code.bridge import Program, ProgramVerdict, grade
from loopcd.evaluation.code.isolation import landlock, plain

# where signals are kept in by nothing, these would end all that the user runs
UNSAFE = () if landlock.version() >= landlock.SCOPED else ("kills the parent", "kills its group")
WEAKER = [Way("limits")]
if os.getuid() == 0:
    WEAKER += [Way("user"), Way("namespaces", user=54321), Way("limits", user=54321)]
WAYS = [Way("namespaces"), *(pytest.param(way, marks=pytest.mark.slow) for way in WEAKER)]
ALL = {**GOT_THROUGH, **HELD}
# What reaches for other processes. The rest meets the same grader at every level, and what would not end or flood
# is tried at every level in test_code_isolation.py.
OUTSIDE = (
    "writes a reply of its own",
    "leaves",
    "kills the parent",
    "kills its group",
    "leaves a daemon",
    "reads the process above",
    "sends a pickle that calls",
)
Graded = tuple[str | None, dict[str, ProgramVerdict]]


@pytest.fixture(scope="module", params=WAYS, ids=str)
def graded(request: pytest.FixtureRequest) -> Graded:
    way: Way = request.param
    names = set(ALL) if way == Way("namespaces") else set(OUTSIDE)
    names -= set(UNSAFE) if way.level == "limits" else set()
    tried = {name: DOUBLE["prompt"] + body for name, body in ALL.items() if name in names}
    python = interpreter_with_evalplus() if way.level == "user" or way.user is not None else sys.executable
    if python is None:
        pytest.skip("no interpreter that every user can read has EvalPlus")
    if way.user is not None:
        return way.level, dict(zip(tried, graded_as(way, python, list(tried.values())), strict=True))
    programs = [Program(DOUBLE["task_id"], text) for text in tried.values()]
    found = grade("humaneval", [DOUBLE], programs, settings(level=way.level, weak=True, workers=2, python=python))
    return way.level, dict(zip(tried, found.verdicts, strict=True))


def graded_as(way: Way, python: str, texts: list[str]) -> list[ProgramVerdict]:
    """By the grader that the bridge starts, as another user."""
    line = json.dumps(DOUBLE).encode()
    with tempfile.TemporaryFile() as data:
        data.write(line)
        data.flush()
        limits = asdict(settings().limits)
        head = {"dataset": "humaneval", "data": data.fileno(), "level": way.level, "weak": True, "limits": limits}
        lines = [{"index": 0, "text": text, "before": "", "place": (0, len(line))} for text in texts]
        told = subprocess.run(
            [python, "-m", "isolation.grader"],
            input="".join(json.dumps(each) + "\n" for each in [head, *lines]),
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": package_folder(), "TMPDIR": f"{package_folder()}/scratch"},
            user=way.user,
            group=way.user,
            extra_groups=[],
            pass_fds=[data.fileno()],
        )
    assert (told.returncode, told.stderr) == (0, "")
    verdicts = [json.loads(each) for each in told.stdout.splitlines()[1:]]
    return [ProgramVerdict(each["base"], each["plus"], each["seconds"]) for each in verdicts]


def test_no_cheat_passes(graded: Graded) -> None:
    level, verdicts = graded
    assert set(verdicts) >= set(OUTSIDE) - set(UNSAFE)
    for name, verdict in verdicts.items():
        assert "pass" not in (verdict.base, verdict.plus) and verdict.passed == (False, False), (level, name)


def test_what_evalplus_would_take_is_called_cheating(graded: Graded) -> None:
    level, verdicts = graded
    found = {name: verdict for name, verdict in verdicts.items() if name in GOT_THROUGH}
    for name, verdict in found.items():
        assert (verdict.base, verdict.plus, verdict.cheated) == ("cheated", "cheated", True), (level, name)
    assert found


Pair = namedtuple("Pair", "left right")


class Own(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __index__(self) -> int:
        return 7

    __hash__ = int.__hash__


def sent(value: Any) -> Any:
    file = io.BytesIO()
    plain.write(value, file)
    file.seek(0)
    return plain.read(file)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -5, 10**5000, 1.5, float("inf"), 2 - 1j, "a\ud800", b"a", bytearray(b"a"), (1, (2,)), [[], {}], {1: {2}}),
        *(frozenset({1}), Counter("aab"), OrderedDict(a=1), deque([1], 3), Fraction(1, 3), Decimal("0.1"), numpy.float64(0.1)),
        *(numpy.int32(3), numpy.bool_(True), numpy.str_("a"), numpy.str_("")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain_values_arrive_as_they_are(value: Any) -> None:
    assert type(sent(value)) is type(value)
    assert sent(value) == value


def test_values_of_derived_types_compare_as_their_base_but_are_of_another_type() -> None:
    for value, base in ((Pair(1, 2), (1, 2)), (defaultdict(list, {1: [2]}), {1: [2]}), ({1: 2}.keys(), {1})):
        assert sent(value) == base
        assert type(sent(value)) is not type(base)
    assert int(sent(Own(5))) == 5 and sent(Own(5)) != 6


@pytest.mark.parametrize(
    "value",
    [numpy.arange(6, dtype="float32").reshape(2, 3), numpy.array("", "U"), numpy.array(["", "ab"])],
)
def test_arrays_keep_shape_and_type(value: numpy.ndarray) -> None:
    assert (sent(value).dtype, sent(value).shape, sent(value).tolist()) == (value.dtype, value.shape, value.tolist())


def test_what_can_only_be_gone_through_equals_nothing_but_can_be() -> None:
    arrived = sent(character for character in "abc")
    assert arrived != ["a", "b", "c"] and set(arrived) == set("abc")
    assert sent(object()) is not None and sent(object()) != sent(object())


def test_an_array_without_numbers_is_close_to_none() -> None:
    """Of no size, it would be spread over however many numbers it is compared with, and none of them would differ."""
    arrived = sent([[numpy.zeros((0, 1))]] * 3)
    with pytest.raises(TypeError):
        numpy.allclose(arrived, [1.0, 2.0, 3.0])
    assert set(sent(numpy.zeros(0))) == set()


@pytest.mark.parametrize("kind", ["Something", "Counter", "OrderedDict", "Derivedlist", "made itself"])
def test_nothing_can_be_hung_on_a_value(kind: str) -> None:
    """numpy reads whatever memory an attribute names."""
    name = f"c{plain.__name__}\nmade\n"
    value = name if kind == "made itself" else f"{name}(S'{kind}'\n{'(l' if kind == 'Derivedlist' else ''}tR"
    interface = "}(S'shape'\n(I0\nI1\ntS'typestr'\nS'<f8'\nS'data'\n(I0\nI01\ntS'version'\nI3\nu"
    for state in ("}(S'__array_interface__'\n" + interface + "u", "(N}(S'__array_interface__'\n" + interface + "ut"):
        with pytest.raises(plain.Forged):
            plain.read(io.BytesIO(f"({value}{state}bl.".encode()))


@pytest.mark.parametrize("bad", [pickle.dumps(print), pickle.dumps(Own), b"cposix\n_exit\n(I0\ntR.", b"{}", b"\x80\x05\x95"])
def test_bytes_of_any_other_kind_are_not_read(bad: bytes) -> None:
    with pytest.raises((plain.Forged, EOFError)):
        plain.read(io.BytesIO(bad))
