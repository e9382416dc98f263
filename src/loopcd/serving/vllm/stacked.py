"""Ouro and Nanbeige in vLLM: one paged key/value slot per (loop, layer); the readouts of all loops come for nothing."""

# pyright: reportMissingImports=false

from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile

from loopcd.serving.vllm.layers import Rotary
from loopcd.serving.vllm.model import LoopedForCausalLM, LoopedStack, joined


@support_torch_compile
class Stack(LoopedStack):
    layers: nn.ModuleList

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.norm_between_loops = not getattr(vllm_config.model_config.hf_config, "skip_loop_final_norm", False)

    def groups(self, config: Any) -> list[tuple[str, int, int]]:
        return [("layers", config.num_hidden_layers, self.loops)]

    def advance(self, state: Tensor, given: Tensor, rotary: Rotary, loop: int) -> Tensor:
        for layer in self.layers:
            state = layer(state, rotary, loop - 1)
        return self.norm(state) if self.norm_between_loops else state

    def readouts(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        if self.norm_between_loops:
            return joined(last, early)
        return joined(self.norm(last), [self.norm(each) for each in early])


class StackedForCausalLM(LoopedForCausalLM):
    stack_type = Stack
    packed_modules_mapping = {  # noqa: RUF012
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
