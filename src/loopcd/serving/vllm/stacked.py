"""Ouro and Nanbeige in vLLM: one paged key/value slot per (loop, layer); the readouts of all loops come for nothing."""

# pyright: reportMissingImports=false

from typing import Any

from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.models.utils import maybe_prefix
from vllm.sequence import IntermediateTensors

from loopcd.models.layers import RotaryTable, rotate_halves
from loopcd.serving.vllm.layers import Heads, LoopedForCausalLM, Norm, Positions, Rotary, Visits, joined
from loopcd.serving.vllm.served import LOOPS, read_served


class LlamaAttention(nn.Module):
    def __init__(self, config: Any, vllm_config: Any, index: int, prefix: str) -> None:
        super().__init__()
        self.heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        quant, layers, loops = vllm_config.quant_config, config.num_hidden_layers, getattr(config, LOOPS[config.model_type])
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size,
            config.head_dim,
            self.heads.all,
            self.heads.all_kv,
            bias=False,
            quant_config=quant,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            self.heads.all * config.head_dim, config.hidden_size, bias=False, quant_config=quant, prefix=f"{prefix}.o_proj"
        )
        self.visits = Visits(self.heads, range(index, loops * layers, layers), vllm_config, prefix)

    def forward(self, x: Tensor, rotary: Rotary, visit: int) -> Tensor:
        query, key, value = self.qkv_proj(x)[0].split(self.heads.widths, dim=-1)
        query, key = (rotate_halves(each.unflatten(-1, (-1, self.heads.size)), *rotary).flatten(1) for each in (query, key))
        return self.o_proj(self.visits(visit, query, key, value))[0]


class LlamaMLP(nn.Module):
    def __init__(self, config: Any, vllm_config: Any, prefix: str) -> None:
        super().__init__()
        width, inner, quant = config.hidden_size, config.intermediate_size, vllm_config.quant_config
        self.gate_up_proj = MergedColumnParallelLinear(
            width, [inner] * 2, bias=False, quant_config=quant, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(inner, width, bias=False, quant_config=quant, prefix=f"{prefix}.down_proj")
        self.act = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_up_proj(x)[0]))[0]


class OuroLayer(nn.Module):
    """A norm before and a norm after each half, both inside the residual sum."""

    def __init__(self, config: Any, vllm_config: Any, index: int, prefix: str) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, vllm_config, index, f"{prefix}.self_attn")
        self.mlp = LlamaMLP(config, vllm_config, f"{prefix}.mlp")
        self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm_2 = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm_2 = Norm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, visit: int) -> Tensor:
        x = x + self.input_layernorm_2(self.self_attn(self.input_layernorm(x), rotary, visit))
        return x + self.post_attention_layernorm_2(self.mlp(self.post_attention_layernorm(x)))


class NanbeigeLayer(nn.Module):
    """A norm before each half, as in Llama."""

    def __init__(self, config: Any, vllm_config: Any, index: int, prefix: str) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, vllm_config, index, f"{prefix}.self_attn")
        self.mlp = LlamaMLP(config, vllm_config, f"{prefix}.mlp")
        self.input_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, rotary: Rotary, visit: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary, visit)
        return x + self.mlp(self.post_attention_layernorm(x))


LAYERS = {"ouro": OuroLayer, "nanbeige": NanbeigeLayer}


@support_torch_compile
class Stack(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        served = read_served(config, vllm_config.additional_config)
        self.loops, self.carried = served.num_loops, served.amateur_loops
        self.norm_between_loops = not getattr(config, "skip_loop_final_norm", False)
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=vllm_config.quant_config,
            prefix=f"{prefix}.embed_tokens",
        )
        kind, count = LAYERS[config.model_type], config.num_hidden_layers
        self.layers = nn.ModuleList(kind(config, vllm_config, index, f"{prefix}.layers.{index}") for index in range(count))
        self.norm = Norm(config.hidden_size, eps=config.rms_norm_eps)
        table = RotaryTable(config.rope_base, config.head_dim, "halves")
        self.positions = Positions(table, vllm_config.model_config.max_model_len, vllm_config.model_config.dtype)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        rotary = self.positions(positions)
        readouts = []
        for loop in range(1, self.loops + 1):
            for layer in self.layers:
                x = layer(x, rotary, loop - 1)
            x = self.norm(x) if self.norm_between_loops else x
            if loop in self.carried:
                readouts.append(self._readout(x))
        return joined(self._readout(x), readouts)

    def _readout(self, x: Tensor) -> Tensor:
        return x if self.norm_between_loops else self.norm(x)


class StackedForCausalLM(LoopedForCausalLM):
    stacked = {  # noqa: RUF012
        ".q_proj": (".qkv_proj", "q"),
        ".k_proj": (".qkv_proj", "k"),
        ".v_proj": (".qkv_proj", "v"),
        ".gate_proj": (".gate_up_proj", 0),
        ".up_proj": (".gate_up_proj", 1),
    }
    packed_modules_mapping = {  # noqa: RUF012
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    embedding = "model.embed_tokens.weight"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config)
        self.model = Stack(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self.add_head(self.model.embed_tokens, vllm_config, prefix)


class OuroForCausalLM(StackedForCausalLM):
    ignored = ("model.early_exit_gate.",)  # every token runs all loops


class NanbeigeForCausalLM(StackedForCausalLM):
    pass
