"""The text of a trace's tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

from loopcd.decoding.texts import BROKEN


def text_pieces(tokenizer: Any, token_ids: Sequence[int]) -> tuple[str, ...]:
    """One text for each token, which together are the text with special tokens; no piece splits a character."""
    if tokenizer is None:
        return ("",) * len(token_ids)
    whole = tokenizer.decode(token_ids)
    pieces, held = [], []
    for token in token_ids:
        held.append(token)
        text = tokenizer.decode(held)
        pieces.append("" if text.endswith(BROKEN) else text)
        held = held if text.endswith(BROKEN) else []
    if held:
        pieces[-1] = tokenizer.decode(held)
    return tuple(pieces) if "".join(pieces) == whole else _by_beginnings(tokenizer, token_ids, whole)


def _by_beginnings(tokenizer: Any, token_ids: Sequence[int], whole: str) -> tuple[str, ...]:
    """The same where a token's text depends on those before it: what each adds to the text of all before. Slower."""
    pieces, shown = [], 0
    for count in range(1, len(token_ids)):
        text = tokenizer.decode(token_ids[:count]).rstrip(BROKEN)
        known = len(text) if whole.startswith(text) else shown
        pieces.append(whole[shown : max(shown, known)])
        shown = max(shown, known)
    return (*pieces, whole[shown:])


def texts_of(tokenizer: Any, ids: Iterable[int]) -> dict[int, str]:
    """The text of each token by itself."""
    return {} if tokenizer is None else {token: tokenizer.decode([token]) for token in sorted(set(ids))}
