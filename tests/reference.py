"""Huginn and Ouro written a second time, straight from their formulas, to check the package against.

Nothing here is shared with `loopcd`: no cache, no batch, no padding. One text goes in whole, every loop is written out,
and all numbers are float64. Slow and plain on purpose: read this as the specification.

Shapes: `ids` [time]; a hidden state [time, width]; queries, keys and values [time, heads, head_dim].
"""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def float64(weights: Weights) -> dict[str, Tensor]:
    return {name: weight.detach().double() for name, weight in weights.items()}


# What both families are made of


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps) * weight


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def angles(time: int, base: float, head_dim: int) -> Tensor:
    """[time, head_dim / 2]: position p turns pair i by p · base^(−2i / head_dim)."""
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    return torch.arange(time, dtype=torch.float64)[:, None] * base ** (-2 * pair / head_dim)


def rotate_pairs(x: Tensor, base: float, pairs: Callable[[int], list[tuple[int, int]]]) -> Tensor:
    """Turn each pair of the last dimension by its position's angle."""
    turned = torch.empty_like(x)
    angle = angles(x.shape[0], base, x.shape[-1])
    for index, (first, second) in enumerate(pairs(x.shape[-1])):
        cos, sin = angle[:, index, None].cos(), angle[:, index, None].sin()  # [time, 1]
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., first] * sin + x[..., second] * cos
    return turned


