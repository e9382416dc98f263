"""Huginn and the retrofitted models in vLLM: paged key/value slots for prelude, core loop by loop, and coda.

Amateurs and expert read out through the same coda slots, the expert last, so that its entries stay: in the pass over a prompt
an amateur sees the prompt by its own entries, at every later token its own entry for that token and the expert's before. All
of them go through the coda's weights together, which therefore are read once. On a CPU, where the host is not ahead of the
device, a pass in which every text has one token leaves the amateurs' latents where they are: the processor asks for those of
contested rows alone, and only these go through the coda.

They start from the zero state, so that a text depends on its prompt alone; retrofitted OLMos also from what the prelude made,
where their configuration says so.
"""

# pyright: reportMissingImports=false

from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.linear import ColumnParallelLinear
from vllm.platforms import current_platform

from loopcd.models.configs import RetrofitConfig
from loopcd.serving.vllm.layers import Rotary, layers_like
from loopcd.serving.vllm.model import LoopedForCausalLM, LoopedStack, is_eager, joined
from loopcd.serving.vllm.visits import FewRows, Visits


@support_torch_compile
class RecurrentStack(LoopedStack):
    prelude: nn.ModuleList
    core_block: nn.ModuleList
    coda: nn.ModuleList

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config, eager = vllm_config.model_config.hf_config, is_eager(vllm_config)
        self.retrofitted, self.scale = isinstance(config, RetrofitConfig), config.embed_scale
        self.start = config.initial_state_mode if layers_like(config) == "olmo" else "random"
        self.adapter = ColumnParallelLinear(
            2 * config.n_embd,
            config.n_embd,
            bias=self.retrofitted and config.bias,
            gather_output=True,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.adapter",
        )
        # tokens of a pass that come before the last of a text that is read again after a preemption
        self.settled: Tensor
        settled = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, 1, dtype=torch.bool)
        self.register_buffer("settled", settled, persistent=False)
        self.some_settled = bool(self.carried) and not eager  # a fixed graph asks in every pass
        self.ends: Tensor | None = None  # [texts], the tokens of a pass that an amateur is asked about; None: all
        # the metadata of a pass whose amateurs are read out when they are asked for; None: they are at once
        self.waits: Any = None
        self.waiting: tuple[list[Tensor], Rotary] | None = None  # their latents, each [rows, width], and the rows' positions
        for visits in self._coda_visits():
            visits.keeps = eager and current_platform.is_cpu()

    def groups(self, config: Any) -> list[tuple[str, int, int]]:
        return [
            ("prelude", config.n_layers_in_prelude, 1),
            ("core_block", config.n_layers_in_recurrent_block, self.loops),
            ("coda", config.n_layers_in_coda, 1),
        ]

    def begin(self, embedded: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        x = embedded * self.scale
        for layer in self.prelude:
            x = layer(x, rotary)
        return torch.zeros_like(x) if self.start == "random" else x, x

    def advance(self, state: Tensor, given: Tensor, rotary: Rotary, loop: int) -> Tensor:
        if loop > 1 or self.start != "skip-adapter":
            state = self.adapter(torch.cat([state, given], dim=-1))[0]
        for layer in self.core_block:
            state = layer(state, rotary, loop - 1)
        return state

    def readouts(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        if self.waits is None:
            return self._through_coda(last, early, rotary)
        self.waiting = early, rotary
        return self._through_coda(last, [], rotary)

    def read_out_late(self, rows: Tensor, places: Tensor) -> Tensor:
        """[n, width], of the amateurs carried[places[i]] in rows of the last pass, where each had one token; no row twice."""
        assert self.waiting is not None
        early, (cos, sin) = self.waiting
        state = early[0][rows] if len(early) == 1 else torch.stack(early)[places, rows]
        every = self._coda_visits()
        few = FewRows(rows, self.waits, every[0][0]) if every else None
        for visits in every:
            visits.few = few
        try:
            return self._through_coda(state, [], (cos[rows], sin[rows]))
        finally:
            for visits in every:
                visits.few = None

    def _coda_visits(self) -> list[Visits]:
        return [cast(Any, layer).attn.visits for layer in self.coda]

    def _through_coda(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        """`readouts`, the amateurs' and the expert's together.

        Of a text that is read again an amateur has the last token only: the rest was the expert's when it was made.
        """
        readers = 1 + len(early)
        if self.some_settled:
            early = [torch.where(self.settled[: len(last)], last, each) for each in early]
        x = torch.cat([*early, last]) if early else last
        if not self.retrofitted:  # Huginn's final norm stands on both sides of the coda
            x = self.norm(x)
        if early:
            rotary = rotary[0].repeat(readers, 1, 1), rotary[1].repeat(readers, 1, 1)
        kept = self._asked(self.ends, len(early), len(last)) if early and len(self.coda) and self.ends is not None else None
        for index, layer in enumerate(self.coda):
            x = layer(x, rotary, 0, readers, kept if index == len(self.coda) - 1 else None)
        x = self.norm(x)
        if kept is not None:
            x = x.new_zeros(readers * len(last), x.shape[1]).index_copy_(0, kept, x)
        *amateurs, expert = x.unflatten(0, (readers, -1)).unbind()
        return joined(expert, amateurs)

    def _asked(self, ends: Tensor, amateurs: int, tokens: int) -> Tensor:
        """What the coda's last layer has to give: of a prompt, the amateurs' last token. The others' keys and values it needs,
        but nobody looks at what it makes of them."""
        own = (ends + tokens * torch.arange(amateurs, device=ends.device)[:, None]).flatten()
        return torch.cat([own, torch.arange(amateurs * tokens, (amateurs + 1) * tokens, device=ends.device)])


class RavenForCausalLM(LoopedForCausalLM):
    """Of both families, since their public checkpoints name the same architecture."""

    stack_type = RecurrentStack

    def forward(self, *inputs: Any, **more: Any) -> Tensor:
        stack, metadata = self.stack, None
        if stack.carried and (self.eager or self.resumed):
            every = get_forward_context().attn_metadata  # by slot, all alike; none in a pass that only warms up
            metadata = next(iter(every.values())) if isinstance(every, dict) else None
        stack.waits = stack.waiting = None
        if metadata is None or metadata.max_query_len == 1:  # each text has one token
            stack.waits = metadata if self.some_rows and current_platform.is_cpu() else None
            return super().forward(*inputs, **more)
        bounds, asks = metadata.query_start_loc, stack.some_settled  # [texts + 1], where each text begins
        starts = bounds.tolist() if self.resumed else []  # asked of the device only then
        for row in self.resumed:  # texts that were preempted and are read again, without their last tokens
            stack.settled[starts[row] : starts[row + 1] - 1] = stack.some_settled = True
        stack.ends = bounds[1:].long() - 1 if self.eager else None
        try:
            return super().forward(*inputs, **more)
        finally:
            if self.resumed:
                stack.settled.zero_()
            stack.some_settled, stack.ends = asks, None
