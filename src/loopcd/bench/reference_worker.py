"""One model in a process of its own, for `reference`: a JSON line {"context", "tokens"} in, CPU times and tokens out.

Run by the path of this file, maybe by another environment's interpreter, in which there is no loopcd:
    reference_worker.py ours|reference huginn|ouro CHECKPOINT [FOLDER]
FOLDER holds the public code: `huginn_ref/raven_modeling_minimal.py` and `ouro_ref/modeling_ouro.py` with what they import.
"""

import importlib
import json
import sys
import time
from typing import Any

import torch

CLASSES = {
    "huginn": ("huginn_ref.raven_modeling_minimal", "RavenForCausalLM"),
    "ouro": ("ouro_ref.modeling_ouro", "OuroForCausalLM"),
}


def read(side: str, family: str, checkpoint: str, folder: str | None) -> Any:
    if side == "ours":
        from loopcd.models.loading import load  # here, since the reference's environment has none

        return load(checkpoint, dtype="float32", device="cpu")[0]
    sys.path.insert(0, str(folder))
    module, name = CLASSES[family]
    model = getattr(importlib.import_module(module), name).from_pretrained(checkpoint, torch_dtype=torch.float32).eval()
    if family == "huginn":  # else it draws its start state anew in every pass, and does not give the same text twice
        getattr(model.config, "init_values", {})["std"] = 0.0
    return model


@torch.no_grad()
def decode(model: Any, side: str, family: str, context: int, tokens: int) -> dict[str, Any]:
    """CPU seconds of a prompt of `context` tokens and of `tokens` steps, and the tokens."""
    public = side == "reference"
    options = {"num_steps": torch.tensor([model.config.mean_recurrence])} if public and family == "huginn" else {}
    ids = torch.randint(0, 1000, (1, context), generator=torch.Generator().manual_seed(0))
    start = time.process_time()
    output = model(ids, use_cache=True, **options)
    prompt = time.process_time() - start
    token = output.logits[:, -1:].argmax(-1)
    said, start = [int(token)], time.process_time()
    for index in range(tokens):
        more = {"cache_position": torch.tensor([context + index])} if public else {}
        output = model(token, past_key_values=output.past_key_values, use_cache=True, **options, **more)
        token = output.logits[:, -1:].argmax(-1)
        said.append(int(token))
    return {"prompt": prompt, "decode": time.process_time() - start, "text": said}


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main(side: str, family: str, checkpoint: str, folder: str | None = None) -> None:
    torch.set_num_threads(1)
    model = read(side, family, checkpoint, folder)
    tell({"ready": sum(weight.numel() for weight in model.parameters())})
    for line in sys.stdin:
        tell(decode(model, side, family, **json.loads(line)))


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not those of libraries
    main(*sys.argv[1:])
