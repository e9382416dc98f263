"""How a model is named: built in, a folder, or an id of the hub. Nothing here needs torch, so a wrong name is told at once."""

import re
from importlib import resources
from pathlib import Path

# the public checkpoints; `presets.PUBLIC` has the sizes that they were published with
PUBLIC_NAMES = (
    "tomg-group-umd/huginn-0125",
    "ByteDance/Ouro-1.4B",
    "ByteDance/Ouro-1.4B-Thinking",
    "ByteDance/Ouro-2.6B",
    "ByteDance/Ouro-2.6B-Thinking",
    "sapientinc/HRM-Text-1B",
    "Nanbeige/Nanbeige4.2-3B",
    "Nanbeige/Nanbeige4.2-3B-Base",
    "smcleish/Recurrent-Llama-3.2-train-recurrence-32",
    "smcleish/Recurrent-TinyLlama-3T-train-recurrence-32",
    "smcleish/Recurrent-OLMo-2-0425-train-recurrence-32",
    "SandyResearch/parcae-140m",
    "SandyResearch/parcae-370m",
    "SandyResearch/parcae-770m",
    "SandyResearch/parcae-1.3b",
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def built_in() -> dict[str, Path]:
    """The models that come with the package."""
    assets = Path(str(resources.files("loopcd"))) / "assets"
    return {path.parent.name: path.parent for path in sorted(assets.glob("*/config.json"))}


def known_names() -> str:
    return ", ".join([*built_in(), *PUBLIC_NAMES])


def local_folder(name: str | Path) -> Path | None:
    """The folder of a built-in or a local model; None where the name is one of the hub's. Other names are refused."""
    folder = built_in().get(str(name), Path(name))
    if folder.is_dir():
        made = folder / "model"  # what `loopcd train` leaves in its folder
        if not (folder / "config.json").is_file() and (made / "config.json").is_file():
            raise ValueError(f"{name} has no config.json, but {made} has: name that one")
        return folder
    if Path(name).is_file():
        raise ValueError(f"{name} is a file: name the folder that holds config.json and the weights")
    if not _HUB_ID.fullmatch(str(name)) or str(name).startswith("."):
        raise ValueError(f"there is no model {str(name)!r}: name one of {known_names()}, a folder, or a hub id OWNER/NAME")
    return None
