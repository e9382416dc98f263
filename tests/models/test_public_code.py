"""The public code reads what loopcd saves, and makes the same of it.

Runs where LOOPCD_PUBLIC_CODE is PYTHON,CODE: an interpreter with transformers 4.57, and a folder as tests/public_code.py says.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import public_code
from tools import LATER, MAKERS, assert_close, logits_of, random_ids

PYTHON, _, CODE = os.environ.get("LOOPCD_PUBLIC_CODE", "").partition(",")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CODE, reason="LOOPCD_PUBLIC_CODE names no interpreter and folder of public code"),
]
TIED = {"tie_embeddings": True, "tie_word_embeddings": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "huginn": {},
    "huginn-tied": TIED,
    "huginn-deep": {"n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 3, "n_layers_in_coda": 2, "rope_base": 700},
    "ouro": {"rope_theta": 500.0},
    "retrofit": {},
    "retrofit-tied": {**TIED, "bias": True, "init_values": {"embed_scale": 5.0, "std": 0.1, "embedding": 0.1, "out_proj": 0.1}},
    "retrofit-tinyllama": {"num_key_value_heads": 4, "rope_parameters": {"rope_theta": 10000.0}},
    "olmo": {},
    "olmo-skip": {"initial_state_mode": "skip-adapter", "n_layers_in_coda": 2},
    "olmo-embed": {"initial_state_mode": "embed-init", **TIED},
    "parcae": {},
    "parcae-tied": {"tie_embeddings": True},
    "parcae-linear": {"injection_type": "linear", "qk_norm": False, "prelude_norm": False, "logit_softcap": 3.0},
    "parcae-padded": {"vocab_size": 250, "padding_multiple": 64, "state_init": "zero"},
}


def test_the_public_code_makes_the_same_of_what_is_saved(tmp_path: Path) -> None:
    ids, wanted = random_ids(1, 9, 90), {}
    for name, setting in SETTINGS.items():
        model = {**MAKERS, **LATER}[name.partition("-")[0]](**setting)
        model.save_pretrained(tmp_path / name)
        np.save(tmp_path / name / "ids.npy", ids.numpy())
        wanted[name] = logits_of(model, ids)
    subprocess.run([PYTHON, public_code.__file__, CODE, str(tmp_path)], check=True)
    for name, logits in wanted.items():
        assert_close(torch.from_numpy(np.load(tmp_path / name / "public.npy")), logits)
