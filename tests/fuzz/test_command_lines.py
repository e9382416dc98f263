"""Command lines that somebody might mistype, paste or be talked into: each is run or refused in a sentence.

LOOPCD_LINES=2000 tries so many.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from decoding.labels import LABEL_EOS, LABEL_PAD, labelled_tokenizer
from fuzz.judging import complaint
from random_models import one_thread
from tools import tiny_huginn, tiny_ouro

__all__ = ["one_thread"]

LINES, SHARDS = int(os.environ.get("LOOPCD_LINES", "200")), 10
ODD = [
    "",
    " ",
    "0",
    "-1",
    "nan",
    "inf",
    "1e309",
    "9" * 40,
    "0x10",
    "1,2",
    "é💥",
    "\udcff",
    "[/b]",
    "--",
    "../..",
    "/dev/null",
    "None",
]
HUGE = "99999999999999999999"
REAL = ["0.5", "1", "0.01", "0", "2", "1e-9", "1e9", "1e300", "nan", "inf", "-1", "1e-320"]
WHOLE = ["1", "2", "3", "0", "7", "-1", HUGE, f"-{HUGE}"]
SMALL = ["1", "2", "3", "4", "0", "-1"]  # where a large number would only take long
DEVICES = [
    "cpu",
    "cpu:0",
    "cpu",
    "meta",
    "cuda",
    "cuda:99",
    "mps",
    "hpu",
    "xla",
    "cpu:3",
    "cpu:-1",
    "privateuseone",
    "abacus",
    "",
]
DTYPES = ["float32", "bfloat16", "float16", "torch.float32", "int8", "float8_e4m3fn", "__class__", ""]
METHODS = ["greedy", "loopcd", "noisecd", "mti", "selfeval", "loopguidance", "loopcd"]
SPECS = [
    "greedy",
    "loopcd:strength=0.1",
    "loopcd:strength=nan",
    "loopcd:,",
    "mti:negative_prompt=",
    "x:y=z",
    "selfeval:candidates=1",
    ",",
]
PROMPTS = [
    "hi",
    "some words",
    "x" * 240,
    "hi",
    "[/b]",
    "x" * 300,
    "",
    " ",
    "\udcff",
    "{" * 100,
    "\x00",
    "[/b]",
    "%s%n",
    "\u202e",
]


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and folders, good and bad, by what a line may name them for."""
    base = tmp_path_factory.mktemp("fuzz")
    size = {"vocab_size": 260, "pad_token_id": LABEL_PAD, "eos_token_id": LABEL_EOS}
    for name, model in {"huginn": tiny_huginn(2, **size), "[/b]": tiny_ouro(2, **size)}.items():
        model.save_pretrained(base / name)
        labelled_tokenizer().save_pretrained(base / name)
    (base / "empty").mkdir()
    (base / "noise.npz").write_bytes(random.Random(0).randbytes(2000))
    (base / "nested.json").write_text('{"prompt": ' * 50_000)
    (base / "lists.json").write_text("[" * 50_000)
    (base / "run.json").write_text(json.dumps({"ratios": {"m": 3}, "machine": [], "details": {"[/b]": 1}}))
    (base / "prompts.txt").write_text('one\n{"prompt": "two"}\n')
    (base / "wrong.txt").write_text('{"prompt": 3}\n')
    (base / "gsm8k_test.jsonl").write_text('{"question": 3}\n')
    (base / "gsm8k_train.jsonl").write_text("[]\n")
    (base / "math500.jsonl").write_text('{"problem": "x", "solution": "no box"}\n')
    (base / "loop").symlink_to(base / "loop")
    return {path.name: str(path) for path in base.iterdir()} | {
        "base": str(base),
        "nowhere": str(base / "no" / "where"),
        "marked": str(base / "[/b]"),
    }


