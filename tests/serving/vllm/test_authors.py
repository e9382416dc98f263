"""LoopCD in vLLM as the paper's authors ran it: their tokens, from the models of `tests/golden`."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import json
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM, SamplingParams

from serving.parity import SMALL

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_every_text_of_the_authors_token_for_token(family: str) -> None:
    texts = json.loads((GOLDEN / "authors_tokens.json").read_text())[family]
    loops = sorted({text["amateur_loop"] for text in texts})
    engine = LLM(
        model=str(GOLDEN / f"{family}_tiny"),
        additional_config={"loopcd": {"amateur_loops": loops}},
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        **SMALL,
    )
    try:
        made = engine.generate([{"prompt_token_ids": text["prompt"]} for text in texts], [asked(text) for text in texts])
    finally:
        engine.llm_engine.engine_core.shutdown()
    different = [text for text, each in zip(texts, made, strict=True) if list(each.outputs[0].token_ids) != text["tokens"]]
    assert different == []


def asked(text: dict[str, Any]) -> SamplingParams:
    extra = {"loopcd_amateur_loop": text["amateur_loop"], "loopcd_strength": text["strength"], "loopcd_plausibility": 0.1}
    tokens = len(text["tokens"])
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, extra_args=extra)