def neighbours(head_dim: int) -> list[tuple[int, int]]:
    return [(2 * i, 2 * i + 1) for i in range(head_dim // 2)]


def halves(head_dim: int) -> list[tuple[int, int]]:
    return [(i, i + head_dim // 2) for i in range(head_dim // 2)]


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention, each key head serving heads / kv_heads query heads in turn: [time, heads × head_dim]."""
    time, heads, head_dim = query.shape
    group = heads // key.shape[1]
    outputs, later = [], torch.ones(time, time).triu(1).bool()
    for head in range(heads):
        scores = query[:, head] @ key[:, head // group].T / sqrt(head_dim)  # [time, time]
        scores = scores.masked_fill(later, -torch.inf)
        outputs.append(scores.softmax(dim=-1) @ value[:, head // group])
    return torch.cat(outputs, dim=-1)


# Huginn


def huginn_layer(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    """x = norm_2(attn(norm_1(x)) + x); x = norm_4(mlp(norm_3(x)) + x): the norms stand outside the residual sums."""

    def norm(number: int, y: Tensor) -> Tensor:
        return rms_norm(y, w[f"{at}.norm_{number}.weight"], config.norm_eps)

    x = norm(2, huginn_attention(w, f"{at}.attn", config, norm(1, x)) + x)
    first, second = (norm(3, x) @ w[f"{at}.mlp.fc.weight"].T).chunk(2, dim=-1)
    return norm(4, (silu(first) * second) @ w[f"{at}.mlp.proj.weight"].T + x)


def huginn_attention(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    heads, kv_heads = config.n_heads, config.num_key_value_heads
    head_dim = config.n_embd // heads
    rows = (x @ w[f"{at}.Wqkv.weight"].T).view(len(x), heads + 2 * kv_heads, head_dim)
    query, key, value = rows.split([heads, kv_heads, kv_heads], dim=1)
    if config.qk_bias:  # [2, 1, heads, head_dim]: one for queries, one for keys, added before the rotation
        bias = w[f"{at}.qk_bias"]
        query, key = query + bias[0], key + bias[1][:, :kv_heads]
    query, key = (rotate_pairs(part, config.rope_base, neighbours) for part in (query, key))
    return attend(query, key, value) @ w[f"{at}.proj.weight"].T


def huginn_latents(weights: Weights, config: Any, ids: Tensor, loops: int, initial: Tensor | None = None) -> list[Tensor]:
    """The raw states h_0 … h_loops: h_r = core(A [h_(r−1), prelude(√width · E[ids])])."""
    w = float64(weights)
    x = w["transformer.wte.weight"][ids] * sqrt(config.n_embd)
    for layer in range(config.n_layers_in_prelude):
        x = huginn_layer(w, f"transformer.prelude.{layer}", config, x)
    state = torch.zeros_like(x) if initial is None else initial.double()
    states = [state]
    for _ in range(loops):
        state = torch.cat([state, x], dim=-1) @ w["transformer.adapter.weight"].T
        for layer in range(config.n_layers_in_recurrent_block):
            state = huginn_layer(w, f"transformer.core_block.{layer}", config, state)
        states.append(state)
    return states


def huginn_readout(weights: Weights, config: Any, state: Tensor) -> Tensor:
    """Logits [time, vocab] of a raw state: ln_f, coda, the same ln_f, head."""
    w = float64(weights)
    x = rms_norm(state, w["transformer.ln_f.weight"], config.norm_eps)
    for layer in range(config.n_layers_in_coda):
        x = huginn_layer(w, f"transformer.coda.{layer}", config, x)
    x = rms_norm(x, w["transformer.ln_f.weight"], config.norm_eps)
    return x @ w["transformer.wte.weight" if config.tie_word_embeddings else "lm_head.weight"].T


def huginn_logits(weights: Weights, config: Any, ids: Tensor, loop: int, initial: Tensor | None = None) -> Tensor:
    """Logits [time, vocab] of the model stopped after `loop` loops."""
    return huginn_readout(weights, config, huginn_latents(weights, config, ids, loop, initial)[-1])


# Ouro


def ouro_layer(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    """x = x + norm(attn(norm(x))); x = x + norm(mlp(norm(x))): both norms stand inside the residual sums."""

    def norm(name: str, y: Tensor) -> Tensor:
        return rms_norm(y, w[f"{at}.{name}.weight"], config.rms_norm_eps)

    x = x + norm("input_layernorm_2", ouro_attention(w, f"{at}.self_attn", config, norm("input_layernorm", x)))
    y = norm("post_attention_layernorm", x)
    y = silu(y @ w[f"{at}.mlp.gate_proj.weight"].T) * (y @ w[f"{at}.mlp.up_proj.weight"].T)
    return x + norm("post_attention_layernorm_2", y @ w[f"{at}.mlp.down_proj.weight"].T)


def ouro_attention(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    head_dim = config.hidden_size // config.num_attention_heads
    query, key, value = (
        (x @ w[f"{at}.{name}_proj.weight"].T).view(len(x), heads, head_dim)
        for name, heads in (
            ("q", config.num_attention_heads),
            ("k", config.num_key_value_heads),
            ("v", config.num_key_value_heads),
        )
    )
    query, key = (rotate_pairs(part, config.rope_base, halves) for part in (query, key))
    return attend(query, key, value) @ w[f"{at}.o_proj.weight"].T


def ouro_latents(weights: Weights, config: Any, ids: Tensor, loops: int) -> list[Tensor]:
    """The states h_0 … h_loops: h_r = norm(layers(h_(r−1))), h_0 the embeddings."""
    w = float64(weights)
    state = w["model.embed_tokens.weight"][ids]
    states = [state]
    for _ in range(loops):
        for layer in range(config.num_hidden_layers):
            state = ouro_layer(w, f"model.layers.{layer}", config, state)
        state = rms_norm(state, w["model.norm.weight"], config.rms_norm_eps)
        states.append(state)
    return states


def ouro_readout(weights: Weights, config: Any, state: Tensor) -> Tensor:
    """Logits [time, vocab] of a state, which the loop has normed already."""
    w = float64(weights)
    return state @ w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"].T


def ouro_logits(weights: Weights, config: Any, ids: Tensor, loop: int) -> Tensor:
    """Logits [time, vocab] of the model stopped after `loop` loops."""
    return ouro_readout(weights, config, ouro_latents(weights, config, ids, loop)[-1])


def ouro_exit_pdf(weights: Weights, config: Any, ids: Tensor, loops: int) -> Tensor:
    """[loops, time]: p_i = σ(g_i) · Π_(j<i) (1 − σ(g_j)); the last loop takes what remains."""
    w = float64(weights)
    going = torch.ones(len(ids), dtype=torch.float64)
    chances = []
    for state in ouro_latents(weights, config, ids, loops)[1:]:
        gate = state @ w["model.early_exit_gate.weight"][0] + w["model.early_exit_gate.bias"]
        stop = 1 / (1 + torch.exp(-gate))
        chances.append(going * stop)
        going = going * (1 - stop)
    chances[-1] = chances[-1] + going
    return torch.stack(chances)


def logits(weights: Weights, config: Any, ids: Tensor, loop: int) -> Tensor:
    """Those of the configuration's family."""
    from reference_families import READINGS  # which reads the parts above

    readings = {"HuginnConfig": huginn_logits, "OuroConfig": ouro_logits, **READINGS}
    return readings[type(config).__name__](weights, config, ids, loop)