class Liar:
    """Draws command lines."""

    def __init__(self, seed: int, places: dict[str, str], scratch: Path) -> None:
        self.chance, self.places, self.scratch = random.Random(seed), places, scratch

    def line(self) -> list[str]:
        kinds = [
            self.generate,
            self.models,
            self.eval,
            self.sweep,
            self.reproduce,
            self.lens,
            self.bench,
            self.train,
            self.serve,
        ]
        return self.chance.choices(kinds, weights=[58, 8, 10, 3, 4, 7, 6, 2, 2])[0]()

    def one_of(self, values: list[str], odd: float = 0.05) -> str:
        """Mostly one of the first few, which are good, so that a line gets further than to its first mistake."""
        drawn = self.chance.random()
        return self.chance.choice(ODD if drawn < odd else values if drawn < 0.3 else values[:3])

    def place(self, *good: str) -> str:
        return (
            self.places[self.chance.choice(good)]
            if self.chance.random() < 0.6
            else self.chance.choice([*self.places.values(), *ODD])
        )

    def model(self) -> list[str]:
        return [
            "--model",
            self.places["huginn"] if self.chance.random() < 0.7 else self.place("marked", "empty", "nowhere", "base"),
        ]

    def some(self, options: dict[str, Any], most: int) -> list[str]:
        """A few of the options, each with one of its values; a flag has none."""
        chosen = self.chance.sample(list(options), self.chance.randint(0, min(most, len(options))))
        return [part for name in chosen for part in ([name] if options[name] is None else [name, self.one_of(options[name])])]

    def run_options(self) -> dict[str, Any]:
        return {"--num-loops": [*SMALL, HUGE], "--dtype": DTYPES, "--device": DEVICES, "--batch-size": WHOLE, "--json": None}

    def settings(self, method: str) -> dict[str, Any]:
        """The flags that belong to a method."""
        own: dict[str, dict[str, Any]] = {
            "loopcd": {
                "--amateur-loop": [*SMALL, "auto", HUGE],
                "--strength": REAL,
                "--where": ["hard", "easy numeric", "operator", "x"],
            },
            "noisecd": {"--noise": REAL, "--strength": REAL},
            "mti": {"--entropy-threshold": REAL, "--guidance": [*REAL, "-1e300"], "--negative-prompt": PROMPTS},
            "selfeval": {"--candidates": SMALL},
            "loopguidance": {"--early-loop": [*SMALL, HUGE], "--weight": REAL},
        }
        own["loopcd"] |= {"--coda": ["own", "shared"], "--plausibility": REAL}
        own["mti"] |= {"--plausibility": REAL}
        leaving = {"--exit-threshold": REAL, "--min-loops": WHOLE, "--exit-criterion": ["latent", "gate"], "--exited": ["skip"]}
        drafting = {"--draft": None, "--draft-loops": WHOLE, "--draft-length": SMALL}
        return own.get(method, {}) | leaving | (drafting if method in ("greedy", "loopcd") else {})

    def generate(self) -> list[str]:
        method = self.chance.choice(METHODS)
        drawing = {"--temperature": REAL, "--top-p": REAL, "--seed": WHOLE, "--init-seed": WHOLE, "--stop": ["", "a", "\udcff"]}
        more = ["--method", method, *self.some(self.settings(method), 3), *self.some({**drawing, **self.run_options()}, 2)]
        if self.chance.random() < 0.1:
            more.append("--stream")
        if self.chance.random() < 0.1:
            traced = [str(self.scratch / "t.npz"), self.places["loop"], "/dev/null", "", "/"]
            more += ["--trace", self.chance.choice(traced)]
        length = self.one_of(["1", "2", "2", "3", HUGE], 0.03)
        start = ["generate", *self.model(), "--max-new-tokens", "3" if length == HUGE else length, *more]
        if self.chance.random() < 0.15:
            return [*start, "--file", self.place("prompts.txt", "nested.json", "wrong.txt")]
        return [*start, "--", self.chance.choice(PROMPTS)]

    def models(self) -> list[str]:
        options = {"--context": WHOLE, "--num-loops": WHOLE, "--dtype": DTYPES, "--json": None}
        return ["models", self.place("huginn", "marked", "empty"), *self.some(options, 3)]

    def out(self) -> list[str]:
        fresh = str(self.scratch / f"out{self.chance.random()}")
        return [
            "--out",
            fresh
            if self.chance.random() < 0.7
            else self.chance.choice([self.places["base"], self.places["loop"], "/dev/null"]),
        ]

    def task(self) -> list[str]:
        named = self.chance.choice(["steps-easy"] * 6 + ["gsm8k", "math500", "strategyqa", "humaneval", "x", ""])
        data = ["--data", self.place("base", "empty", "nowhere")] if named not in ("steps-easy", "x", "") else []
        return ["--task", named, *data, "--limit", self.chance.choice(["1", "2", "2", "3", "0", "-1"])]

    def eval(self) -> list[str]:
        settings = {
            "--methods": SPECS,
            "--seeds": ["0", "1,2", "-1", "0,0", "x", ""],
            "--temperature": WHOLE,
            "--top-p": WHOLE,
        }
        settings |= {"--engine": ["local", "x"], "--tensor-parallel": SMALL, "--exemplars": [self.places["lists.json"], "/"]}
        settings |= self.run_options()
        return [
            "eval",
            *self.model(),
            *self.task(),
            *self.out(),
            "--max-new-tokens",
            self.one_of(["1", "2"]),
            *self.some(settings, 3),
        ]

    def sweep(self) -> list[str]:
        settings = {"--metric": ["x", ""], "--methods": SPECS, "--paper-practice": None, "--device": DEVICES[3:]}
        return ["sweep", *self.model(), *self.task()[:-1], "0", *self.out(), *self.some(settings, 3)]

    def reproduce(self) -> list[str]:
        element = self.chance.choice(["fig99", "", "all,all", "\udcff", "table1"])
        return [
            "reproduce",
            element,
            *self.model(),
            "--task",
            "steps-easy",
            "--limit",
            "0",
            *self.out(),
            *self.some(self.run_options(), 2),
        ]

    def lens(self) -> list[str]:
        target = self.chance.choice([str(self.scratch / "page.html"), self.places["loop"], self.places["empty"], "/dev/null"])
        source = self.chance.choice([self.place("noise.npz", "prompts.txt"), "hi", "x.npz", "", "\udcff"])
        options = {
            "--limit": SMALL,
            "--amateur-loop": SMALL,
            "--strength": WHOLE,
            "--plausibility": WHOLE,
            "--device": DEVICES,
        }
        return [
            "lens",
            source,
            "--export",
            target,
            *self.model(),
            "--max-new-tokens",
            self.one_of(["1", "2"]),
            *self.some(options, 2),
        ]

    def bench(self) -> list[str]:
        options = {"--batch": ["1", "0", "x", ","], "--rounds": ["0", "-1", "x"], "--what": ["x", ",", ""], "--json": None}
        if self.chance.random() < 0.6:
            read = self.chance.choice(["run.json", "nested.json", "lists.json", "noise.npz", "base", "nowhere"])
            return ["bench", "--from", self.places[read], *self.some(options, 1)]
        return ["bench", "--what", "nothing", "--models", self.place("empty", "nowhere"), *self.some(options, 2)]

    def train(self) -> list[str]:
        wrong = self.chance.choice(
            [["x"], ["tiny-ouro", "--minutes", "nan"], ["tiny-ouro", "--threads", "0"], ["tiny-ouro", "--minutes", "-1"]]
        )
        return ["train", *wrong, *self.out()]

    def serve(self) -> list[str]:
        return ["serve", self.place("empty"), "--amateur-loops", self.one_of(["1,x", "x"]), *self.some({"--port": WHOLE}, 1)]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_line_is_run_or_refused_in_a_sentence(shard: int, places: dict[str, str], tmp_path: Path) -> None:
    liar = Liar(shard, places, tmp_path)
    lines = [liar.line() for _ in range(LINES // SHARDS)]
    found = [each for each in (complaint(line, stdin="from standard input\n") for line in lines) if each is not None]
    assert found == []
