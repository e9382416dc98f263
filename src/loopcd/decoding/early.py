"""What an early loop says along a generation."""

from typing import Any

import torch
from torch import Tensor

from loopcd.decoding.reader import Reading
from loopcd.models.slots import sent
from loopcd.models.stages import Coda, LoopedModel, LoopState


class EarlyLoop:
    """Keeps the states of one early loop from one choice of a token to the next, and reads those that are asked for."""

    def __init__(self, model: LoopedModel, loop: int, coda: Coda) -> None:
        self.model, self.loop = model, loop
        self.coda: Coda = coda
        self.parked: list[Any] = []  # since the last token was chosen

    def alike(self) -> tuple[int, Coda]:
        return self.loop, self.coda

    def watch(self, state: LoopState) -> None:
        if state.loop == self.loop:
            self.parked.append(self.model.park(state, self.coda))

    def read(self, reading: Reading, rows: Tensor) -> Tensor:
        """What the head reads [n, width] of this loop in the n rows `rows` (rising, on the CPU) of the expert's reading."""
        count, device = reading.count, reading.hidden.device
        parked = self.model.join_parked(self.parked)
        texts, within = torch.unique_consecutive(rows // count, return_inverse=True)
        every = len(texts) * count == len(reading.hidden)
        read = self.model.read_parked(parked, count, None if every else sent(texts, device))  # [texts, count, width]
        return read[:, 0] if count == 1 else read[sent(within, device), sent(rows % count, device)]

    def clear(self) -> None:
        self.parked = []
