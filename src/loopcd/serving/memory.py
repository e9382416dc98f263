"""How many requests fit a device: what is left beside the weights, divided by what one request's keys and values take."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from loopcd.models.memory import cache_bytes
from loopcd.models.presets import empty_model

UTILISATION = 0.92  # of the device's memory, vLLM's own default
ACTIVATIONS = 1_000_000_000  # bytes left for a pass; vLLM measures them when it starts


@dataclass(frozen=True)
class Room:
    """A model on one device."""

    slots: int
    weight_bytes: int
    token_bytes: int  # of one token in all slots
    tokens: int  # that fit

    def requests(self, context: int) -> int:
        """Texts of that many tokens that fit at a time."""
        return self.tokens // context


def room(config: PreTrainedConfig, device_bytes: float, dtype: torch.dtype = torch.bfloat16) -> Room:
    """(0.92 × device − weights − activations) / (2 × slots × key/value heads × head size × bytes of a number).

    Amateurs take no slots: they read out through the expert's.
    """
    model = empty_model(config)
    weights = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    token = cache_bytes(model, 1, dtype=dtype)
    free = UTILISATION * device_bytes - weights - ACTIVATIONS
    return Room(model.slot_count(), weights, token, max(0, int(free // token)))
