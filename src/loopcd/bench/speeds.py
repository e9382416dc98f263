"""Every method against greedy, on the same prompts, alternately: plain, drafted, with early exit, at several batch sizes."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loopcd.bench.subjects import Subject, texts, token_count
from loopcd.bench.timing import NOTHING, Sample, Say, ratio, timed
from loopcd.decoding import MTI, EarlyExit, Greedy, LoopCD, Method, NoiseCD, SelfDraft, SelfEval
from loopcd.decoding.draft import DraftReport
from loopcd.decoding.loop import Rows
from loopcd.models import LoopedModel

BASE = "greedy"


def suite(model: LoopedModel) -> dict[str, Method]:
    """All that is compared. A token may leave early only after the amateur's loop."""
    amateur, _ = LoopCD().resolve(model)
    draft, leave = SelfDraft(), EarlyExit(min_loops=amateur + 1)
    return {
        BASE: Greedy(),
        "loopcd": LoopCD(),
        "noisecd": NoiseCD(),
        "mti": MTI(),
        "selfeval": SelfEval(),
        "greedy+draft": Greedy(draft=draft),
        "loopcd+draft": LoopCD(draft=draft),
        "exit+greedy": Greedy(exit=leave),
        "exit+loopcd": LoopCD(exit=leave),
    }


@dataclass
class Runner:
    """One method on all groups of prompts: its times, and what it made in the warm-up round."""

    method: Method
    samples: list[Sample] = field(default_factory=list)
    made: list[Rows] = field(default_factory=list)
    caches: list[int] = field(default_factory=list)  # bytes; those of SelfEval, which makes its own, are not seen

    def warm_up(self, subject: Subject, group: Sequence[Sequence[int]]) -> None:
        job = subject.job(group)
        self.made.append(self.method.rows(job))
        self.caches.append(0 if job.cache is None else job.cache.nbytes)

    def timed(self, subject: Subject, group: Sequence[Sequence[int]]) -> Sample:
        # nobody goes on from the cache, so that rows whose texts have ended may leave, as they do in `generate`
        job = replace(subject.job(group), cache=None)
        return timed(lambda: token_count(self.method.rows(job)))


def measure_methods(
    subject: Subject, batch: int, prompts: int, rounds: int, say: Say, seconds: float | None = None
) -> tuple[dict[str, Runner], dict[str, str]]:
    """Runners with their samples, and the methods that this model cannot run, with the reason.

    No round begins after `seconds`, but one is always run.
    """
    start = time.perf_counter()
    ids = subject.prompts(max(batch, prompts))
    groups = [ids[start : start + batch] for start in range(0, len(ids) - batch + 1, batch)]
    runners, refused = {}, {}
    for name, method in suite(subject.model).items():
        say(f"methods: {subject.name}, batch {batch}, {name}")
        try:
            runner = Runner(method)
            for group in groups:
                runner.warm_up(subject, group)
            runners[name] = runner
        except ValueError as error:
            refused[name] = str(error)
    for number in range(rounds):
        if number and seconds is not None and time.perf_counter() - start > seconds:
            break
        say(f"methods: {subject.name}, batch {batch}, round {number + 1} of {rounds}")
        sums = dict.fromkeys(runners, NOTHING)
        for index, group in enumerate(groups):  # group by group, so that what is compared ran within seconds
            for name in list(runners)[:: -1 if (number + index) % 2 else 1]:
                sums[name] += runners[name].timed(subject, group)
        for name, total in sums.items():
            runners[name].samples.append(total)
    return runners, refused


def ratios(runners: dict[str, Runner], cpu: bool = False) -> dict[str, Any]:
    """Each method's tokens per second over greedy's, and the drafted methods' over their own undrafted form."""
    told = {
        f"{name}/{BASE}": asdict(ratio(runner.samples, runners[BASE].samples, cpu))
        for name, runner in runners.items()
        if name != BASE
    }
    if "loopcd+draft" in runners:
        told["loopcd+draft/loopcd"] = asdict(ratio(runners["loopcd+draft"].samples, runners["loopcd"].samples, cpu))
    return told


