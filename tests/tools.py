"""What tests need to make: tiny models with random weights, in any geometry, and a tokenizer for them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig

import loopcd
from loopcd.models import (
    HuginnConfig,
    HuginnForCausalLM,
    LoopCache,
    LoopedHrmText,
    LoopedModel,
    NanbeigeConfig,
    NanbeigeForCausalLM,
    OuroConfig,
    OuroForCausalLM,
    ParcaeConfig,
    ParcaeForCausalLM,
    RetrofitConfig,
    RetrofitForCausalLM,
)

TOLERANCE = 2e-4  # what float32 logits may differ by; see tests/golden/README.md
VOCABULARY = 259  # all bytes and three special tokens
PAD, BOS, EOS = 256, 257, 258

M = TypeVar("M", bound=LoopedModel)


def tiny_huginn(seed: int = 0, **changes: Any) -> HuginnForCausalLM:
    """Width 32, 4 heads, 1 + 2 + 1 layers, 4 loops, untied, unless `changes` (fields of the configuration) say otherwise."""
    fields: dict[str, Any] = {
        "n_embd": 32,
        "n_heads": 4,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 2,
        "n_layers_in_coda": 1,
        "mean_recurrence": 4,
        "intermediate_size": 48,
        "block_size": 256,
        "vocab_size": VOCABULARY,
        "tie_embeddings": False,
        "tie_word_embeddings": False,
        "pad_token_id": PAD,
    }
    return redrawn(HuginnForCausalLM(HuginnConfig(**{**fields, **changes})), seed)


def tiny_ouro(seed: int = 0, **changes: Any) -> OuroForCausalLM:
    """Width 32, 4 heads, 2 layers, 4 loops, untied, unless `changes` (fields of the configuration) say otherwise."""
    fields: dict[str, Any] = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "total_ut_steps": 4,
        "max_position_embeddings": 256,
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
    }
    return redrawn(OuroForCausalLM(OuroConfig(**{**fields, **changes})), seed)


def tiny_hrm(seed: int = 0, **changes: Any) -> LoopedHrmText:
    """Width 32, 2 heads, stacks of 2 layers, 2 low-level cycles a loop, 3 loops; causal, unless `prefix_lm` says otherwise."""
    fields: dict[str, Any] = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "H_cycles": 3,
        "L_cycles": 2,
        "prefix_lm": False,
        "max_position_embeddings": 256,
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
    }
    return redrawn(LoopedHrmText(HrmTextConfig(**{**fields, **changes})), seed)


def tiny_nanbeige(seed: int = 0, **changes: Any) -> NanbeigeForCausalLM:
    """Width 32, 6 heads of 8 for 2 of keys, 2 layers, 3 loops."""
    fields: dict[str, Any] = {
        "hidden_size": 32,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_loops": 3,
        "max_position_embeddings": 256,
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
    }
    return redrawn(NanbeigeForCausalLM(NanbeigeConfig(**{**fields, **changes})), seed)


def tiny_retrofit(seed: int = 0, **changes: Any) -> RetrofitForCausalLM:
    """Width 32, 4 heads for 2 of keys, 1 + 2 + 1 layers as in Llama, 4 loops, scaled rotary positions."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    fields: dict[str, Any] = {
        "n_embd": 32,
        "n_heads": 4,
        "num_key_value_heads": 2,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 2,
        "n_layers_in_coda": 1,
        "mean_recurrence": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
        "vocab_size": VOCABULARY,
        "init_values": {"embed_scale": 1.0, "std": 0.1},
        "rope_parameters": {"rope_theta": 500.0, "rope_type": "llama3", **scaling},
        "pad_token_id": PAD,
    }
    return redrawn(RetrofitForCausalLM(RetrofitConfig(**{**fields, **changes})), seed)


def tiny_olmo(seed: int = 0, **changes: Any) -> RetrofitForCausalLM:
    """The same with OLMo's layers, heads wider than the model, plain rotary positions."""
    own: dict[str, Any] = {"layers_like": "olmo", "head_dim": 12, "rope_parameters": {"rope_theta": 5000.0}}
    return tiny_retrofit(seed, **{**own, **changes})


def tiny_parcae(seed: int = 0, **changes: Any) -> ParcaeForCausalLM:
    """Width 36, 3 heads of 12, 1 + 2 + 1 layers, 4 loops, two of the layers with value embeddings."""
    fields: dict[str, Any] = {
        "n_embd": 36,
        "num_attention_heads": 3,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 2,
        "n_layers_in_coda": 1,
        "mean_recurrence": 4,
        "mean_backprop_depth": 2,
        "intermediate_size": 48,
        "block_size": 256,
        "vocab_size": VOCABULARY,
        "padding_multiple": 1,
        "qk_norm": True,
        "prelude_norm": True,
        "pad_token_id": PAD,
    }
    return redrawn(ParcaeForCausalLM(ParcaeConfig(**{**fields, **changes})), seed)


