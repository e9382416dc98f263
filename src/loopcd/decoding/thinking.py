"""The thinking part of a chat model's answer, which its text marks off: <think> … </think>, then the answer.

A template may open it at the end of the prompt (`opened`); the text then has only its end.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from loopcd.decoding import checks

OPENS, CLOSES = "<think>", "</think>"


@dataclass(frozen=True)
class Thought:
    thinking: str | None  # None: there was none
    answer: str  # empty where the text ended while thinking


def has_switch(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template reads `enable_thinking`."""
    templates = getattr(tokenizer, "chat_template", None) or ""
    texts = templates.values() if isinstance(templates, dict) else [templates]
    return any("enable_thinking" in text for text in texts)


def template_options(tokenizer: Any, enable_thinking: bool | None) -> dict[str, Any]:
    """What `apply_chat_template` is told beside the messages: the switch where it is given, which the template must know."""
    if enable_thinking is None:
        return {}
    checks.yes_or_no("enable_thinking", enable_thinking)
    if not has_switch(tokenizer):
        raise ValueError(f"enable_thinking={enable_thinking}: this tokenizer's chat template has no such switch; leave it out")
    return {"enable_thinking": enable_thinking}


def is_opened(prompt: str) -> bool:
    """Whether the prompt ends inside a thinking part."""
    return prompt.rfind(OPENS) > prompt.rfind(CLOSES)


def split_thinking(text: str, opened: bool = False) -> Thought:
    """The thinking part and the answer of a whole text."""
    begins = text.lstrip().startswith(OPENS)
    if not opened and not begins:
        return Thought(None, text)
    inside = text.lstrip()[len(OPENS) :] if begins else text
    thinking, closed, answer = inside.partition(CLOSES)
    return Thought(thinking.strip(), answer.lstrip() if closed else "")


def without_thinking(pieces: Iterable[str], opened: bool = False) -> Iterator[str]:
    """The pieces of a streamed text without its thinking part, each as soon as it is sure not to belong there."""
    held, thinking, answering = "", opened, False
    for piece in pieces:
        if answering:
            yield piece
            continue
        held += piece
        if not thinking:
            start = held.lstrip()
            if len(start) < len(OPENS) and OPENS.startswith(start):
                continue  # what there is may be the beginning of the mark
            thinking = start.startswith(OPENS)
            if not thinking:
                answering = True
                yield held
                continue
        _, closed, answer = held.partition(CLOSES)
        if closed and answer.strip():
            answering = True
            yield answer.lstrip()
    if not thinking and not answering:
        yield held
