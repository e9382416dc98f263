"""Which family a checkpoint is of: recognised rightly or refused, by `loopcd.load` and by transformers' Auto class alike."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import loopcd
from loopcd.models import HuginnForCausalLM, NanbeigeForCausalLM, RetrofitForCausalLM
from tools import GOLDEN, configure, logits_of, random_ids, rewrite

FOLDERS = {
    "huginn": GOLDEN / "huginn_tiny",
    "ouro": GOLDEN / "ouro_tiny",
    **{name: GOLDEN / "families" / f"{name}_tiny" for name in ("retro_llama", "retro_olmo", "nanbeige", "parcae")},
}
DOORS: dict[str, Callable[[Path], Any]] = {
    "load": lambda folder: loopcd.load(folder)[0],
    "auto": lambda folder: AutoModelForCausalLM.from_pretrained(folder),
}

Weights = dict[str, Tensor]


def copy_of(family: str, folder: Path) -> Path:
    shutil.copytree(FOLDERS[family], folder)
    return folder


def unconfigure(folder: Path, *names: str) -> None:
    import json

    path = folder / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in fields.items() if name not in names}))


def without(part: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        for name in [name for name in weights if part in name]:
            del weights[name]

    return change


def with_qk_norm(weights: Weights) -> None:
    for name in [name for name in weights if name.endswith("attn.Wqkv.weight")]:
        for kind, size in (("q_norm", 64), ("k_norm", 64)):
            weights[name.replace("Wqkv", kind)] = torch.ones(size)


def one_layer_of_another(weights: Weights) -> None:
    weights["transformer.core_block.0.attn.q_norm.weight"] = torch.ones(32)
    weights["transformer.core_block.0.attn.k_norm.weight"] = torch.ones(16)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("huginn", HuginnForCausalLM),
        ("retro_llama", RetrofitForCausalLM),
        ("retro_olmo", RetrofitForCausalLM),
        ("nanbeige", NanbeigeForCausalLM),
    ],
)
def test_each_is_recognised(door: str, family: str, kind: type) -> None:
    model = DOORS[door](FOLDERS[family])
    assert type(model) is kind
    wanted = loopcd.load(FOLDERS[family])[0]
    assert torch.equal(logits_of(model.eval(), random_ids(1, 6, 90)), logits_of(wanted, random_ids(1, 6, 90)))
    if kind is RetrofitForCausalLM:
        assert model.config.layers_like == family.removeprefix("retro_")


# What is changed, of which family, and what the refusal says
MUTATIONS: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "a Huginn's config with rope_theta": (
        "huginn",
        lambda folder: configure(folder, rope_theta=10000.0, qk_bias=False),
        "weights are those of Huginn, its config.json that of a retrofitted",
    ),
    "a Huginn without its scale": (
        "huginn",
        lambda folder: configure(folder, init_values={"embed_scale": 1.0, "std": 0.01}),
        "embed_scale=1.0: Huginn's embeddings are scaled by √n_embd = 8",
    ),
    "a Huginn with fewer key heads": (
        "huginn",
        lambda folder: configure(folder, num_key_value_heads=2),
        "num_key_value_heads=2: Huginn has as many as n_heads=4",
    ),
    "a Huginn with soft caps": (
        "huginn",
        lambda folder: configure(folder, attn_logit_softcapping=50.0),
        "attn_logit_softcapping=50.0: Huginn is supported as it was released, without it",
    ),
    "a Huginn with another activation": (
        "huginn",
        lambda folder: configure(folder, nonlin_name="GELU"),
        "nonlin_name='GELU': Huginn is supported with 'SiLU'",
    ),
    "four norms and q/k norms": (
        "huginn",
        lambda folder: rewrite(folder, with_qk_norm),
        "norms 1, 2, 3, 4, q/k norm and q/k bias are neither Huginn's nor",
    ),
    "a Huginn without q/k biases": (
        "huginn",
        lambda folder: (rewrite(folder, without("qk_bias")), configure(folder, qk_bias=False)),
        "no q/k norm and no q/k bias are neither Huginn's nor",
    ),
    "two of Huginn's norms": (
        "huginn",
        lambda folder: rewrite(folder, lambda weights: (without("norm_3")(weights), without("norm_4")(weights))),
        "norms 1, 2, no q/k norm and q/k bias are neither Huginn's nor",
    ),
    "a retrofitted Llama without rope_theta": (
        "retro_llama",
        lambda folder: unconfigure(folder, "rope_theta", "rope_scaling"),
        "weights are those of a retrofitted Llama, its config.json that of Huginn",
    ),
    "a retrofitted OLMo without its q/k norms": (
        "retro_olmo",
        lambda folder: rewrite(folder, without("q_norm")),
        "unexpected weights: transformer.coda.0.attn.k_norm.weight",
    ),
    "a retrofitted Llama with one layer of OLMo's": (
        "retro_llama",
        lambda folder: rewrite(folder, one_layer_of_another),
        "lacks weights: transformer.coda.0.attn.k_norm.weight",
    ),
    "a retrofitted model with q/k biases": (
        "retro_olmo",
        lambda folder: configure(folder, qk_bias=True),
        "qk_bias=True: retrofitted recurrence is supported with False",
    ),
    "an unknown start state": (
        "retro_olmo",
        lambda folder: configure(folder, initial_state_mode="ones"),
        "initial_state_mode='ones': retrofitted recurrence is supported with 'random' or 'skip-adapter' or 'embed-init'",
    ),
    "another scaling of the positions": (
        "retro_llama",
        lambda folder: configure(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        "rope_scaling",
    ),
    "Ouro's weights under Nanbeige's name": (
        "ouro",
        lambda folder: configure(folder, model_type="nanbeige", num_loops=2, rope_theta=1e4),
        "weights are those of Ouro, its config.json that of Nanbeige",
    ),
    "Nanbeige's weights under Ouro's name": (
        "nanbeige",
        lambda folder: configure(folder, model_type="ouro"),
        "weights are those of Nanbeige, its config.json that of Ouro",
    ),
    "Nanbeige with hyper-connections": (
        "nanbeige",
        lambda folder: configure(folder, enable_hyper_connection=True),
        "enable_hyper_connection=True: Nanbeige is supported as it was released",
    ),
    "Nanbeige with n-grams": (
        "nanbeige",
        lambda folder: configure(folder, ngram_vocab_size=1000),
        "ngram_vocab_size=1000: Nanbeige is supported as it was released",
    ),
    "Nanbeige with weights for three loops": (
        "nanbeige",
        lambda folder: configure(folder, loop_loss_weights=[0.1, 0.2]),
        "asks for 3 loops, num_loops for 2",
    ),
    "Nanbeige without its number of loops": (
        "nanbeige",
        lambda folder: unconfigure(folder, "num_loops"),
        "num_loops missing",
    ),
    "Nanbeige with scaled positions": (
        "nanbeige",
        lambda folder: configure(folder, rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "rope_scaling of type 'linear'",
    ),
    "Nanbeige with a window": (
        "nanbeige",
        lambda folder: configure(folder, layer_types=["full_attention", "sliding_attention"] * 2),
        "layer_types=",
    ),
    "a Parcae with another core width": (
        "parcae",
        lambda folder: configure(folder, recurrent_embedding_dimension=72),
        "recurrent_embedding_dimension=72",
    ),
    "a Parcae with scaled embeddings": (
        "parcae",
        lambda folder: configure(folder, init_strategy="takase"),
        "init_strategy='takase': Parcae is supported with 'scaled-zero'",
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_neither_is_refused(tmp_path: Path, name: str, door: str) -> None:
    family, change, said = MUTATIONS[name]
    folder = copy_of(family, tmp_path / family)
    if (family, door) == ("parcae", "auto"):
        configure(folder, model_type="parcae")  # without one, transformers refuses it by itself
    change(folder)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the sentence is what matters, transformers may wrap it)
        DOORS[door](folder)
    assert said in " ".join(str(caught.value).split())


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("adapter"), "lacks weights: transformer.adapter.weight"),
        (lambda weights: weights.update(extra=torch.zeros(2)), "has unexpected weights: extra"),
        (
            lambda weights: weights.update({"transformer.ln_f.weight": torch.ones(8)}),
            "misfits weights: transformer.ln_f.weight",
        ),
    ],
    ids=["missing", "unexpected", "another shape"],
)
@pytest.mark.parametrize("family", ["huginn", "retro_llama", "retro_olmo"])
def test_weights_that_do_not_fit_are_an_error_through_both_doors(
    tmp_path: Path, family: str, change: Any, said: str, door: str
) -> None:
    folder = copy_of(family, tmp_path / "model")
    rewrite(folder, change)
    with pytest.raises(ValueError, match=said):
        DOORS[door](folder)


def test_a_retrofit_never_loads_as_a_huginn_nor_the_reverse() -> None:
    for kind, family in (
        (HuginnForCausalLM, "retro_llama"),
        (HuginnForCausalLM, "retro_olmo"),
        (RetrofitForCausalLM, "huginn"),
    ):
        with pytest.raises(ValueError, match=r"weights are those of|rope_theta is missing"):
            kind.from_pretrained(FOLDERS[family])
        config = AutoConfig.from_pretrained(FOLDERS["huginn" if kind is HuginnForCausalLM else "retro_llama"])
        with pytest.raises(ValueError, match="weights are those of"):
            kind.from_pretrained(FOLDERS[family], config=config)


def test_stale_token_ids_of_a_retrofit_are_not_used(tmp_path: Path) -> None:
    """Its configurations keep Huginn's, which lie outside the vocabulary; the tokenizer's count."""
    from tools import byte_tokenizer, tiny_retrofit

    model = tiny_retrofit(bos_token_id=65504, eos_token_id=65505, pad_token_id=65509)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    again, tokenizer = loopcd.load(tmp_path)
    made = loopcd.generate(again, tokenizer, "Hello", loopcd.Greedy(), max_new_tokens=5)
    assert len(made.token_ids) == 5  # pyright: ignore[reportAttributeAccessIssue]
    found, tokens = again.generation_config, (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)  # pyright: ignore
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == tokens  # pyright: ignore
    other: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert other.generation_config.eos_token_id is other.config.eos_token_id is None


def test_the_end_tokens_are_those_of_checkpoint_and_tokenizer(tmp_path: Path) -> None:
    """Ouro's checkpoints name the end of a document, its tokenizer the end of a turn."""
    from tools import byte_tokenizer, tiny_ouro

    tiny_ouro(eos_token_id=0).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    model, tokenizer = loopcd.load(tmp_path)
    assert model.generation_config.eos_token_id == [0, tokenizer.eos_token_id]  # pyright: ignore


def test_parcae_is_recognised_by_its_class_names_or_its_weights(tmp_path: Path) -> None:
    wanted = logits_of(loopcd.load(FOLDERS["parcae"])[0], random_ids(1, 5, 90))
    folder = copy_of("parcae", tmp_path / "model")
    for names in ((), ("_class_name",), ("model_class_name",)):  # at last by its weights alone
        unconfigure(folder, *names)
        assert torch.equal(logits_of(loopcd.load(folder)[0], random_ids(1, 5, 90)), wanted)
