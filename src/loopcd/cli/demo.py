"""`loopcd demo`: in less than a minute, what LoopCD does, where it does not, and what drafting saves, all measured here."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which
from time import process_time
from typing import Any

import click

from loopcd.cli.group import main, print_tables
from loopcd.cli.options import shared

LOOKED_AT = 48  # problems in which the lens page looks for texts that differ
TIMED = 112  # tokens of each text that is drafted and timed
NEXT = (
    ("loopcd lens --model tiny-early --task steps-cue-shift", "such a page, served, with prompts of your own"),
    ("loopcd models", "what else can be loaded, and the memory that it takes"),
    ("loopcd verify ByteDance/Ouro-1.4B", "fetch a public model, and see whether it works as it should here"),
)


@dataclass(frozen=True)
class Case:
    """A model and a task, and why LoopCD does there what it does."""

    model: str
    task: str
    title: str
    reason: str

    def session(self, limit: int) -> Any:
        from loopcd.evaluation.session import Session

        return Session(self.model, self.task, limit=limit)


LEARNING = Case(
    "tiny-early",
    "steps-cue-shift",
    "a model still learning, on problems in which a word misleads",
    "The early loop follows the word, the last loop half doubts it; the contrast takes away what the early loop believes.",
)
FINISHED = Case(
    "tiny-huginn",
    "steps",
    "a model trained to the end, on the problems that it was trained for",
    "Its last loop has learned to override the early ones, so a contrast with them has little left to mend, and may just "
    "as well disturb an answer that was right.",
)


@main.command()
@click.option("--problems", type=click.IntRange(10), default=120, show_default=True, help="Of each of the two evaluations.")
@click.option("--texts", type=click.IntRange(1), default=6, show_default=True, help="Texts that drafting is timed on.")
@click.option("--out", type=click.Path(path_type=Path), default="results/demo", show_default=True, help="Folder for all of it.")
@shared("json")
def demo(problems: int, texts: int, out: Path, as_json: bool) -> None:
    """LoopCD where it helps and where it does not, drafts, two texts side by side, and a page to look at."""
    from loopcd.decoding import Greedy, LoopCD
    from loopcd.evaluation.partings import side_by_side
    from loopcd.lens import export
    from loopcd.lens.examples import searched

    say: Callable[[str], None] = (lambda line: None) if as_json else click.echo
    engine, made, gain = _evaluated(1, LEARNING, problems, out, say)
    if not as_json:
        # one that became right, if there is such a one
        shown = sorted(made.examples, key=lambda each: each.greedy.right or not each.other.right)[:1]
        print_tables(side_by_side(shown, colours=sys.stdout.isatty()))
    page = out / "lens.html"
    export(page, *searched(engine, LEARNING.session(LOOKED_AT).make_task(), (Greedy(), LoopCD())))
    say("")
    engine, _, none = _evaluated(2, FINISHED, problems, out, say)
    say(f"3. The same tokens, sooner: {FINISHED.model}, {texts} texts, one at a time and by turns, in processor time")
    drafts = drafted(engine.model, engine.tokenizer, [item.prompt for item in FINISHED.session(texts).make_task().items])
    for each in drafts:
        say(each.sentence())
    if as_json:
        told = {"learning": asdict(gain), "finished": asdict(none), "drafts": [asdict(each) for each in drafts]}
        click.echo(json.dumps({**told, "page": str(page)}))
        return
    say(f"\nWhat every loop said about every token: open {page} in a browser. Next:")
    program = _program()
    for command, what in NEXT:
        say(f"    {program + command:<{56 + len(program)}}{what}")


def _program() -> str:
    """How the command line is called here, up to its name: nothing where a shell finds it."""
    called = Path(sys.argv[0])
    return f"{called.parent}/" if called.name == "loopcd" and which("loopcd") is None else ""


# Right answers


@dataclass(frozen=True)
class Effect:
    """Shares of right answers by both methods, and their paired difference with its 95 % interval."""

    items: int
    greedy: float
    loopcd: float
    difference: float
    low: float
    high: float

    @classmethod
    def of(cls, results: Any) -> "Effect":
        metric = results.metrics[0]
        greedy, loopcd = results.methods
        versus = loopcd.versus_greedy[metric]
        shares = (greedy.shares[metric].accuracy, loopcd.shares[metric].accuracy)
        return cls(results.items, *shares, versus.difference, versus.low, versus.high)

    def sentence(self) -> str:
        told = "LoopCD helps." if self.low > 0 else "LoopCD loses a little." if self.high < 0 else "No gain."
        interval = f"[{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        return (
            f"{told} Right by greedy {100 * self.greedy:.1f} %, by LoopCD {100 * self.loopcd:.1f} %: "
            f"{100 * self.difference:+.1f} points, 95 % interval {interval}."
        )


def _evaluated(number: int, case: Case, problems: int, out: Path, say: Callable[[str], None]) -> tuple[Any, Any, Effect]:
    """The engine, and greedy and LoopCD by the model's preset on the task; what an earlier run left is not made again."""
    from loopcd.evaluation.evaluate import default_folder, evaluate, make_manifest
    from loopcd.evaluation.progress import showing_progress

    say(f"{number}. {case.model}: {case.title} ({case.task}, {problems} of them)")
    session = case.session(problems)
    engine, task, plan = session.make_engine(), session.make_task(), session.plan()
    folder = out / default_folder(make_manifest(task, engine, plan)).name
    with showing_progress(f"{case.task}, {case.model}") as report:
        made = evaluate(task, engine, plan, folder, report, inside=out)
    effect = Effect.of(made.results)
    say(f"{effect.sentence()}\n{case.reason}\n")
    return engine, made, effect


# Drafts


@dataclass(frozen=True)
class Drafted:
    """A method with drafts: whether its tokens are those that it has without, and its pace beside plain greedy decoding."""

    method: str
    texts: int
    same: int
    times_greedy: float

    def sentence(self) -> str:
        tokens = "the same tokens" if self.same == self.texts else f"the same tokens in {self.same} of {self.texts} texts"
        return f"    {self.method}: {tokens}, × {self.times_greedy:.1f} greedy's speed"


def drafted(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[Drafted]:
    """Greedy and LoopCD with drafts, each text beside plain greedy's: processor seconds of what is run by turns."""
    from loopcd.decoding import Greedy, LoopCD, SelfDraft, generate
    from loopcd.evaluation.engine import using_threads

    draft = SelfDraft()
    pairs = {"greedy, drafted": (Greedy(), Greedy(draft=draft)), "LoopCD, drafted": (LoopCD(), LoopCD(draft=draft))}
    seconds = {method: 0.0 for pair in pairs.values() for method in pair}
    same = dict.fromkeys(pairs, 0)
    with using_threads(1):  # threads that wait for each other count as work
        for method in seconds:  # what is chosen once for a model is not timed
            generate(model, tokenizer, prompts[0], method, max_new_tokens=24)
        for prompt in prompts:
            made = {}
            for method in seconds:
                began = process_time()
                made[method] = generate(model, tokenizer, prompt, method, max_new_tokens=TIMED).token_ids
                seconds[method] += process_time() - began
            for name, (plain, drafting) in pairs.items():
                same[name] += made[plain] == made[drafting]
    return [
        Drafted(name, len(prompts), same[name], seconds[Greedy()] / seconds[drafting]) for name, (_, drafting) in pairs.items()
    ]
