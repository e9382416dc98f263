"""How a model is named: built in, a folder, or an id of the hub. Nothing here needs torch, so a wrong name is told at once."""

import os
import re
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

_OURO = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_NANBEIGE = {"bos_token_id": 166100, "eos_token_id": 166101, "pad_token_id": 0}
_RETROFIT = {"init_values": {"embed_scale": 1.0, "std": 0.008703882797784892}}
_LLAMA_SCALING = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_PARCAE = {"mean_recurrence": 8, "mean_backprop_depth": 4, "qk_norm": True, "prelude_norm": True, "tie_embeddings": True}


def _parcae(width: int, layers: int) -> dict[str, Any]:
    parts = ("n_layers_in_prelude", "n_layers_in_recurrent_block", "n_layers_in_coda")
    return {"n_embd": width, "num_attention_heads": width // 128, **dict.fromkeys(parts, layers), **_PARCAE}


# the public checkpoints: the family, and where their configuration is not its default, the fields that they were published with
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "tomg-group-umd/huginn-0125": ("huginn", {"bos_token_id": 65504, "eos_token_id": 65505, "pad_token_id": 65509}),
    "ByteDance/Ouro-1.4B": ("ouro", _OURO),
    "ByteDance/Ouro-1.4B-Thinking": ("ouro", _OURO),
    "ByteDance/Ouro-2.6B": ("ouro", {**_OURO, "num_hidden_layers": 48}),
    "ByteDance/Ouro-2.6B-Thinking": ("ouro", {**_OURO, "num_hidden_layers": 48}),
    "sapientinc/HRM-Text-1B": ("hrm_text", {}),
    "Nanbeige/Nanbeige4.2-3B": ("nanbeige", _NANBEIGE),
    "Nanbeige/Nanbeige4.2-3B-Base": (
        "nanbeige",
        {**_NANBEIGE, "max_position_embeddings": 131072, "rope_parameters": {"rope_theta": 10_000_000.0}},
    ),
    "smcleish/Recurrent-Llama-3.2-train-recurrence-32": (
        "retrofit",
        {
            **_RETROFIT,
            "num_key_value_heads": 8,
            "rope_parameters": {"rope_theta": 500_000.0, "rope_type": "llama3", **_LLAMA_SCALING},
        },
    ),
    "smcleish/Recurrent-TinyLlama-3T-train-recurrence-32": (
        "retrofit",
        {
            **_RETROFIT,
            "num_key_value_heads": 4,
            "n_layers_in_recurrent_block": 8,
            "intermediate_size": 5632,
            "vocab_size": 32000,
            "max_position_embeddings": 2048,
            "rope_parameters": {"rope_theta": 10_000.0},
        },
    ),
    "smcleish/Recurrent-OLMo-2-0425-train-recurrence-32": (
        "retrofit",
        {
            **_RETROFIT,
            "n_heads": 16,
            "layers_like": "olmo",
            "norm_eps": 1e-6,
            "vocab_size": 100352,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_theta": 500_000.0},
        },
    ),
    "SandyResearch/parcae-140m": ("parcae", _parcae(768, 2)),
    "SandyResearch/parcae-370m": ("parcae", _parcae(1024, 4)),
    "SandyResearch/parcae-770m": ("parcae", _parcae(1280, 6)),
    "SandyResearch/parcae-1.3b": ("parcae", _parcae(1536, 8)),
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def built_in() -> dict[str, Path]:
    """The models that come with the package."""
    assets = Path(str(resources.files("loopcd"))) / "assets"
    return {path.parent.name: path.parent for path in sorted(assets.glob("*/config.json"))}


def unknown(name: str, others: str) -> ValueError:
    """There is no model of that name: those that come near it, the built-in ones, and what else may be named."""
    near = get_close_matches(name, [*built_in(), *PUBLISHED], 3)
    meant = f" (do you mean {' or '.join(near)}?)" if near else ""
    return ValueError(
        f"there is no model {name!r}{meant}: name one of {', '.join(built_in())}, {others}; `loopcd models` lists public ones"
    )


def local_folder(name: str | Path) -> Path | None:
    """The folder of a built-in or a local model; None where the name is one of the hub's. Other names are refused."""
    if not isinstance(name, str | os.PathLike):
        raise ValueError(f"{name!r} names no model: a built-in name, a folder, or a hub id OWNER/NAME")
    folder = built_in().get(str(name), Path(name))
    if folder.is_dir():
        made = folder / "model"  # what `loopcd train` leaves in its folder
        if not (folder / "config.json").is_file() and (made / "config.json").is_file():
            raise ValueError(f"{name} has no config.json, but {made} has: name that one")
        return folder
    if Path(name).is_file():
        raise ValueError(f"{name} is a file: name the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise unknown(str(name), "a folder, or a hub id OWNER/NAME")
    return None
