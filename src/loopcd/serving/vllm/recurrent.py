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
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix
from vllm.platforms import current_platform
from vllm.sequence import IntermediateTensors

from loopcd.models.configs import RetrofitConfig
from loopcd.serving.vllm.huginn import HuginnLayer
from loopcd.serving.vllm.layers import FewRows, LoopedForCausalLM, Norm, Rotary, Visits, is_eager, joined
from loopcd.serving.vllm.retrofit import RetrofitLayer
from loopcd.serving.vllm.served import read_served


@support_torch_compile
class RecurrentStack(nn.Module):
    prelude: nn.ModuleList
    core_block: nn.ModuleList
    coda: nn.ModuleList

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.retrofitted = isinstance(config, RetrofitConfig)
        self.loops, self.scale = config.mean_recurrence, config.embed_scale
        self.start = config.initial_state_mode if self.retrofitted and config.layers_like == "olmo" else "random"
        self.carried = read_served(config, vllm_config.additional_config).amateur_loops
        quant = vllm_config.quant_config
        self.wte = VocabParallelEmbedding(config.vocab_size, config.n_embd, quant_config=quant, prefix=f"{prefix}.wte")
        self._add_layers(config, vllm_config, prefix)
        self.adapter = ColumnParallelLinear(
            2 * config.n_embd,
            config.n_embd,
            bias=self.retrofitted and config.bias,
            gather_output=True,
            quant_config=quant,
            prefix=f"{prefix}.adapter",
        )
        self.ln_f = Norm(config.n_embd, eps=config.norm_eps)
        # tokens of a pass that come before the last of a text that is read again after a preemption
        self.settled: Tensor
        settled = torch.zeros(vllm_config.scheduler_config.max_num_batched_tokens, 1, dtype=torch.bool)
        self.register_buffer("settled", settled, persistent=False)
        self.some_settled = bool(self.carried) and not is_eager(vllm_config)  # a fixed graph asks in every pass
        self.ends: Tensor | None = None  # [texts], the tokens of a pass that an amateur is asked about; None: all
        self.waits: Any = (
            None  # the metadata of a pass whose amateurs are read out when they are asked for; None: they are at once
        )
        self.waiting: tuple[list[Tensor], Rotary] | None = None  # their latents, each [rows, width], and the rows' positions
        for visits in self._coda_visits():
            visits.keeps = is_eager(vllm_config) and current_platform.is_cpu()

    def _add_layers(self, config: Any, vllm_config: Any, prefix: str) -> None:
        kind, made = RetrofitLayer if self.retrofitted else HuginnLayer, 0
        for name, count, visits in (
            ("prelude", config.n_layers_in_prelude, 1),
            ("core_block", config.n_layers_in_recurrent_block, self.loops),
            ("coda", config.n_layers_in_coda, 1),
        ):
            slots = [range(made + index, made + count * visits, count) for index in range(count)]  # visit after visit
            made += count * visits
            layers = (kind(config, vllm_config, slots[index], f"{prefix}.{name}.{index}") for index in range(count))
            self.add_module(name, nn.ModuleList(layers))
        self.positions = kind.positions(config, vllm_config.model_config)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = (self.wte(input_ids) if inputs_embeds is None else inputs_embeds) * self.scale
        rotary = self.positions(positions)
        for layer in self.prelude:
            x = layer(x, rotary)
        state, early = torch.zeros_like(x) if self.start == "random" else x, []
        for loop in range(1, self.loops + 1):
            if loop > 1 or self.start != "skip-adapter":
                state = self.adapter(torch.cat([state, x], dim=-1))[0]
            for layer in self.core_block:
                state = layer(state, rotary, loop - 1)
            if loop in self.carried:
                early.append(state)
        if self.waits is None:
            return self._readouts(state, early, rotary)
        self.waiting = early, rotary
        return self._readouts(state, [], rotary)

    def _coda_visits(self) -> list[Visits]:
        return [cast(Any, layer).attn.visits for layer in self.coda]

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
            return self._readouts(state, [], (cos[rows], sin[rows]))
        finally:
            for visits in every:
                visits.few = None

    def _readouts(self, last: Tensor, early: list[Tensor], rotary: Rotary) -> Tensor:
        """[tokens, (1 + early) × width], the expert's first, from its latents and the amateurs', each [tokens, width].

        Of a text that is read again an amateur has the last token only: the rest was the expert's when it was made.
        """
        readers = 1 + len(early)
        if self.some_settled:
            early = [torch.where(self.settled[: len(last)], last, each) for each in early]
        x = torch.cat([*early, last]) if early else last
        if not self.retrofitted:  # Huginn's final norm stands on both sides of the coda
            x = self.ln_f(x)
        if early:
            rotary = rotary[0].repeat(readers, 1, 1), rotary[1].repeat(readers, 1, 1)
        kept = self._asked(len(early), len(last)) if early else None
        for index, layer in enumerate(self.coda):
            x = layer(x, rotary, 0, readers, kept if index == len(self.coda) - 1 else None)
        x = self.ln_f(x)
        if kept is not None and len(self.coda):
            return self._spread(x, len(early), len(last))
        *amateurs, expert = x.unflatten(0, (readers, -1)).unbind()
        return joined(expert, amateurs)

    def _asked(self, amateurs: int, tokens: int) -> Tensor | None:
        """What the coda's last layer has to give: of a prompt, the amateurs' last token. The others' keys and values it needs,
        but nobody looks at what it makes of them."""
        if self.ends is None:
            return None
        own = (self.ends + tokens * torch.arange(amateurs, device=self.ends.device)[:, None]).flatten()
        return torch.cat([own, torch.arange(amateurs * tokens, (amateurs + 1) * tokens, device=self.ends.device)])

    def _spread(self, x: Tensor, amateurs: int, tokens: int) -> Tensor:
        """`joined` of the amateurs' readouts at `ends`, one after the other, and all of the expert's."""
        early, expert = x.split([len(x) - tokens, tokens])
        made = x.new_zeros(tokens, 1 + amateurs, x.shape[1])
        made[:, 0] = expert
        made[self.ends, 1:] = early.unflatten(0, (amateurs, -1)).transpose(0, 1)
        return made.flatten(1)


