"""Grading of worked answers that end in a number, by two readings.

Strict takes the number of the first conclusion: after `####`, as lm-eval's gsm8k does, or of "The answer is N.", as the paper's
authors do. Flex takes the last number of the text. Both then compare with the gold answer, ignoring thousands separators,
dollar signs and a full stop at the end. No number found is a wrong answer.
"""

from __future__ import annotations

import re

HASHES = re.compile(r"#### (\-?[0-9\.\,]+)")
THE_ANSWER_IS = re.compile(r"The answer is (-?[0-9.,]+)\.")
FLEX = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def strict_answer(answer_text: str, conclusion: re.Pattern[str] = HASHES) -> str | None:
    """The N of the first conclusion in the text, as it is written there."""
    found = conclusion.search(answer_text)
    return found.group(1) if found else None


def flex_answer(answer_text: str) -> str | None:
    """The last thing in the text that looks like a number, as it is written there."""
    found = [match.group(0) for match in FLEX.finditer(answer_text)]
    return found[-1] if found else None


def strict_match(answer_text: str, gold: str | int, conclusion: re.Pattern[str] = HASHES) -> bool:
    return _same(strict_answer(answer_text, conclusion), gold)


def flex_match(answer_text: str, gold: str | int) -> bool:
    return _same(flex_answer(answer_text), gold)


def _same(found: str | None, gold: str | int) -> bool:
    # An answer of punctuation alone, such as "..", is no number even if the gold were as empty.
    return found is not None and bool(_plain(found)) and _plain(found) == _plain(str(gold))


def _plain(number: str) -> str:
    return re.sub(r"[,$]", "", number).removesuffix(".")
