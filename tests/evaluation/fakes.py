"""An engine without a model, and small data sets written for these tests."""

import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from loopcd.decoding import Generation, Greedy, Method
from loopcd.evaluation.engine import CompletionRequest, Engine, plain
from loopcd.evaluation.evaluate import Evaluation, evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.task import Item, TaskOptions
from loopcd.evaluation.tasks import make_task
from loopcd.evaluation.tasks.questions import ReadTask

# prompts of the benchmarks by their hashes, and texts with their grades, by the authors' protocol (tests/golden/README.md)
PROTOCOL = json.loads((Path(__file__).parents[1] / "golden" / "protocol.json").read_text())


@dataclass(frozen=True)
class FakeEngine(Engine):
    """Answers follow from prompt, method, seed and, as rounding would have it, from the batch's composition."""

    batch_size: int = 4
    seconds: float = 0.0  # a batch takes
    name: str = "fake"
    calls: list[tuple[Method, CompletionRequest, int]] = field(default_factory=list, compare=False)

    def describe(self) -> dict[str, Any]:
        return {"engine": "fake", "model": self.name, "loops": 4, "dtype": "none", "batch_size": self.batch_size, "weights": {}}

    def machine(self) -> dict[str, Any]:
        return {"device": "none"}

    def settings(self, method: Method) -> dict[str, Any]:
        return plain(method)

    def lengths(self, prompts: Sequence[str]) -> list[int]:
        return [len(prompt) for prompt in prompts]

    def complete(self, prompts: Sequence[str], method: Method, request: CompletionRequest) -> list[Generation]:
        self.calls.append((method, request, len(prompts)))
        time.sleep(self.seconds)
        company = sha256("".join(prompts).encode()).hexdigest()
        rule = "greedy" if isinstance(method, Greedy) else repr(method)
        return [_answer(prompt, sha256(f"{prompt}{rule}{request.seed}{company}".encode()).digest()) for prompt in prompts]


def steps_with(items: Sequence[Item], **changes: Any) -> ReadTask:
    """The built-in task with other items."""
    made = make_task("steps", TaskOptions(limit=1))
    assert isinstance(made, ReadTask)
    return replace(made, items=items, **changes)


def _answer(prompt: str, digest: bytes) -> Generation:
    """A number in the steps' convention; one in three says something else as well."""
    words = [f"It is {digest[0] % 5} «é\u2028»."] if digest[1] % 3 == 0 else []
    text = "\n".join([*words, f"#### {digest[0] % 5}"])
    tokens = list(text.encode())
    return Generation(text, tokens, "stop", [4] * len(tokens), 0, 0)


def fake_run(out: Path, methods: str = "greedy,loopcd", limit: int = 23, **options: Any) -> Evaluation:
    """A whole evaluation on the fake engine."""
    engine = options.pop("engine", None) or FakeEngine(options.pop("batch_size", 4), options.pop("seconds", 0.0))
    task = make_task("steps", TaskOptions(limit=limit, max_new_tokens=options.pop("max_new_tokens", None)))
    return evaluate(task, engine, RunPlan(parse_methods(methods), **options), out)


def contents(folder: Path) -> dict[str, bytes]:
    """All files that two runs of the same settings must share: everything but timings and the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timing.jsonl", "throughput.json", ".lock")
    }


def gsm8k_folder(folder: Path) -> Path:
    """Six problems to learn from and four to solve, in GSM8K's form."""
    train = [
        _problem(f"Mia has {n} jars with {n + 1} plums each. How many plums?", f"{n} * {n + 1}", n * (n + 1))
        for n in range(2, 8)
    ]
    test = [
        _problem("A barn holds 1,200 bales and gets 34 more. How many bales are there?", "1200 + 34", "1,234"),
        _problem("It was 3 degrees and fell by 8. How many degrees is it now?", "3 - 8", -5),
        _problem("Three pens cost 6 dollars each. How many dollars is that?", "3 * 6", 18),
        _problem("Ann shares 20 nuts with 3 friends equally. How many has she?", "20 / 4", 5),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gsm8k_test.jsonl").write_text("".join(json.dumps(each) + "\n" for each in test))
    (folder / "gsm8k_train.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in train).encode()))
    return folder


def _problem(question: str, sum_: str, gold: int | str) -> dict[str, str]:
    plain_gold = str(gold).replace(",", "")
    return {
        "question": question,
        "answer": f"That is {sum_} = <<{sum_.replace(' ', '')}={plain_gold}>>{plain_gold}.\n#### {gold}",
    }


def math500_folder(folder: Path) -> Path:
    problems = [
        ("Compute $\\frac{1}{4} + \\frac{1}{4}$.", "We get $\\frac{1}{4}+\\frac{1}{4} = \\boxed{\\frac{1}{2}}$."),
        ("Factor $x^2-1$.", "It is $\\boxed{(x-1)(x+1)}$."),
        ("What is $7 \\cdot 6$?", "The product is $\\boxed{42}$."),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"problem": problem, "solution": solution, "answer": "x"}) + "\n" for problem, solution in problems)
    (folder / "math500.jsonl").write_text("".join(lines))
    return folder


def strategyqa_folder(folder: Path) -> Path:
    """Five questions, and a file of two worked examples beside them."""
    records = [{"qid": f"own{n}", "question": f"Is {n} even?", "answer": n % 2 == 0, "facts": ["Fine."]} for n in range(5)]
    examples = [
        {"question": "Yes or no: Is 0 even?", "chain": "Zero is twice zero.", "answer": "yes"},
        {"question": "Is  1 even? ", "chain": "One is odd.", "answer": "no"},
    ]
    folder.mkdir(parents=True, exist_ok=True)
    raw = "".join(json.dumps(record) + "\n" for record in records).encode()
    (folder / "strategyqa_train_2290.jsonl.gz").write_bytes(gzip.compress(raw))
    (folder / "strategyqa_6shot_cot_exemplars.json").write_text(json.dumps(examples))
    return folder
