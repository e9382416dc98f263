"""What LoopCD costs over greedy: both run side by side, token by token, so that the machine's moods hit both alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

from loopcd.bench.subjects import MEDIUM, Subject, disagreeing, sharpen
from loopcd.bench.timing import NOTHING, Sample, Stopwatch, ratio
from loopcd.decoding import Greedy, LoopCD, Method
from loopcd.models import LoopedModel
from loopcd.models.loading import load

METHODS: dict[str, Method] = {
    "greedy": Greedy(),
    "loopcd": LoopCD(),
    "loopcd eager": LoopCD(lazy=False),
    "loopcd own coda": LoopCD(coda="own"),
}


@dataclass(frozen=True)
class SideBySide:
    """One round: what each method needed for the same number of tokens, and how often its rule had a choice."""

    samples: dict[str, Sample]
    contested: dict[str, float]


def side_by_side(subject: Subject, methods: Mapping[str, Method], prompts: Sequence[Sequence[int]], turn: int) -> SideBySide:
    """Decode the prompts by all methods at once, a token each in turn; the prompts' own passes are not counted.

    Only for texts that do not end early. The order changes with every token, and starts with `turn`.
    """
    runs = {name: method.steps(subject.job(prompts)) for name, method in methods.items()}
    for run in runs.values():
        next(run)
    samples = dict.fromkeys(runs, NOTHING)
    contested = dict.fromkeys(runs, 0)
    for number in range(subject.max_new_tokens - 1):
        names = list(runs)
        first = (number + turn) % len(names)
        for name in names[first:] + names[:first]:
            watch = Stopwatch()
            with watch.running():
                step = next(runs[name])
            samples[name] += watch.sample(len(prompts))
            contested[name] += int(step.contested.sum())
    made = len(prompts) * (subject.max_new_tokens - 1)
    return SideBySide(samples, {name: count / made for name, count in contested.items()})


def measure_overhead(subject: Subject, prompts: Sequence[Sequence[int]], batch: int, rounds: int) -> dict[str, Any]:
    """Ratios to greedy, each round with the next prompts."""
    methods = {name: method for name, method in METHODS.items() if not _same_without_coda(subject.model, name)}
    side_by_side(replace(subject, max_new_tokens=3), methods, prompts[:batch], 0)  # warm-up
    around = cycle(prompts)
    done = [side_by_side(subject, methods, list(islice(around, batch)), turn) for turn in range(rounds)]

    def column(name: str) -> list[Sample]:
        return [each.samples[name] for each in done]

    told: dict[str, Any] = {"contested": sum(each.contested["loopcd"] for each in done) / len(done)}
    for name in methods:
        if name != "greedy":
            told[f"{name}/greedy"] = asdict(ratio(column(name), column("greedy")))
            told[f"{name}/greedy, cpu"] = asdict(ratio(column(name), column("greedy"), cpu=True))
    return told


def _same_without_coda(model: LoopedModel, name: str) -> bool:
    return model.pointwise_readout and name == "loopcd own coda"


def bench_overhead(
    trained: Mapping[str, Sequence[int]], vocabularies: Sequence[int], rounds: int, tokens: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """By model, vocabulary and case: `trained` ones on real prompts in batches of these sizes; medium ones with a random head,
    where nearly every position is contested, and one sharpened to a realistic share."""
    found: dict[str, Any] = {}
    for name, batches in trained.items():
        model, tokenizer = load(name)
        subject = Subject(name, model, None, min(tokens, 18))  # by then few texts have ended: nothing ends them here
        prompts = Subject(name, model, tokenizer, tokens).prompts(max(64, *batches))
        for batch in batches:
            say(f"overhead: {name}, batch {batch}")
            told = measure_overhead(subject, prompts, batch, rounds)
            found.setdefault(name, {}).setdefault(str(model.config.vocab_size), {})[f"batch {batch}"] = told
    for name, make in MEDIUM.items():
        for vocabulary in vocabularies:
            subject = Subject(name, make(vocabulary), None, tokens)
            prompts = subject.prompts(rounds)
            for head in ("random head", "sharpened head"):
                say(f"overhead: {name}, vocabulary {vocabulary}, {head}")
                if head == "sharpened head":
                    sharpen(replace(subject, model=disagreeing(subject.model)), prompts)
                told = measure_overhead(subject, prompts, 1, rounds)
                found.setdefault(name, {}).setdefault(str(vocabulary), {})[head] = told
    return found