class RavenForCausalLM(LoopedForCausalLM):
    """Of both families, since their public checkpoints name the same architecture."""

    ignored = ("freqs_cis",)  # it may have been rounded to bfloat16: it is computed in float32 instead
    embedding = "transformer.wte.weight"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config)
        self.transformer = RecurrentStack(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "transformer"))
        self.add_head(self.transformer.wte, vllm_config, prefix)

    def forward(self, *inputs: Any, **more: Any) -> Tensor:
        stack, metadata = self.stack, self._metadata() if self.carried and (self.eager or self.resumed) else None
        stack.waits = stack.waiting = None
        if metadata is None or metadata.max_query_len == 1:  # each text has one token
            stack.waits = metadata if self.some_rows and current_platform.is_cpu() else None
            return super().forward(*inputs, **more)
        bounds, asks = metadata.query_start_loc, stack.some_settled  # [texts + 1], where each text begins
        for first, last in self._read_again(bounds):
            stack.settled[first:last] = stack.some_settled = True
        stack.ends = bounds[1:].long() - 1 if self.eager else None
        try:
            return super().forward(*inputs, **more)
        finally:
            if self.resumed:
                stack.settled.zero_()
            stack.some_settled, stack.ends = asks, None

    def _read_again(self, bounds: Tensor) -> list[tuple[int, int]]:
        """Where the texts are, without their last tokens, that were preempted and are read again."""
        starts = bounds.tolist() if self.resumed else []  # asked of the device only then
        return [(starts[row], starts[row + 1] - 1) for row in self.resumed]

    def _metadata(self) -> Any:
        """How this pass attends, the same in all slots; None in one that only warms up."""
        metadata = get_forward_context().attn_metadata
        return next(iter(metadata.values())) if isinstance(metadata, dict) else None