def details(runners: dict[str, Runner]) -> dict[str, Any]:
    """What each method did, from the warm-up round."""
    told: dict[str, Any] = {}
    for name, runner in runners.items():
        tokens = sum(map(token_count, runner.made))
        rates = sorted(sample.rate for sample in runner.samples)
        told[name] = {
            "tokens": tokens,
            "tokens_per_second": rates[len(rates) // 2] if rates else None,
            "contested": sum(int(rows.contested.sum()) for rows in runner.made) / tokens,
            "touched": sum(int(rows.touched.sum()) for rows in runner.made) / tokens,
            "loops_per_token": sum(int(rows.loops.sum()) for rows in runner.made) / tokens,
            "cache_bytes": max(runner.caches),
        }
        reports = [rows.drafts for rows in runner.made if rows.drafts is not None]
        if reports:
            told[name] |= drafting(reports) | against_plain(runner, runners[name.removesuffix("+draft")])
    return told


def drafting(reports: Sequence[DraftReport]) -> dict[str, Any]:
    """Acceptance over all jobs: shares are of sums, not means of shares."""
    proposed = sum(each.proposed for each in reports)
    row_rounds = sum(each.row_rounds for each in reports)
    return {
        "draft_loops": reports[-1].loops,  # the first jobs of a draft by rule may have only learned
        "draft_length": reports[-1].length,
        "acceptance": sum(each.accepted for each in reports) / max(1, proposed),
        "accepted_length": sum(each.emitted for each in reports) / row_rounds if row_rounds else 0.0,
        "plain_passes": sum(each.plain for each in reports),
        "rounds": sum(each.rounds for each in reports),
        "near_ties": sum(each.near_ties for each in reports),
    }


def against_plain(drafted: Runner, plain: Runner) -> dict[str, Any]:
    """Whether drafting changed a token, and how much larger its cache got."""
    pairs = [(a, b) for x, y in zip(drafted.made, plain.made, strict=True) for a, b in zip(texts(x), texts(y), strict=True)]
    caches = max(drafted.caches) / max(1, *plain.caches)
    return {"texts": len(pairs), "identical_texts": sum(a == b for a, b in pairs), "cache_over_plain": caches}


def bench_methods(
    subjects: Sequence[Subject], batches: Sequence[int], prompts: int, rounds: int, say: Say, seconds: float | None = None
) -> dict[str, Any]:
    """`ratios` and `models` of the benchmark's JSON, `ratios_cpu` by CPU time, and `details` beside them."""
    found: dict[str, Any] = {"ratios": {}, "models": {}, "ratios_cpu": {}, "details": {}, "refused": {}, "rounds": {}}
    for subject in subjects:
        for batch in batches:
            runners, refused = measure_methods(subject, batch, prompts, rounds, say, seconds)
            told = details(runners)
            found["ratios"].setdefault(subject.name, {})[str(batch)] = ratios(runners)
            found["ratios_cpu"].setdefault(subject.name, {})[str(batch)] = ratios(runners, cpu=True)
            found["rounds"].setdefault(subject.name, {})[str(batch)] = len(runners[BASE].samples)
            found["details"].setdefault(subject.name, {})[str(batch)] = told
            if refused:
                found["refused"][subject.name] = refused
            if subject.name not in found["models"]:
                found["models"][subject.name] = summary(told)
    return found


def summary(told: dict[str, Any]) -> dict[str, Any]:
    """LoopCD's figures at the first batch size."""
    drafted = told.get("loopcd+draft", {})
    return {
        "acceptance": drafted.get("acceptance"),
        "accepted_length": drafted.get("accepted_length"),
        "contested": told["loopcd"]["contested"],
    }
