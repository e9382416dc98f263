"""Slow readings to compare with: one text at a time, every loop's logits of the whole vocabulary."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from loopcd.analysis.laboratory import GREEDY, Laboratory
from loopcd.models import LoopCache


@torch.no_grad()
def loops_of(lab: Laboratory, prompt: str, tokens: Sequence[int]) -> Tensor:
    """[token, loop, vocab]: what each loop says where each token of the answer is chosen, pass by pass."""
    model, cache = lab.engine.model, LoopCache()
    said = []
    for ids in [lab.engine.tokenizer(prompt).input_ids, *([token] for token in tokens[:-1])]:
        state, parked = model.begin(torch.tensor([ids]), cache), []
        for _ in range(model.num_loops - 1):
            state = model.advance(state)
            parked.append(model.park(state))
        final = model.readout(model.advance(state))[:, -1:]
        said.append(model.head(torch.cat([*(model.read_parked(each) for each in parked), final]))[:, 0])
    return torch.stack(said)


_read: dict[tuple[object, ...], Tensor] = {}


def answers_read(lab: Laboratory) -> list[Tensor]:
    """Of greedy's answers, each [token, loop, vocab]; read once, since many tests compare with them."""
    (greedy,) = lab.answers(GREEDY)
    found = []
    for item, ids in zip(lab.task().items, greedy.token_ids, strict=True):
        key = (lab.session.model, lab.loops, item.prompt, tuple(ids))
        if key not in _read:
            _read[key] = loops_of(lab, item.prompt, ids)
        found.append(_read[key])
    return found


def margins(logits: Tensor) -> Tensor:
    """[token, loop] of the last loop's winner."""
    found = torch.empty(logits.shape[:2])
    for token in range(logits.shape[0]):
        winner = int(logits[token, -1].argmax())
        for loop in range(logits.shape[1]):
            others = torch.cat([logits[token, loop, :winner], logits[token, loop, winner + 1 :]])
            found[token, loop] = logits[token, loop, winner] - others.max()
    return found


def hard(logits: Tensor) -> list[bool]:
    found = margins(logits)
    return [float(row.max() - row[-1]) >= 1.5 for row in found]


def late_alternative(logits: Tensor) -> int | None:
    """[loop, vocab] of one position: the other first choice of the latter half, None where there is none."""
    winner, half = int(logits[-1].argmax()), logits.shape[0] // 2
    others = [int(row.argmax()) for row in logits[half:] if int(row.argmax()) != winner]
    if not others:
        return None
    most = max(Counter(others).values())
    return next(token for token in reversed(others) if others.count(token) == most)


@torch.no_grad()
def greedy_on(lab: Laboratory, ids: list[int], number: int) -> list[int]:
    """Greedy decoding without a cache."""
    made: list[int] = []
    for _ in range(number):
        logits = lab.engine.model(torch.tensor([[*ids, *made]]), use_cache=False).logits
        made.append(int(logits[0, -1].argmax()))
        if made[-1] == lab.engine.tokenizer.eos_token_id:
            break
    return made
