"""A few problems as EvalPlus's files have them, and the settings that tests grade with."""

from dataclasses import replace
from typing import Any

from loopcd.evaluation.code.bridge import CodeSettings
from loopcd.evaluation.code.isolation.limits import Limits

DOUBLE = {
    "task_id": "HumanEval/9001",
    "prompt": '\ndef double(x: int) -> int:\n    """Twice x.\n    >>> double(2)\n    4\n    """\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "base_input": [[1], [2]],
    "plus_input": [[-5], [0], [10**9]],
    "atol": 0,
    "contract": "",
}
HALF = {
    **DOUBLE,
    "task_id": "HumanEval/9002",
    "prompt": '\ndef half(x: float) -> float:\n    """Half of x."""\n',
    "entry_point": "half",
    "canonical_solution": "    return x / 2\n",
    "base_input": [[1.0], [3.0]],
    "plus_input": [[-1.5]],
    "atol": 1e-6,
}
SWAP = {
    **DOUBLE,
    "task_id": "Mbpp/9003",
    "prompt": '"""\nWrite a function to swap a pair.\nassert swap([1, 2]) == [2, 1]\n"""\n',
    "entry_point": "swap",
    "canonical_solution": "\ndef swap(pair):\n    return [pair[1], pair[0]]\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[5, 5]]],
}


def settings(**changes: Any) -> CodeSettings:
    limits = Limits(seconds=30, memory=2048 << 20)
    return replace(CodeSettings(workers=1, limits=limits), **changes)
