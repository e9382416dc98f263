"""The parts `full-size` and `reference` on tiny shapes, and what they refuse."""

import sys
from pathlib import Path
from subprocess import Popen

import pytest
import torch

from loopcd.bench import full_size, reference
from loopcd.bench.parts import Settings
from loopcd.bench.tables import tables
from processes import ForkedScript
from tools import tiny_huginn, tiny_ouro


def test_full_size_of_tiny_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_size.os, "cpu_count", lambda: 1)
    said: list[str] = []
    monkeypatch.setattr(full_size, "PUBLIC", {"one": lambda: tiny_ouro().config, "two": lambda: tiny_huginn().config})
    found = full_size.bench_full_size(1, 1, said.append, ["one", "two"])
    for told in found["models"].values():
        assert list(told["threads"]) == ["1"] and list(told["threads"]["1"]) == ["float32", "bfloat16", "int8"]
        assert told["weights"]["float32"] == 2 * told["weights"]["bfloat16"] > 3 * told["weights"]["int8"]
        assert told["threads"]["1"]["float32"]["step_over_float32"]["median"] == 1
    (table,) = tables({"full-size": found})
    assert len(table.rows) == 6 and len(table.columns) == len(table.rows[0])
    monkeypatch.setattr(full_size, "free_bytes", lambda device: 1000)
    assert not full_size.bench_full_size(1, 1, said.append, ["one"])["models"] and "does not fit" in said[-1]
    with pytest.raises(ValueError, match="models=other: of full size there are"):
        full_size.bench_full_size(1, 1, said.append, ["other"])


def test_reference_names_what_it_needs(tmp_path: Path) -> None:
    for given in (None, "nowhere", f"{sys.executable},{tmp_path}"):
        with pytest.raises(ValueError, match="PYTHON,FOLDER"):
            Settings(what=("reference",), reference=given)


def test_public_code_that_cannot_be_imported_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    for family in ("huginn_ref", "ouro_ref"):
        (tmp_path / family).mkdir()
    (tmp_path / "huginn_ref" / "raven_modeling_minimal.py").touch()
    said: list[str] = []
    with pytest.raises(ValueError, match=r"ouro_ref\.modeling_ouro cannot be imported there: ModuleNotFoundError"):
        reference.bench_reference(f"{sys.executable},{tmp_path}", (8,), 1, 2, said.append)
    assert not said


PUBLIC = """
from loopcd.models import {name}

class {public}({name}):
    def forward(self, *args, cache_position=None, num_steps=None, torch_dtype=None, **kwargs):
        return super().forward(*args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args, torch_dtype=None, **kwargs):
        return super().from_pretrained(*args, **kwargs)
"""


@pytest.mark.slow
def test_reference_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own classes in the place of the public ones: the same texts. One process is a fresh one."""
    for family, file, public, name in (
        ("huginn_ref", "raven_modeling_minimal", "RavenForCausalLM", "HuginnForCausalLM"),
        ("ouro_ref", "modeling_ouro", "OuroForCausalLM", "OuroForCausalLM"),
    ):
        (tmp_path / family).mkdir()
        (tmp_path / family / "__init__.py").touch()
        named = f"Our{public}" if public == name else public
        text = PUBLIC.format(name=name, public=named) + (f"\n{public} = {named}\n" if named != public else "")
        (tmp_path / family / f"{file}.py").write_text(text)
    asked, found = (f"{sys.executable},{tmp_path}", (8,), 1, 2, lambda _: None), {}
    with torch.random.fork_rng(devices=[]):
        for family, make, forked in (("huginn", tiny_huginn, ("ours",)), ("ouro", tiny_ouro, ("ours", "reference"))):
            monkeypatch.setattr(reference, "MAKERS", {family: lambda make=make: make(vocab_size=1000)})
            started = lambda command, forked=forked, **given: (  # noqa: E731
                ForkedScript(command) if command[2] in forked else Popen(command, **given)
            )
            monkeypatch.setattr(reference.subprocess, "Popen", started)
            found |= reference.bench_reference(*asked)
    assert all(each["8"]["same_text"] and each["8"]["decode"]["median"] > 0 for each in found.values())
    assert len(tables({"reference": found})[0].rows) == 2
    with pytest.raises(ValueError, match="models=other: beside the public code, some of"):
        reference.bench_reference(*asked, names=["other"])
