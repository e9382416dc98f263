"""LoopCD and LoopGuidance as a vLLM logits processor, for both of vLLM's interfaces.

V1 tells of requests by their row in the batch (`update_state`), V2 by a slot that they keep (`add_request`), and hands over
the rows' slots at every step. Which of the two is used depends on the device; V2 is the one of GPUs.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import LOGITSPROCS_GROUP
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import LogitsProcessor as RowProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotProcessor

from loopcd.serving.vllm.contrast import Asked, StepPlan, densely, guide, lazily
from loopcd.serving.vllm.model import LoopedForCausalLM, model_of
from loopcd.serving.vllm.served import GUIDANCE, LOOPS, SWITCH, Contrast, Guidance, read_served
from loopcd.serving.vllm.start_up import LoopedStartUp

GREEDY = 1e-5  # temperatures below it are vLLM's argmax


class LoopCDProcessor(RowProcessor, SlotProcessor):
    """Replaces the logits of rows that asked for a method by its scores. For models that do not loop it does nothing."""

    def __init__(self, vllm_config: Any, *_: Any) -> None:
        config = vllm_config.model_config.hf_config
        looped = getattr(config, "model_type", None) in LOOPS
        self.served = read_served(config, vllm_config.additional_config) if looped else None
        self._vllm_config = vllm_config
        self.asked: dict[int, Asked] = {}  # by row (V1) or by slot (V2)
        self._last = _is_last(vllm_config.model_config)
        # each row's owner, and both methods' rows
        self._planned: tuple[Sequence[int], StepPlan | None, StepPlan | None] | None = None

    # -- requests -----------------------------------------------------------------------------------------------------

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a bad request where it arrives: vLLM answers it with HTTP 400."""
        served, extra = LoopedStartUp.latest, sampling_params.extra_args
        if served is not None:
            served.read_request(extra)
            if LoopedStartUp.in_parts and sampling_params.seed is not None and sampling_params.temperature >= GREEDY:
                raise ValueError(
                    f"seed={sampling_params.seed}: not with chunked prefill on a CPU; start with enable_chunked_prefill=False, "
                    "on a command line --no-enable-chunked-prefill"
                )
        elif asked := [key for key in extra or () if isinstance(key, str) and key.startswith((SWITCH, GUIDANCE))]:
            raise ValueError(f"{asked[0]}: the model that is served is not a looped model")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: requests came, went or moved to other rows. The next pass has exactly these rows."""
        if batch_update is not None and self.served is not None:
            process_dict_updates(self.asked, batch_update, lambda params, _, made: self._read(params, resumed=bool(made)))
            resumed = [row for row, each in self.asked.items() if each.resumed]
            settings = [each.setting for each in self.asked.values()]
            contested = all(isinstance(each, Contrast) for each in settings)  # LoopGuidance asks for every row's amateur
            self._model.expect({each.amateur_loop for each in settings}, resumed, contested)
            self._planned = None

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: a request takes a slot, whose former owner is forgotten."""
        asked = None if self.served is None else self._read(sampling_params)
        self.asked.pop(req_idx, None)
        if asked is not None:
            self.asked[req_idx] = asked
        self._planned = None
        return asked is not None

    def _read(self, params: Any, resumed: bool = False) -> Asked | None:
        assert self.served is not None
        setting = self.served.read_request(params.extra_args)
        if setting is None:
            return None
        # V1 applies penalties after this processor: they must not bring in what is implausible
        untouched = params.presence_penalty == params.frequency_penalty == 0 and params.repetition_penalty == 1
        return Asked(setting, self._last and untouched and params.temperature < GREEDY, resumed)

    # -- logits -------------------------------------------------------------------------------------------------------

    def apply(self, logits: Tensor, ctx: Any = None) -> Tensor:
        if not self.asked:
            return logits
        owners, model = range(len(logits)) if ctx is None else self._slots(logits, ctx), self._model
        if self._planned is None or self._planned[0] != owners:
            asking, carried = [self.asked.get(owner) for owner in owners], model.stack.carried
            contrasts, guided = (StepPlan.of(kind, asking, carried, logits.device) for kind in (Contrast, Guidance))
            self._planned = owners, contrasts, guided
        _, contrasts, guided = self._planned
        if contrasts is not None:
            (lazily if logits.is_cpu else densely)(logits, contrasts, model)
        if guided is not None:
            guide(logits, guided, model)
        return logits

    def _slots(self, logits: Tensor, ctx: Any) -> tuple[int, ...]:
        """V2: each row's slot. A request whose tokens were drafted has several rows, and only the device knows how many."""
        one_each = len(ctx.idx_mapping_np) == len(logits)
        return tuple((ctx.idx_mapping_np if one_each else ctx.expanded_idx_mapping).tolist())

    @cached_property
    def _model(self) -> LoopedForCausalLM:
        return model_of(self._vllm_config)  # not at once: V1 makes its processors before the model


def _is_last(model_config: Any) -> bool:
    """Whether nobody looks at the logits after this processor, but for penalties and the sampler."""
    others = len(entry_points(group=LOGITSPROCS_GROUP)) > 1 or bool(model_config.logits_processors)
    return not others and not str(model_config.logprobs_mode).startswith("processed")
