"""Model folders from strangers are data: nothing in them is run, fetched or applied unasked, and sizes are not believed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import loopcd
from loopcd.cli import main
from processes import printed
from tools import GOLDEN, configure, logits_of, random_ids, refused, save_model, tiny_huginn, tiny_ouro, tiny_parcae

# Code in a tokenizer


def hostile_tokenizer(folder: Path) -> Path:
    """A model whose tokenizer asks to be run; gives the file that shows that it was."""
    save_model(folder, tiny_ouro())
    marker = folder / "it-ran"
    (folder / "evil.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast\nclass T(PreTrainedTokenizerFast): pass\n"
    )
    asked = {"auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(asked))
    return marker


@pytest.mark.parametrize("command", ["generate", "eval"])
def test_a_tokenizer_runs_no_code_even_where_somebody_says_yes(tmp_path: Path, command: str) -> None:
    marker = hostile_tokenizer(tmp_path / "model")
    rest = ["Hello", "--max-new-tokens", "2"] if command == "generate" else ["--limit", "1", "--out", str(tmp_path / "out")]
    made = CliRunner().invoke(main, [command, "--model", str(tmp_path / "model"), *rest], input="y\n" * 5)
    assert not marker.exists()
    assert "[y/N]" not in made.output and "Traceback" not in made.output
    assert made.exit_code == 1 and "the tokenizer in" in made.stderr


def test_a_tokenizer_of_its_own_code_is_refused(tmp_path: Path) -> None:
    marker = hostile_tokenizer(tmp_path / "model")
    refused(tmp_path / "model", "the tokenizer in", "cannot be read")
    assert not marker.exists()


# Sizes that are not believed

ABSURD = [
    {"intermediate_size": 4_000_000},
    {"vocab_size": 8_000_000},
    {"hidden_size": 1_000_000},
    {"num_hidden_layers": 20_000},
    {"num_attention_heads": 2**20, "hidden_size": 2**40},
    {"head_dim": 2**40},
]
MEASURE = """
import json, resource, sys
import loopcd
from pathlib import Path
from transformers import AutoModelForCausalLM
folder = Path(sys.argv[1])
whole = (folder / "config.json").read_text()
loopcd.load(folder)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for change in json.loads(sys.argv[2]):
    (folder / "config.json").write_text(json.dumps({**json.loads(whole), **change}))
    for door in (loopcd.load, AutoModelForCausalLM.from_pretrained):
        try:
            door(folder)
            print("LOADED", change)
        except ValueError as error:
            print(str(error)[:200])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_absurd_sizes_take_no_memory(tmp_path: Path) -> None:
    """Of a checkpoint of a megabyte; each is refused by both doors, together within 200 MB."""
    save_model(tmp_path, tiny_ouro())
    *said, megabytes = printed(MEASURE, str(tmp_path), json.dumps(ABSURD)).splitlines()
    assert len(said) == 2 * len(ABSURD) and not any(line.startswith("LOADED") for line in said), said
    assert int(megabytes) < 200


@pytest.mark.parametrize("change", ABSURD[:4], ids=str)
def test_absurd_sizes_are_refused_by_name(tmp_path: Path, change: dict[str, int]) -> None:
    save_model(tmp_path, tiny_ouro())
    configure(tmp_path, **change)
    refused(tmp_path, str(tmp_path), "20000 layers, the weights have 2" if "num_hidden_layers" in change else "misfits weights")


def test_numbers_that_are_none(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_ouro())
    configure(tmp_path, rms_norm_eps=float("nan"))
    refused(tmp_path, "config.json", "NaN is no number")


# Files outside the folder


