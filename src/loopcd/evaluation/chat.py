"""A tokenizer's chat template, handed to the tasks whose prompts are made with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Messages = Sequence[dict[str, str]]  # each with "role" and "content"


@dataclass(frozen=True)
class Chat:
    """What renders messages for a model; made by `chat_of`."""

    model: str
    tokenizer: Any = field(repr=False)

    def render(self, messages: Messages) -> str:
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False)
        except Exception as error:  # a template is a program, and may raise whatever it likes
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"the chat template of {self.model} fails to render ({reason}): mend it, or say --no-chat for the plain prompt"
            ) from error


class _Bare:
    def apply_chat_template(self, messages: Messages, tokenize: bool) -> str:
        return "\n".join(message["content"] for message in messages)


ELSEWHERE = Chat("texts made elsewhere", _Bare())  # their template is not known, and no model reads these prompts


def chat_of(model: str, tokenizer: Any) -> Chat | None:
    """None where there is no tokenizer, or none with a template."""
    return Chat(model, tokenizer) if getattr(tokenizer, "chat_template", None) else None
