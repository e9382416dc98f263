"""LoopCD in vLLM as the paper's authors ran it, and the other families as their public code runs: their tokens, from the
models of `tests/golden`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm import LLM, SamplingParams

from serving.parity import SMALL

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_every_text_of_the_authors_token_for_token(family: str) -> None:
    texts = json.loads((GOLDEN / "authors_tokens.json").read_text())[family]
    loops = sorted({text["amateur_loop"] for text in texts})
    made = generated(GOLDEN / f"{family}_tiny", texts, additional_config={"loopcd": {"amateur_loops": loops}})
    assert [text for text, tokens in zip(texts, made, strict=True) if tokens != text["tokens"]] == []


@pytest.mark.parametrize("family", ["nanbeige", "retro_llama", "retro_olmo"])
def test_every_text_of_the_public_code_token_for_token(family: str) -> None:
    with np.load(GOLDEN / "families" / f"{family}_tiny_golden.npz") as arrays:
        texts = [
            {"prompt": arrays[f"{name}.input_ids"].tolist(), "tokens": arrays[f"{name}.greedy_tokens"].tolist()}
            for name in ("s0", "s1", "s2")
        ]
    made = generated(GOLDEN / "families" / f"{family}_tiny", texts)
    assert [text for text, tokens in zip(texts, made, strict=True) if tokens != text["tokens"]] == []


def generated(folder: Path, texts: list[dict[str, Any]], **arguments: Any) -> list[list[int]]:
    eager = {"enforce_eager": True, "skip_tokenizer_init": True, "enable_prefix_caching": False}
    engine = LLM(model=str(folder), **eager, **SMALL, **arguments)
    try:
        made = engine.generate([{"prompt_token_ids": text["prompt"]} for text in texts], [asked(text) for text in texts])
    finally:
        engine.llm_engine.engine_core.shutdown()
    return [list(each.outputs[0].token_ids) for each in made]


def asked(text: dict[str, Any]) -> SamplingParams:
    extra, tokens = {"loopcd": False}, len(text["tokens"])
    if "amateur_loop" in text:
        extra = {"loopcd_amateur_loop": text["amateur_loop"], "loopcd_strength": text["strength"], "loopcd_plausibility": 0.1}
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra)