@pytest.mark.parametrize("name", ["../outside.safetensors", "sub/inside.safetensors", "ABSOLUTE"])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    save_model(folder, tiny_ouro())
    outside = tmp_path / "outside.safetensors"
    weights = load_file(folder / "model.safetensors")
    save_file(weights, outside, metadata={"format": "pt"})
    (folder / "sub").mkdir()
    shutil.copy(outside, folder / "sub" / "inside.safetensors")
    (folder / "model.safetensors").unlink()
    name = str(outside) if name == "ABSOLUTE" else name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, name)}))
    refused(folder, "model.safetensors.index.json", name, "files of the same folder")
    with pytest.raises(ValueError, match="files of the same folder"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_an_index_of_many_missing_files_is_short(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_ouro())
    names = {f"w{index}": f"m{index}.safetensors" for index in range(2000)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    refused(tmp_path, "and 1992 more")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_nested_json(tmp_path: Path, name: str) -> None:
    save_model(tmp_path, tiny_ouro())
    (tmp_path / name).write_text("[" * 100_000 + "]" * 100_000)
    refused(tmp_path, name)


# What is not applied unasked


def test_an_adapter_is_not_applied(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_ouro())
    adapter = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": "nowhere/nothing"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    refused(tmp_path, "adapter_config.json", "not applied unasked")
    with pytest.raises(ValueError, match="not applied unasked"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("field", ["_attn_implementation", "attn_implementation", "_attn_implementation_internal"])
def test_an_attention_kernel_is_not_fetched(tmp_path: Path, field: str) -> None:
    save_model(tmp_path, tiny_ouro())
    configure(tmp_path, **{field: "evil/kernel"})
    refused(tmp_path, "evil/kernel", "code from the hub is not run")
    with pytest.raises(ValueError, match="evil/kernel"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_fields_named_as_parts_of_a_configuration_class(tmp_path: Path) -> None:
    """They are kept as data: what is imported and refused is the class's."""
    save_model(tmp_path, tiny_ouro())
    configure(tmp_path, home="no.such.module", title=3, only={"vocab_size": [1]}, without=".*", loops_field="vocab_size")
    loopcd.load(tmp_path)
    configure(tmp_path, use_sliding_window=True)
    refused(tmp_path, "use_sliding_window=True")


@pytest.mark.parametrize("dtype", ["__class__", "nonsense"])
def test_a_dtype_that_is_none(tmp_path: Path, dtype: str) -> None:
    save_model(tmp_path, tiny_ouro())
    configure(tmp_path, dtype=dtype)
    refused(tmp_path, "config.json")


# Pickled weights, after a plain word


def pickled(folder: Path, name: str = "model.pt") -> Path:
    """A Parcae as it is published: its weights a pickle, the tied head stored too, with a rotary table."""
    shutil.copytree(GOLDEN / "families" / "parcae_tiny", folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    extra = {"lm_head.weight": weights["transformer.wte.weight"], "freqs_cis": torch.zeros(1, 96, 1, 6, 2)}
    torch.save({**weights, **extra}, folder / name)
    return folder


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin"])
@pytest.mark.parametrize("old_format", [False, True])
def test_pickled_weights_are_read_with_consent_only(tmp_path: Path, name: str, old_format: bool) -> None:
    folder = pickled(tmp_path / "model", name)
    if old_format:
        state = torch.load(folder / name, weights_only=True)
        torch.save(state, folder / name, _use_new_zipfile_serialization=False)
    refused(folder, name, "safetensors only", "allow_pickle=True", "--allow-pickle")
    wanted = logits_of(loopcd.load(GOLDEN / "families" / "parcae_tiny")[0], random_ids(1, 6, 90))
    model, _ = loopcd.load(folder, allow_pickle=True)
    assert torch.equal(logits_of(model, random_ids(1, 6, 90)), wanted)


def test_pickled_weights_are_compared_too(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "model")
    configure(folder, n_layers_in_coda=2)
    refused(folder, "lacks weights: transformer.coda.1.", allow_pickle=True)


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    folder, marker = pickled(tmp_path / "model"), tmp_path / "it-ran"
    torch.save({"transformer.wte.weight": Touch(marker)}, folder / "model.pt")
    refused(folder, "model.pt", "does not hold weights alone", allow_pickle=True)
    assert not marker.exists()
    torch.save({"model": {"transformer.wte.weight": torch.zeros(2)}}, folder / "model.pt")
    refused(folder, "model.pt", "a dictionary of names and tensors", allow_pickle=True)


def test_consent_on_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_model(folder, tiny_parcae())
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    line = ["generate", "Hello", "--model", str(folder), "--max-new-tokens", "3"]
    without = CliRunner().invoke(main, line)
    assert without.exit_code == 1 and "--allow-pickle" in without.output
    assert CliRunner().invoke(main, [*line, "--allow-pickle"]).exit_code == 0


def test_safetensors_are_read_where_there_are_both(tmp_path: Path) -> None:
    save_model(tmp_path, tiny_huginn())
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a pickle")
    loopcd.load(tmp_path, allow_pickle=True)
