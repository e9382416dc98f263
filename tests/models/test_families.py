"""Every family has the properties of tests/family.py, and public sizes have public names and counts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import loopcd
from family import PROPERTIES, in_pieces, main
from loopcd.models import LoopedModel, RetrofitConfig
from loopcd.models.presets import PUBLIC, empty_model, preset
from tools import (
    LATER,
    MAKERS,
    VOCABULARY,
    Golden,
    assert_close,
    logits_of,
    random_ids,
    tiny_huginn,
    tiny_nanbeige,
    tiny_olmo,
    tiny_ouro,
    tiny_parcae,
    tiny_retrofit,
)

FAMILIES = {**MAKERS, **LATER}
_made: dict[str, LoopedModel] = {}


def made(family: str) -> LoopedModel:
    return _made.setdefault(family, LATER[family]())


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("family", LATER)
def test_a_family_has_the_property(family: str, name: str) -> None:
    PROPERTIES[name](made(family))


def test_the_properties_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a model lacks is said, by the number that is returned too."""
    folder = Golden.read("nanbeige").folder

    def wrong(model: LoopedModel) -> None:
        assert model.num_loops == 7, "it has seven loops"

    monkeypatch.setattr("family.PROPERTIES", {"cached": next(iter(PROPERTIES.values())), "seven loops": wrong})
    assert main(["nanbeige", str(folder)]) == 1
    said = capsys.readouterr().out
    assert said.count("ok       cached") == 2 and said.count("LACKS    seven loops") == 2 and "it has seven loops" in said


# Settings that the golden checkpoints do not have


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_nanbeige(skip_loop_final_norm=True, tie_word_embeddings=True),
        lambda: tiny_retrofit(bias=True, tie_embeddings=True, tie_word_embeddings=True, init_values=None),
        lambda: tiny_olmo(num_key_value_heads=2, n_layers_in_coda=2),
        lambda: tiny_parcae(injection_type="linear", qk_norm=False, prelude_norm=False, logit_softcap=3.0),
        lambda: tiny_parcae(injection_type="add", tie_embeddings=True, rope_settings={"rope_base": 500}),
        lambda: tiny_parcae(num_attention_heads=6, num_key_value_heads=2, mean_backprop_depth=1, n_layers_in_recurrent_block=1),
        lambda: tiny_parcae(recurrent_intermediation_embedding_dimension=40, n_layers_in_coda=3),
    ],
    ids=["nanbeige", "retrofit", "olmo", "parcae linear", "parcae add", "parcae grouped", "parcae own core"],
)
@pytest.mark.parametrize("name", ["float64 reading", "padded", "saved"])
def test_other_settings(make: Any, name: str) -> None:
    model = make()
    if model.config.model_type == "huginn_raven" and model.config.bias:
        torch.nn.init.zeros_(model.transformer["adapter"].bias)  # which the reading has not
    next(check for title, check in PROPERTIES.items() if title.startswith(name))(model)


def test_parcae_needs_its_tokens() -> None:
    model = made("parcae")
    with pytest.raises(ValueError, match="inputs_embeds without input_ids: Parcae looks the tokens up again"):
        model(inputs_embeds=torch.zeros(1, 3, 36))


@pytest.mark.parametrize("family", ["retrofit", "olmo", "parcae"])
def test_a_drawn_start_state_depends_on_the_seed_alone(family: str) -> None:
    model, ids = made(family), random_ids(1, 6)
    first = logits_of(model, ids, init_seed=3)
    assert torch.equal(first, logits_of(model, ids, init_seed=3))
    assert not torch.allclose(first, logits_of(model, ids, init_seed=4), atol=1e-4)
    with torch.no_grad():
        drawn = model.begin(random_ids(1, 200), init_seed=1).hidden
    std = model.config.initial_std * model.config.embed_scale
    assert drawn.abs().max() <= 3 * std and abs(float(drawn.std()) / std - 0.987) < 0.03


