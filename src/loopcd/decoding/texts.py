"""Between text and tokens: padding, stop strings, and text that arrives token by token."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

BROKEN = "\ufffd"  # what a tokenizer shows for the first bytes of a character that is not whole yet


def pad_left(prompts: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Token ids [batch, longest] and their mask."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), pad)
    mask = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = True
    return ids.to(device), mask.to(device)


def trim(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


class Interruptible(StoppingCriteria):
    """Stops no row; but `interrupt` is asked after every token, and what it raises ends the whole generation."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.interrupt = interrupt

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.interrupt()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class StopTexts(StoppingCriteria):
    """Stop a row when what it generated (not its prompt) holds one of the stop strings."""

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str], prompt_length: int) -> None:
        self.tokenizer, self.stop_strings, self.prompt_length = tokenizer, tuple(stop_strings), prompt_length
        # every token but a part of a character is at least one character long
        self.window = max(len(stop.encode()) for stop in self.stop_strings) + 4

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        start = max(self.prompt_length, input_ids.shape[1] - self.window)
        texts = [self.tokenizer.decode(row[start:]) for row in input_ids]
        hit = [any(stop in text for stop in self.stop_strings) for text in texts]
        return torch.tensor(hit, device=input_ids.device)


class Stopper:
    """Stopping criteria for rows that do not keep step: each row has a text of its own length."""

    def __init__(self, criteria: StoppingCriteriaList, prompts: Tensor) -> None:
        self.texts: list[list[int]] = prompts.tolist()
        self.device = prompts.device
        self.longest = min((c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)), default=2**31)
        ends = [c.eos_token_id for c in criteria if isinstance(c, EosTokenCriteria)]
        self.ends = {int(token) for each in ends for token in torch.as_tensor(each).flatten()}
        self.others = [c for c in criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria)]

    def text(self, row: int) -> Tensor:
        """[1, length]"""
        return torch.tensor([self.texts[row]], device=self.device)

    def add(self, row: int, token: int) -> bool:
        """Append a token to a row's text; whether the row ends by it."""
        self.texts[row].append(token)
        if token in self.ends or len(self.texts[row]) >= self.longest:
            return True
        return any(bool(criterion(self.text(row), None)) for criterion in self.others)  # pyright: ignore

    def remaining(self, rows: Sequence[bool]) -> int:
        """Tokens that each of the rows marked in `rows` may still get."""
        return self.longest - max(len(text) for text, wanted in zip(self.texts, rows, strict=True) if wanted)


class TextPieces:
    """Text from tokens that arrive one at a time: no piece ends inside a character or inside what may be a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.tokens: list[int] = []
        self.shown = 0  # characters given out

    def add(self, token: int) -> str:
        self.tokens.append(token)
        text, stopped = self._text()
        if stopped:
            return self._give(text)
        text = text.rstrip(BROKEN)
        # last characters that are the first ones of a stop string
        held = max((n for stop in self.stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        return self._give(text[: len(text) - held])

    def end(self) -> str:
        return self._give(self._text()[0])

    def _text(self) -> tuple[str, bool]:
        return trim(self.tokenizer.decode(self.tokens, skip_special_tokens=True), self.stops)

    def _give(self, text: str) -> str:
        piece, self.shown = text[self.shown :], max(self.shown, len(text))
        return piece
