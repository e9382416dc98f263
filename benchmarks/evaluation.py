"""An evaluation's throughput: texts that give their places to the next ones as they end, and tokens that leave the loop each
at its own time, against batches in step, which go on until their longest text has ended.

`python -m benchmarks.evaluation --problems 2000` is what a whole benchmark takes; a run of all parts has fewer problems.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

import click
import torch
from torch import Tensor
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from loopcd.bench.subjects import MEDIUM, Subject
from loopcd.bench.timing import Sample, Stopwatch, alternately, ratio
from loopcd.decoding import EarlyExit, Greedy, LoopCD, Method
from loopcd.decoding.flight import Row
from loopcd.decoding.generate import AHEAD
from loopcd.decoding.loop import Job, Sampling
from loopcd.decoding.texts import pad_left
from loopcd.decoding.ticks import Ticks
from loopcd.models import LoopedModel
from loopcd.models.loading import load

# lengths of GSM8K's gold answers over their mean: the shortest, every tenth, the longest
ANSWERS = (0.23, 0.52, 0.63, 0.73, 0.83, 0.93, 1.04, 1.16, 1.33, 1.57, 3.44)
MEAN = 40  # tokens: the longest answer and a prompt fit the built-in models' context
SURE = 0.5  # probability of having left, at which a token leaves by a drawn gate


class Ends(StoppingCriteria):
    """Each row of a batch ends at a length of its own."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = torch.tensor(lengths)

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:  # pyright: ignore
        return (input_ids.shape[1] >= self.lengths).to(input_ids.device)


@dataclass(frozen=True)
class Texts:
    """Prompts, and how long each one's text may get; `end` is the token that ends one before."""

    model: LoopedModel
    prompts: Sequence[Sequence[int]]
    lengths: Sequence[int]
    end: int | None = None

    def job(self, some: Sequence[int]) -> Job:
        pad, lengths = self.model.config.pad_token_id or 0, [self.lengths[at] for at in some]
        ids, mask = pad_left([self.prompts[at] for at in some], pad, self.model.device)
        width = ids.shape[1]
        limit = min(width + max(lengths), self.model.max_context)
        stopping = StoppingCriteriaList([MaxLengthCriteria(limit)])
        if self.end is not None:
            stopping.append(EosTokenCriteria(self.end))
        if len(set(lengths)) > 1:
            stopping.append(Ends([width + each for each in lengths]))
        padding = None if bool(mask.all()) else mask
        return Job(self.model, ids, padding, stopping, Sampling(), None, pad_token_id=pad, limit=limit)

    def in_step(self, method: Method, batch: int) -> dict[int, tuple[list[int], list[int]]]:
        """The tokens of each text and their loops; prompts of like length share a batch."""
        order, made = sorted(range(len(self.prompts)), key=lambda at: len(self.prompts[at])), {}
        for some in (order[start : start + batch] for start in range(0, len(order), batch)):
            rows = method.rows(self.job(some))
            for at, *told, going in zip(some, rows.tokens, rows.loops, rows.going, strict=True):
                made[at] = tuple(each[going].tolist() for each in told)
        return made

    def by_ticks(self, method: Method, batch: int) -> dict[int, tuple[list[int], list[int]]]:
        """The same, each text at its own loop; as many are taken on at a time as `generate` takes."""
        order, made = sorted(range(len(self.prompts)), key=lambda at: -len(self.prompts[at])), {}
        for some in (order[start : start + AHEAD * batch] for start in range(0, len(order), AHEAD * batch)):
            ticks, rows = Ticks(self.model, min(batch, len(some))), {Row(method, self.job([at])): at for at in some}
            for row in rows:
                ticks.add(row)
            made |= {rows[row]: (row.tokens, row.loops) for row in ticks.run()}
        return made


def measure(texts: Texts, methods: Mapping[str, Method], batch: int, rounds: int) -> dict[str, Any]:
    """Each method by ticks, or in step where its name says so, over greedy in step, by CPU time."""
    made: dict[str, dict[int, tuple[list[int], list[int]]]] = {}

    def task(name: str, some: Texts) -> Sample:
        run, watch = some.in_step if name.endswith("in step") else some.by_ticks, Stopwatch()
        with watch.running():
            made[name] = run(methods.get(name, Greedy()), batch)
        return watch.sample(sum(len(tokens) for tokens, _ in made[name].values()))

    names, few = ("in step", *methods), replace(texts, prompts=texts.prompts[:batch], lengths=texts.lengths[:batch])
    for name in names:  # one batch is warm-up enough
        task(name, few)
    samples = alternately({name: lambda name=name: task(name, texts) for name in names}, rounds, warm_up=0)
    told: dict[str, Any] = {}
    for name in methods:
        loops = [each for _, by_token in made[name].values() for each in by_token]
        same = sum(made[name][at][0] == tokens for at, (tokens, _) in made["in step"].items())
        told[name] = {"over in step": asdict(ratio(samples[name], samples["in step"], cpu=True))}
        told[name] |= {"texts": len(made[name]), "as_in_step": same, "loops_per_token": sum(loops) / len(loops)}
    return told