def test_where_nothing_is_drawn_a_seed_is_refused() -> None:
    for model in (tiny_olmo(initial_state_mode="embed-init"), tiny_parcae(state_init="zero")):
        assert not model.has_initial_state
        with pytest.raises(ValueError, match=r"init_seed=3: .* nothing is drawn"):
            model(random_ids(1, 3), init_seed=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_near_float32(family: str) -> None:
    ids = random_ids(2, 12)
    wanted = logits_of(FAMILIES[family](), ids)
    found = in_pieces(FAMILIES[family]().bfloat16(), ids, [8, 1, 1, 2])
    assert found.dtype == (torch.float32 if family == "parcae" else torch.bfloat16)  # Parcae's head is read in float32
    assert (found.float() - wanted).abs().mean() < 0.1 * wanted.std()


@pytest.mark.parametrize("family", FAMILIES)
def test_training_has_gradients_for_every_weight_that_is_used(family: str) -> None:
    model = FAMILIES[family]().train()
    ids = random_ids(2, 6)
    output = model(ids, labels=ids)
    assert output.past_key_values is None
    output.loss.backward()
    trained = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    without = {name for name, grad in trained.items() if grad is None or not grad.any()}
    assert {name for name in without if "early_exit_gate" not in name} == set()


@pytest.mark.parametrize("rows", [VOCABULARY + 11, VOCABULARY - 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_another_number_of_tokens(family: str, rows: int, tmp_path: Path) -> None:
    """The model runs with all of them, and is saved and loaded as it is."""
    model, ids = FAMILIES[family](), random_ids(2, 6)
    before = logits_of(model, ids)
    model.resize_token_embeddings(rows)
    common = min(rows, VOCABULARY)
    assert_close(logits_of(model, ids)[..., :common], before[..., :common])
    ids = torch.cat([ids, torch.full((2, 1), rows - 1)], dim=1)
    model.save_pretrained(tmp_path)
    again, _ = loopcd.load(tmp_path)
    assert again.config.vocab_size == rows
    assert torch.equal(logits_of(again, ids), logits_of(model, ids))


def test_resized_value_embeddings_stay_frozen() -> None:
    model = tiny_parcae()
    model.value_embeds.requires_grad_(False)
    model.resize_token_embeddings(VOCABULARY + 1)
    assert [(len(weight), weight.requires_grad) for weight in model.value_embeds.parameters()] == [(VOCABULARY + 1, False)] * 2


# The public sizes, on the meta device

COUNTS = {
    "smcleish/Recurrent-Llama-3.2-train-recurrence-32": 1_385_228_288,
    "Nanbeige/Nanbeige4.2-3B": 4_169_800_704,
}


@pytest.mark.parametrize("name", COUNTS)
def test_public_sizes(name: str) -> None:
    model = empty_model(PUBLIC[name]())
    assert all(weight.is_meta for weight in model.parameters())
    assert sum(weight.numel() for weight in model.parameters()) == COUNTS[name]


def test_public_names_of_a_retrofitted_llama() -> None:
    golden = Golden.read("retro_llama")
    model = empty_model(PUBLIC["smcleish/Recurrent-Llama-3.2-train-recurrence-32"]())
    kinds = {".".join("N" if part.isdigit() else part for part in name.split(".")) for name in golden.facts["state_dict"]}
    found = {".".join("N" if part.isdigit() else part for part in name.split(".")) for name, _ in model.named_parameters()}
    assert found == kinds
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert shapes["transformer.core_block.5.attn.Wqkv.weight"] == (3072, 2048)
    assert shapes["transformer.adapter.weight"] == (2048, 4096)
    assert shapes["lm_head.weight"] == shapes["transformer.wte.weight"] == (128256, 2048)


def test_a_model_of_two_loops_has_one_contrast() -> None:
    assert preset(tiny_nanbeige(num_loops=2)).amateur_loop == 1
    assert preset(tiny_retrofit(mean_recurrence=32)).amateur_loop == 8
    assert isinstance(PUBLIC["smcleish/Recurrent-TinyLlama-3T-train-recurrence-32"](), RetrofitConfig)


# What is saved is what the public code reads


def saved_fields(model: LoopedModel, folder: Path) -> dict[str, Any]:
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text())


class PublicRaven:
    """How the public class of Huginn takes its fields: the switch by one name, which it hands on by the other."""

    def __init__(self, tie_embeddings: bool = True, **fields: Any) -> None:
        self.fields = dict(tie_word_embeddings=tie_embeddings, **fields)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("make", [tiny_huginn, tiny_retrofit, tiny_olmo])
def test_the_public_class_of_huginn_takes_the_saved_fields(make: Any, tied: bool, tmp_path: Path) -> None:
    fields = saved_fields(make(tie_embeddings=tied, tie_word_embeddings=tied), tmp_path)
    assert PublicRaven(**fields).fields["tie_word_embeddings"] is tied
    if make is not tiny_huginn:
        assert fields["rope_theta"] == make().config.rotary_base and "rope_parameters" not in fields
        assert (fields["rope_scaling"] is None) == (make is tiny_olmo)


def test_rotary_bases_are_saved_by_their_public_names(tmp_path: Path) -> None:
    fields = saved_fields(tiny_ouro(rope_theta=1e6), tmp_path / "ouro")
    assert fields["rope_theta"] == 1e6 and fields["rope_scaling"] is None
    fields = saved_fields(tiny_nanbeige(rope_theta=7e7), tmp_path / "nanbeige")
    assert fields["rope_theta"] == 7e7 and fields["num_loops"] == 3


def test_a_saved_parcae_has_the_fields_of_the_public_class_alone(tmp_path: Path) -> None:
    golden = Golden.read("parcae")
    public = json.loads((golden.folder / "config.json").read_text())
    assert saved_fields(golden.model, tmp_path / "again") == public
    fields = saved_fields(tiny_parcae(), tmp_path / "own")
    assert fields.keys() <= public.keys()
    assert (fields["norm_class_name"], fields["nonlin_name"], fields["init_strategy"]) == ("RMSNorm", "ReLU2", "scaled-zero")


# On the golden checkpoints


@pytest.mark.parametrize("family", ["nanbeige", "retro_llama", "retro_olmo", "parcae"])
def test_golden_prompts_in_one_padded_batch(family: str) -> None:
    golden = Golden.read(family)
    rows = [golden.ids(text)[0] for text in ("s0", "s1", "s2")]
    longest = max(len(row) for row in rows)
    ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows]).long()
    for found, text in zip(logits_of(golden.model, ids, attention_mask=mask), ("s0", "s1", "s2"), strict=True):
        wanted = golden.arrays[f"{text}.logits_per_loop"][-1]
        assert_close(found[-len(wanted) :], wanted)
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 24, "do_sample": False, "eos_token_id": None}
    for method in (None, loopcd.Greedy(), loopcd.Greedy(draft=loopcd.SelfDraft(1, 3, fallback=False))):
        made = golden.model.generate(ids, custom_generate=method, pad_token_id=0, **options)[:, longest:]
        for tokens, text in zip(made, ("s0", "s1", "s2"), strict=True):
            assert tokens.tolist() == golden.arrays[f"{text}.greedy_tokens"].tolist()