# a loop of HRM-Text runs its stacks three times: with two layers each it would take most of the tests' time
MAKERS: dict[str, Callable[..., LoopedModel]] = {
    "huginn": tiny_huginn,
    "ouro": tiny_ouro,
    "hrm": partial(tiny_hrm, num_hidden_layers=1),
}
# families that came later: the properties that all must have are those of tests/family.py
LATER: dict[str, Callable[..., LoopedModel]] = {
    "nanbeige": tiny_nanbeige,
    "retrofit": tiny_retrofit,
    "olmo": tiny_olmo,
    "parcae": tiny_parcae,
}


def attending(model: M, implementation: str) -> M:
    """The model with that attention implementation really in use: transformers only warns where it does not take it."""
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    return model


@torch.no_grad()
def redrawn(model: M, seed: int) -> M:
    """Weights such that nothing hides: norms away from 1, biases away from 0, a next token that is neither sure nor random."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        if (weight.ndim == 1 and "norm" in name) or "ln_f" in name:
            weight.copy_(1 + 0.2 * drawn)
        elif weight.ndim == 1 or "bias" in name:
            weight.copy_(0.5 * drawn)
        elif weight.shape[0] == model.config.vocab_size:
            weight.copy_(drawn * 2 / sqrt(weight.shape[1]))
        elif (
            "adapter" in name and weight.shape[1] == 2 * weight.shape[0]
        ):  # a weak memory, so that the loops converge instead of amplifying rounding
            weight.copy_(drawn / sqrt(weight.shape[0]) * torch.tensor([0.5, 1.0]).repeat_interleave(weight.shape[0]))
        else:
            weight.copy_(drawn / sqrt(weight.shape[1]))
    return model.eval()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, in the order of tokenizers' alphabet; then <pad>, <bos> and <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore
    tokenizer.add_special_tokens(["<pad>", "<bos>", "<eos>"])
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def save_model(folder: Path, model: LoopedModel) -> Path:
    """A folder that `loopcd.load` takes: the model and a byte-level tokenizer."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the weights of a saved model in its file."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    """Change fields of a saved model's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refused(folder: Path | str, *parts: str, **options: Any) -> None:
    """`loopcd.load` raises a ValueError that says each of these."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        loopcd.load(folder, **options)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message


def random_ids(rows: int, time: int, vocab: int = VOCABULARY - 3, seed: int = 0) -> Tensor:
    return torch.randint(0, vocab, (rows, time), generator=torch.Generator().manual_seed(seed))


def left_padded(rows: Sequence[Tensor], pad: int = PAD) -> tuple[Tensor, Tensor]:
    """Rows [time_b] of different lengths as one batch: (input_ids, attention_mask), each [rows, longest]."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), pad)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, longest - len(row) :] = row
        mask[index, longest - len(row) :] = 1
    return ids, mask


@torch.no_grad()
def logits_of(model: LoopedModel, ids: Tensor, cache: LoopCache | None = None, **options: Any) -> Tensor:
    """Logits [rows, time, vocab] of one pass; without a cache nothing is kept."""
    output = model(ids, past_key_values=cache, use_cache=cache is not None, **options)
    assert output.logits is not None
    return output.logits


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), rtol=0, atol=tolerance)


GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Golden:
    """A golden checkpoint, loaded, and what the public reference computes with it (tests/golden/README.md)."""

    folder: Path
    model: LoopedModel
    arrays: dict[str, Tensor]
    facts: dict[str, Any]

    @classmethod
    def read(cls, family: str) -> "Golden":
        """`family` is huginn or ouro, or one of those in the folder families."""
        home = GOLDEN if family in ("huginn", "ouro") else GOLDEN / "families"
        folder = home / f"{family}_tiny"
        with np.load(home / f"{family}_tiny_golden.npz") as stored:
            arrays = {name: torch.from_numpy(array) for name, array in stored.items()}
        facts = json.loads((home / f"{family}_tiny_golden.json").read_text())
        return cls(folder, loopcd.load(folder)[0], arrays, facts)

    def ids(self, text: str) -> Tensor:
        """The tokens [1, time] of the text named s0 … s3."""
        return self.arrays[f"{text}.input_ids"].long()[None]

    def stored(self, text: str, kind: str) -> slice:
        """The positions of that text that the arrays of this kind hold."""
        return slice(*self.facts["positions_stored"][text][kind])