def drawn_lengths(count: int, mean: float = MEAN) -> list[int]:
    """As GSM8K's gold answers have them, with this mean."""
    generator, table = torch.Generator().manual_seed(0), torch.tensor([*ANSWERS, ANSWERS[-1]])
    place = torch.rand(count, generator=generator) * (len(ANSWERS) - 1)
    low = place.long()
    lengths = table[low] + (place - low) * (table[low + 1] - table[low])
    return (mean * lengths).round().clamp(min=1).long().tolist()


def draw_exits(model: LoopedModel) -> EarlyExit:
    """Give a Huginn an exit gate by which tokens leave at loops that are drawn by what they are, evenly around the middle."""
    width, loops = model.config.n_embd, model.num_loops
    direction = torch.randn(width, generator=torch.Generator().manual_seed(0))

    def gate_logits(state: Any) -> Tensor:
        """[rows, time]; the same at every loop, so that a token is sure to leave after `leaves` loops."""
        side = torch.cosine_similarity(state.tokens.injected, direction, dim=-1) * sqrt(width)  # about normal
        leaves = 0.5 + (loops - 2) * torch.special.ndtr(side)
        return torch.logit(1 - (1 - SURE) ** (1 / leaves))

    model.gate_logits = gate_logits  # pyright: ignore[reportArgumentType]
    return EarlyExit(SURE, criterion="gate")


def bench_evaluation(
    name: str, problems: int, batches: Sequence[int], rounds: int, say: Callable[[str], None], small: bool = False
) -> dict[str, Any]:
    """By what is compared: the texts' own ends, drawn lengths, and early exits at these batch sizes; the last is the
    evaluation's."""
    model, tokenizer = load(name)
    prompts, batch = Subject(name, model, tokenizer, 0).prompts(problems), batches[-1]
    longest = min(8 if small else 256, model.max_context - max(map(len, prompts)))
    end, greedy = getattr(tokenizer, "eos_token_id", None), {"greedy": Greedy()}
    own = Texts(model, prompts, [longest] * problems, end)
    say(f"evaluation: {name}, {problems} problems, batch {batch}")
    found = {f"{name}, batch {batch}, own ends": measure(own, greedy, batch, rounds)}
    lengths = [min(each, longest) for each in drawn_lengths(problems, 4 if small else MEAN)]
    say(f"evaluation: {name}, {problems} problems, batch {batch}, lengths as of GSM8K")
    drawn = Texts(model, prompts, lengths)
    found[f"{name}, batch {batch}, lengths as of GSM8K"] = measure(drawn, greedy, batch, rounds)
    rule = EarlyExit(min_loops=LoopCD().resolve(model)[0] + 1)
    exits = {"exit+greedy": Greedy(exit=rule), "exit+loopcd": LoopCD(exit=rule)}
    exits |= {f"{each}, in step": method for each, method in exits.items()}
    for size in batches:
        say(f"evaluation: {name}, batch {size}, early exit")
        some = Texts(model, prompts[: 4 * size], own.lengths[: 4 * size], end)
        found[f"{name}, batch {size}, own ends, early exit"] = measure(some, exits, size, rounds)
    medium, count, tokens = MEDIUM["huginn-medium"](), 4 if small else 48, 4 if small else 24
    say("evaluation: huginn-medium, exits drawn")
    drawn = Texts(medium, Subject("huginn-medium", medium, None, 0).prompts(count), [tokens] * count)
    size = max(1, count // 3)
    found[f"huginn-medium, batch {size}, exits drawn"] = measure(
        drawn, {"exit+greedy": Greedy(exit=draw_exits(medium))}, size, rounds
    )
    return found


@click.command()
@click.option("--model", default="tiny-huginn", show_default=True)
@click.option("--problems", default=2000, show_default=True)
@click.option("--batch", default="8,64", show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(model: str, problems: int, batch: str, rounds: int) -> None:
    torch.set_num_threads(1)
    sizes = [int(each) for each in batch.split(",")]
    found = bench_evaluation(model, problems, sizes, rounds, lambda text: click.echo(text, err=True))
    click.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
