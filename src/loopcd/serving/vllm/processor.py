"""LoopCD as a vLLM logits processor, for both of vLLM's interfaces.

V1 tells of requests by their row in the batch (`update_state`), V2 by a slot that they keep (`add_request`), and hands over
the rows' slots at every step. Which of the two is used depends on the device; V2 is the one of GPUs.
"""

# pyright: reportMissingImports=false

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import LogitsProcessor as RowProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotProcessor

from loopcd.decoding import rules
from loopcd.serving.vllm.layers import LoopedForCausalLM, model_of
from loopcd.serving.vllm.served import SWITCH, Setting, read_served
from loopcd.serving.vllm.start_up import latest

LOOPED = ("huginn_raven", "ouro")


@dataclass(frozen=True)
class Contrast:
    """The rows that are contrasted with one amateur loop."""

    amateur_loop: int
    rows: Tensor  # [n]
    strength: Tensor  # [n, 1]
    plausibility: Tensor  # [n, 1]


class LoopCDProcessor(RowProcessor, SlotProcessor):
    """Replaces the logits of rows that asked for LoopCD by its scores. For models that do not loop it does nothing."""

    def __init__(self, vllm_config: Any, *_: Any) -> None:
        config = vllm_config.model_config.hf_config
        looped = getattr(config, "model_type", None) in LOOPED
        self.served = read_served(config, vllm_config.additional_config) if looped else None
        self._vllm_config = vllm_config
        self._model: LoopedForCausalLM | None = None
        self.settings: dict[int, Setting] = {}  # by row (V1) or by slot (V2)
        self._planned: tuple[tuple[int, ...], list[Contrast]] | None = None

    # -- requests -----------------------------------------------------------------------------------------------------

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a bad request where it arrives: vLLM answers it with HTTP 400."""
        served, extra = latest(), sampling_params.extra_args
        if served is not None:
            served.read_request(extra)
        elif any(isinstance(key, str) and key.startswith(SWITCH) for key in extra or ()):
            raise ValueError(f"{SWITCH}…: the model that is served is not a looped model")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: requests came, went or moved to other rows."""
        if batch_update is not None and self.served is not None:
            process_dict_updates(self.settings, batch_update, lambda params, *_: self._setting(params))
            self._planned = None

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: a request takes a slot, whose former owner is forgotten."""
        setting = None if self.served is None else self._setting(sampling_params)
        self.settings.pop(req_idx, None)
        if setting is not None:
            self.settings[req_idx] = setting
        self._planned = None
        return setting is not None

    def _setting(self, sampling_params: Any) -> Setting | None:
        assert self.served is not None
        return self.served.read_request(sampling_params.extra_args)

    # -- logits -------------------------------------------------------------------------------------------------------

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        if not self.settings:
            return logits
        # without speculative decoding, which is refused, each request has one row
        owners = tuple(range(len(logits))) if ctx is None else tuple(ctx.idx_mapping_np.tolist())
        if self._planned is None or self._planned[0] != owners:
            self._planned = owners, self._plan(owners, logits.device)
        for contrast in self._planned[1]:
            logits[contrast.rows] = self._scores(logits[contrast.rows], contrast)
        return logits

    def _plan(self, owners: tuple[int, ...], device: torch.device) -> list[Contrast]:
        by_loop: dict[int, list[tuple[int, Setting]]] = {}
        for row, owner in enumerate(owners):
            setting = self.settings.get(owner)
            if setting is not None:
                by_loop.setdefault(setting.amateur_loop, []).append((row, setting))
        return [
            Contrast(
                loop,
                torch.tensor([row for row, _ in found], device=device),
                torch.tensor([[setting.strength] for _, setting in found], device=device, dtype=torch.float32),
                torch.tensor([[setting.plausibility] for _, setting in found], device=device, dtype=torch.float32),
            )
            for loop, found in sorted(by_loop.items())
        ]

    def _scores(self, expert: Tensor, contrast: Contrast) -> Tensor:
        """LoopCD's scores [n, vocab]; a row in which earlier processors left nothing possible stays as it is."""
        amateur = self._looped().amateur_logits(contrast.amateur_loop, contrast.rows).float()
        possible = expert > rules.IMPOSSIBLE
        allowed = rules.plausible(expert, contrast.plausibility) & possible
        scores = rules.contrast(expert, amateur, contrast.strength, allowed)
        return torch.where(possible.any(dim=-1, keepdim=True), scores, expert)

    def _looped(self) -> LoopedForCausalLM:
        if self._model is None:  # V1 makes its processors before the model
            self._model = model_of(self._vllm_config)
        if self._model is None:
            raise RuntimeError("the looped model of this engine was not found in this process")
        return self._model
