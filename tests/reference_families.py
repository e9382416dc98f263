"""Nanbeige, the retrofitted models and Parcae written a second time, in float64, as tests/reference.py does Huginn and Ouro.

Shapes: `ids` [time]; a hidden state [time, width]; queries, keys and values [time, heads, head_dim].
"""

from math import pi
from typing import Any

import torch
from torch import Tensor

from reference import Weights, attend, float64, halves, neighbours, rms_norm, rotate_pairs, silu


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T


def head_of(w: Weights, config: Any, embedding: str) -> Tensor:
    return w[embedding if config.tie_word_embeddings else "lm_head.weight"]


# Nanbeige: x = x + attn(norm(x)); x = x + mlp(norm(x)); a norm after every loop, or with the flag only before the head


def nanbeige_layer(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    y = rms_norm(x, w[f"{at}.input_layernorm.weight"], config.rms_norm_eps)
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    query, key, value = (
        linear(w, f"{at}.self_attn.{name}_proj", y).view(len(x), count, config.head_dim) for name, count in heads.items()
    )
    query, key = (rotate_pairs(part, config.rope_base, halves) for part in (query, key))
    x = x + linear(w, f"{at}.self_attn.o_proj", attend(query, key, value))
    y = rms_norm(x, w[f"{at}.post_attention_layernorm.weight"], config.rms_norm_eps)
    gated = silu(linear(w, f"{at}.mlp.gate_proj", y)) * linear(w, f"{at}.mlp.up_proj", y)
    return x + linear(w, f"{at}.mlp.down_proj", gated)


def nanbeige_logits(weights: Weights, config: Any, ids: Tensor, loop: int) -> Tensor:
    w = float64(weights)
    x = w["model.embed_tokens.weight"][ids]
    for _ in range(loop):
        for layer in range(config.num_hidden_layers):
            x = nanbeige_layer(w, f"model.layers.{layer}", config, x)
        if not config.skip_loop_final_norm:
            x = rms_norm(x, w["model.norm.weight"], config.rms_norm_eps)
    if config.skip_loop_final_norm:
        x = rms_norm(x, w["model.norm.weight"], config.rms_norm_eps)
    return x @ head_of(w, config, "model.embed_tokens.weight").T


# Retrofitted recurrence


def scaled_angles(time: int, config: Any) -> Tensor:
    """[time, head_dim / 2] by Llama 3's rule, wavelength by wavelength."""
    rope, frequencies = config.rope_parameters, []
    for pair in range(config.head_dim // 2):
        frequency = rope["rope_theta"] ** (-2 * pair / config.head_dim)
        if rope["rope_type"] == "llama3":
            trained, low, high = (
                rope[each] for each in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
            )
            wavelength = 2 * pi / frequency
            if wavelength > trained / low:
                frequency /= rope["factor"]
            elif wavelength >= trained / high:
                smooth = (trained / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / rope["factor"] + smooth * frequency
        frequencies.append(frequency)
    return torch.arange(time, dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)


def rotate_by(x: Tensor, angle: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle[:, None].cos(), angle[:, None].sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def retrofit_attention(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    heads, kv_heads, head_dim = config.n_heads, config.num_key_value_heads, config.head_dim
    query, key, value = linear(w, f"{at}.Wqkv", x).split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=-1)
    if config.layers_like == "olmo":  # over all heads together
        query = rms_norm(query, w[f"{at}.q_norm.weight"], config.norm_eps)
        key = rms_norm(key, w[f"{at}.k_norm.weight"], config.norm_eps)
    angle = scaled_angles(len(x), config)
    query, key, value = (part.reshape(len(x), -1, head_dim) for part in (query, key, value))
    return linear(w, f"{at}.proj", attend(rotate_by(query, angle), rotate_by(key, angle), value))


def retrofit_layer(w: Weights, at: str, config: Any, x: Tensor) -> Tensor:
    def norm(number: int, y: Tensor) -> Tensor:
        return rms_norm(y, w[f"{at}.norm_{number}.weight"], config.norm_eps)

    def mlp(y: Tensor) -> Tensor:
        gate, up = linear(w, f"{at}.mlp.fc", y).chunk(2, dim=-1)
        return linear(w, f"{at}.mlp.proj", silu(gate) * up)

    if config.layers_like == "llama":
        x = x + retrofit_attention(w, f"{at}.attn", config, norm(1, x))
        return x + mlp(norm(2, x))
    x = x + norm(1, retrofit_attention(w, f"{at}.attn", config, x))
    return x + norm(2, mlp(x))


def retrofit_logits(weights: Weights, config: Any, ids: Tensor, loop: int) -> Tensor:
    w = float64(weights)
    x = w["transformer.wte.weight"][ids] * config.embed_scale
    for layer in range(config.n_layers_in_prelude):
        x = retrofit_layer(w, f"transformer.prelude.{layer}", config, x)
    state = torch.zeros_like(x)
    for _ in range(loop):
        state = linear(w, "transformer.adapter", torch.cat([state, x], dim=-1))
        for layer in range(config.n_layers_in_recurrent_block):
            state = retrofit_layer(w, f"transformer.core_block.{layer}", config, state)
    for layer in range(config.n_layers_in_coda):
        state = retrofit_layer(w, f"transformer.coda.{layer}", config, state)
    state = rms_norm(state, w["transformer.ln_f.weight"], config.norm_eps)
    return state @ head_of(w, config, "transformer.wte.weight").T


# Parcae


def parcae_layer(w: Weights, part: str, index: int, number: int, config: Any, x: Tensor, ids: Tensor) -> Tensor:
    at, head_dim = f"transformer.{part}.{index}", config.n_embd // config.num_attention_heads
    y = rms_norm(x, w[f"{at}.norm_1.weight"], config.norm_eps)
    query, key, value = (linear(w, f"{at}.attn.c_{name}", y).view(len(x), -1, head_dim) for name in "qkv")
    if f"{at}.attn.ve_gate.weight" in w and f"value_embeds.{number}.weight" in w:
        gate = 2 * torch.sigmoid(linear(w, f"{at}.attn.ve_gate", y[:, :32]))
        value = value + gate[..., None] * w[f"value_embeds.{number}.weight"][ids].view(value.shape)
    query, key = (rotate_pairs(each, config.rope_settings["rope_base"], neighbours) for each in (query, key))
    if config.qk_norm:
        eps = torch.finfo(torch.float32).eps  # as the float32 model has it
        query, key = (rms_norm(each, torch.ones(head_dim), eps) for each in (query, key))
    x = x + linear(w, f"{at}.attn.c_proj", attend(query, key, value))
    y = linear(w, f"{at}.mlp.fc", rms_norm(x, w[f"{at}.norm_2.weight"], config.norm_eps))
    return x + linear(w, f"{at}.mlp.proj", 0.5 * y.clamp(min=0) ** 2)


def parcae_injection(w: Weights, config: Any, state: Tensor, x: Tensor) -> Tensor:
    if config.injection_type == "add":
        return state + x
    if config.injection_type == "linear":
        return linear(w, "transformer.adapter.adapter", torch.cat([state, x], dim=-1))
    step = torch.log1p(torch.exp(w["transformer.adapter.dt_bias"]))
    return state * torch.exp(-step * torch.exp(w["transformer.adapter.A_log"])) + step * (x @ w["transformer.adapter.B"].T)


def parcae_logits(weights: Weights, config: Any, ids: Tensor, loop: int) -> Tensor:
    w = float64(weights)
    prelude, core = config.n_layers_in_prelude, config.n_layers_in_recurrent_block
    x = w["transformer.wte.weight"][ids]
    for layer in range(prelude):
        x = parcae_layer(w, "prelude", layer, layer, config, x, ids)
    if config.prelude_norm:
        x = rms_norm(x, w["transformer.ln_prelude.weight"], config.norm_eps)
    state = torch.zeros_like(x)
    for _ in range(loop):
        state = parcae_injection(w, config, state, x)
        for layer in range(core):
            state = parcae_layer(w, "core_block", layer, prelude + layer, config, state, ids)
    state = linear(w, "transformer.C", state)
    for layer in range(config.n_layers_in_coda):
        state = parcae_layer(w, "coda", layer, prelude + core + layer, config, state, ids)
    said = rms_norm(state, w["transformer.ln_f.weight"], config.norm_eps) @ head_of(w, config, "transformer.wte.weight").T
    cap = config.logit_softcap
    return said if cap is None else cap * torch.tanh(said / cap)


READINGS = {"NanbeigeConfig": nanbeige_logits, "RetrofitConfig": retrofit_logits, "ParcaeConfig": parcae_logits}
