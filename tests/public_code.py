"""What the public code makes of models that loopcd saved, for tests/models/test_public_code.py.

Run by the path of this file and an interpreter with transformers 4.57, in which there is no loopcd:
    public_code.py CODE MODELS
CODE holds the public code as packages: `huginn`, `retrofit` and `olmo` (each with `raven_config_minimal.py` and, by that name,
its `raven_modeling_minimal.py`), `ouro` (`configuration_ouro.py`, `modeling_ouro.py`), and Parcae's `parcae_lm` and `receval`.
Every folder below MODELS is FAMILY-SETTING with a model and `ids.npy`; what the public code says goes to its `public.npy`.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


@torch.no_grad()
def logits(family: str, folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """[1, time, vocab], from the zero state."""
    if family == "ouro":
        model = importlib.import_module("ouro.modeling_ouro").OuroForCausalLM.from_pretrained(folder).eval()
        return model(ids, use_cache=False).logits
    if family == "parcae":
        model = importlib.import_module("receval.models.parcae").ModelingParcae.from_pretrained(str(folder))
        model.initialize_state = torch.zeros_like
        return model.forward_for_generation(ids, num_steps=4)["logits"]
    model: Any = importlib.import_module(f"{family}.raven_modeling_minimal").RavenForCausalLM.from_pretrained(folder).eval()
    return model(ids, num_steps=4, init_scale=0.0).logits


def main(code: str, models: str) -> None:
    torch.set_num_threads(1)
    sys.path.insert(0, code)
    for folder in sorted(Path(models).iterdir()):
        ids = torch.from_numpy(np.load(folder / "ids.npy"))
        np.save(folder / "public.npy", logits(folder.name.partition("-")[0], folder, ids).float().numpy())


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not those of the public code
    main(*sys.argv[1:])
