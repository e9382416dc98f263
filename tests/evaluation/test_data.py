"""Data files of the user: what is not the benchmark's is refused by name; a hub that cannot be reached is asked once."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets.config
import huggingface_hub
import pytest

from loopcd.evaluation import data
from loopcd.evaluation.session import read_answers
from loopcd.evaluation.task import TaskOptions
from loopcd.evaluation.tasks import make_task


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]\n", "record 1 is no JSON object"),
        ('{"problem": "x"}\n', "record 1: `solution` should be a str"),
        ('{"problem": "x", "solution": 3}\n', "record 1: `solution` should be a str"),
        ('{"problem": "x", "solution": "no box"}\n', "lm-eval cannot make its task of these records"),
        ("[" * 100_000 + "\n", "does not hold JSON lines"),
        ("\n", "holds no record"),
    ],
)
def test_records_of_another_kind_are_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "math500.jsonl").write_text(content)
    with pytest.raises(ValueError, match=said):
        make_task("math500", TaskOptions(tmp_path))


def test_a_packed_file_unpacks_to_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LARGEST", 100_000)
    (tmp_path / "gsm8k_train.jsonl.gz").write_bytes(gzip.compress(bytes(100_001)))
    with pytest.raises(ValueError, match=r"gsm8k_train.jsonl.gz does not hold JSON lines: unpacked it is larger than 0.1 MB"):
        data.read_lines(tmp_path, "gsm8k_train.jsonl.gz")


def test_nested_exemplars_are_refused(tmp_path: Path) -> None:
    (tmp_path / "strategyqa_train_2290.jsonl").write_text(
        json.dumps({"qid": "a", "question": "b", "answer": True, "facts": []}) + "\n"
    )
    (tmp_path / "mine.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"mine\.json does not hold JSON"):
        make_task("strategyqa", TaskOptions(tmp_path, exemplars=tmp_path / "mine.json"))


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` by itself would ask six times, with 23 seconds in between."""
    asked: list[str] = []
    offline: list[bool] = []

    def unreachable(_: Any, path: str, **__: Any) -> None:
        asked.append(path)
        raise ConnectionError("Name or service not known")

    def load_dataset(*_: Any, **__: Any) -> None:
        offline.append(huggingface_hub.constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE)
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match=r"could not be had from the hub .* give the folder of its files by --data DIR"):
        data.from_hub("some/data", None, "test")
    assert (asked, offline) == (["some/data"], [True])
    assert not huggingface_hub.constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE


def test_nested_answers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"answers\.jsonl, line 1 is no JSON"):
        read_answers(tmp_path / "answers.jsonl", [])
