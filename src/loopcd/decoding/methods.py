"""The decoding methods, each a frozen set of settings that can be handed to `generate`.

`model.generate(**inputs, custom_generate=LoopCD())` is transformers' own generate with the method's rule in place of the
plain logits: processors, stopping criteria, sampling and streamers work as ever. `loopcd.generate` is the short way.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from loopcd.decoding import checks
from loopcd.decoding.alone import wave_steps, waves
from loopcd.decoding.auto import AutoScorer, candidate_loops
from loopcd.decoding.draft import SelfDraft
from loopcd.decoding.exits import EarlyExit
from loopcd.decoding.loop import Job, Rows, Step, collect, run_custom_generate, steps
from loopcd.decoding.reader import Reader
from loopcd.decoding.rounds import drafted_steps
from loopcd.decoding.rules import mean_amateur
from loopcd.decoding.scoring import GuidedScorer, LoopGuidanceScorer, LoopScorer, NoiseScorer, PlainScorer, Scorer
from loopcd.decoding.selective import SelectiveScorer, parse_kinds
from loopcd.models.presets import preset
from loopcd.models.stages import Coda, LoopedModel, checked_loops


@dataclass(frozen=True)
class Method:
    """What all methods share.

    `exit` lets a token leave the loop early; the loop that it leaves at is then the expert. `draft` (Greedy, LoopCD and
    LoopGuidance) makes the same tokens faster; not together with `exit`, since a token that left early has no later loops to
    verify a draft by.
    """

    exit: EarlyExit | None = field(default=None, kw_only=True)
    draft: SelfDraft | None = field(default=None, kw_only=True)

    can_draft: ClassVar[bool] = False
    chooses_tokens: ClassVar[bool] = True  # False where whole texts are chosen

    @property
    def by_ticks(self) -> bool:
        """Whether texts go on each at its own loop; a draft's rounds are of a fixed batch."""
        return self.chooses_tokens and (self.draft is None or self.draft.wave is True)

    def __post_init__(self) -> None:
        if self.draft is not None:
            self._check_draft(self.draft)
        if self.exit is not None and not isinstance(self.exit, EarlyExit):
            raise ValueError(f"exit={self.exit!r}: an EarlyExit, or None")

    def _check_draft(self, draft: Any) -> None:
        if not isinstance(draft, SelfDraft):
            raise ValueError(f"draft={draft!r}: a SelfDraft, or None")
        if not self.can_draft:
            raise ValueError(f"draft={draft!r}: {type(self).__name__} cannot be drafted; Greedy, LoopCD and LoopGuidance can")
        if self.exit is not None:
            raise ValueError(f"draft={draft!r} cannot be combined with exit={self.exit!r}")

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        """The method at work on one generation; settings that do not fit the model are refused here."""
        raise TypeError(f"{type(self).__name__} does not choose token by token")

    def check(self, model: LoopedModel, num_loops: int | None, tokenizer: Any) -> None:
        """Refuse, before anything is computed, settings that do not fit the model."""
        self.scorer(Reader(model, num_loops, self.leaving(model, num_loops)), tokenizer)

    def settled(self, model: LoopedModel, num_loops: int | None = None) -> "Method":
        """The same with what is left to the model filled in."""
        return replace(self, exit=self.leaving(model, num_loops))

    def leaving(self, model: LoopedModel, num_loops: int | None = None) -> EarlyExit | None:
        """The exit rule for this model: no token leaves before the loops that the method needs."""
        if self.exit is None or self.exit.min_loops is not None:
            return self.exit
        return replace(self.exit, min_loops=self.needed_loops(model, num_loops))

    def needed_loops(self, model: LoopedModel, num_loops: int | None) -> int:
        """Loops that every token has to run for the method."""
        return 0

    def check_early(self, name: str, loop: int, loops: int) -> None:
        """Refuse an early loop that the last one, or the exit rule, could come before."""
        if loops < 2:
            raise ValueError(
                f"num_loops={loops}: {type(self).__name__} needs 2 or more, to have an early one; Greedy takes any"
            )
        if not 1 <= loop <= loops - 1:
            raise ValueError(f"{name}={loop}: from 1 to {loops - 1}, one less than the {loops} loops that are run")
        if self.exit is not None and self.exit.min_loops is not None and self.exit.min_loops <= loop:
            raise ValueError(
                f"exit with min_loops={self.exit.min_loops} could leave at or before {name}={loop}: "
                f"leave min_loops out, or let it be {loop + 1} or more"
            )

    def reserve(self, tokenizer: Any) -> int:
        """Tokens of the context that the method needs beside the text itself."""
        return 0

    def rows(self, job: Job, on_step: Callable[[Step], None] | None = None) -> Rows:
        """Run a whole job."""
        return collect(self.steps(job), job.pad_token_id or 0, on_step)

    def steps(self, job: Job) -> Iterator[Step]:
        """Run a job token by token."""
        if self.draft is None:
            return steps(self, job)
        return wave_steps(self, job) if waves(self.draft, job) else drafted_steps(self, self.draft, job)

    def __call__(self, model: LoopedModel, input_ids: Any, streamer: Any = None, tokenizer: Any = None, **kwargs: Any) -> Any:
        """What transformers calls as `custom_generate`."""
        return run_custom_generate(self, model, input_ids, streamer=streamer, tokenizer=tokenizer, **kwargs)


@dataclass(frozen=True)
class Greedy(Method):
    """The expert's own distribution, as transformers' `generate` has it without `custom_generate`; also with early exit."""

    can_draft = True

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        return PlainScorer()


@dataclass(frozen=True)
class LoopCD(Method):
    """Contrast the last loop (the expert) with an early loop (the amateur), over the expert's plausible tokens.

    `amateur_loop` (ℓ_a, counted from 1) and `strength` (λ): the model's preset where None. `plausibility` is α.
    `amateur_loop="auto"` names none: the amateur's logits are the mean of those of the first half of the loops.
    Where the head reads through a coda (Huginn), `coda="shared"` lets the amateur see the prompt by its own coda entries and
    what was written since by the expert's, as the paper's authors ran it; `"own"` is the model stopped at that loop all along.
    `where` restricts it to "hard", "easy", "numeric" or "operator" positions or an intersection ("hard numeric").
    `lazy=False` asks the amateur at every position, also where its answer cannot matter.
    """

    amateur_loop: int | Literal["auto"] | None = None
    strength: float | None = None
    plausibility: float = 0.1
    coda: Coda = "shared"
    where: str = field(default="all", kw_only=True)
    lazy: bool = field(default=True, kw_only=True)

    can_draft = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.amateur_loop, str) and self.amateur_loop != "auto":
            raise ValueError(f'amateur_loop={self.amateur_loop!r}: a whole number of at least 1, or "auto"')
        if self.amateur_loop is not None and self.amateur_loop != "auto":
            checks.whole("amateur_loop", self.amateur_loop, 1)
        kinds = parse_kinds(self.where)
        if self.amateur_loop == "auto" and kinds:
            raise ValueError(f'where={self.where!r} takes one amateur for all positions, not amateur_loop="auto"')
        if self.strength is not None:
            checks.number("strength", self.strength, 0)
        checks.share("plausibility", self.plausibility)
        checks.one_of("coda", self.coda, ("own", "shared"))
        if kinds and self.draft is not None:
            raise ValueError(f"draft={self.draft!r} cannot be combined with where={self.where!r}")
        if kinds & {"hard", "easy"} and self.exit is not None:
            raise ValueError(f"where={self.where!r} looks at all loops, so it cannot be combined with exit={self.exit!r}")

    def resolve(self, model: LoopedModel, num_loops: int | None = None) -> tuple[int, float]:
        """The amateur's loop and the strength for this model, checked against its depth and the exit rule."""
        if self.amateur_loop == "auto":
            raise ValueError('amateur_loop="auto" contrasts with several loops, and one is needed here')
        amateurs, strength = self._resolved(model, num_loops)
        return amateurs[-1], strength

    def _resolved(self, model: LoopedModel, num_loops: int | None) -> tuple[Sequence[int], float]:
        """As `resolve`, with all loops that the amateur is made of."""
        loops = checked_loops(num_loops, model.num_loops)
        default = preset(model, loops)
        named = default.amateur_loop if self.amateur_loop is None else self.amateur_loop
        amateurs = candidate_loops(loops) if named == "auto" else [named]
        self.check_early("amateur_loop", amateurs[-1], loops)
        return amateurs, default.strength if self.strength is None else self.strength

    def settled(self, model: LoopedModel, num_loops: int | None = None) -> "LoopCD":
        """The same with the model's presets filled in."""
        amateurs, strength = self._resolved(model, num_loops)
        named = "auto" if self.amateur_loop == "auto" else amateurs[-1]
        return replace(self, amateur_loop=named, strength=strength, exit=self.leaving(model, num_loops))

    def needed_loops(self, model: LoopedModel, num_loops: int | None) -> int:
        return self._resolved(model, num_loops)[0][-1] + 1

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        amateurs, strength = self._resolved(reader.model, reader.num_loops)
        settings: dict[str, Any] = {"strength": strength, "plausibility": self.plausibility, "lazy": self.lazy}
        if self.amateur_loop == "auto":
            return AutoScorer(reader.model, amateurs, mean_amateur, self.coda, **settings)
        amateur, kinds = amateurs[-1], parse_kinds(self.where)
        if not kinds:
            return LoopScorer(reader.model, amateur, self.coda, **settings)
        if kinds & {"numeric", "operator"}:
            checks.need_tokenizer(tokenizer, f"where={self.where!r} reads the tokens' text")
        return SelectiveScorer(reader.model, amateur, self.coda, kinds, tokenizer, reader.num_loops, **settings)


@dataclass(frozen=True)
class LoopGuidance(Method):
    """Away from an early loop, for every token: z_R + ω (z_R − z_b), no plausible set (arXiv 2610.02185, there "LoopCD").

    `early_loop` is b, counted from 1. `weight` is ω; with `adaptive` it is ω's cap, ω being cap · (1 − (p₁ − p₂)) by the last
    loop's two highest probabilities. `coda` is as in `LoopCD`.
    """

    early_loop: int = 1
    weight: float = 1.0
    adaptive: bool = True
    coda: Coda = "shared"

    can_draft = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("early_loop", self.early_loop, 1)
        checks.number("weight", self.weight, 0)
        checks.yes_or_no("adaptive", self.adaptive)
        checks.one_of("coda", self.coda, ("own", "shared"))

    def needed_loops(self, model: LoopedModel, num_loops: int | None) -> int:
        return self.early_loop + 1

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        self.check_early("early_loop", self.early_loop, reader.num_loops)
        return LoopGuidanceScorer(reader.model, self.early_loop, self.coda, self.weight, self.adaptive)


@dataclass(frozen=True)
class NoiseCD(Method):
    """Contrast with the head on the expert's own readout plus noise: `noise` is σ, `strength` λ, `plausibility` α."""

    noise: float = 0.5
    strength: float = 0.3
    plausibility: float = 0.1
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("noise", self.noise, 0)
        checks.number("strength", self.strength, 0)
        checks.share("plausibility", self.plausibility)
        checks.whole("seed", self.seed)

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        return NoiseScorer(reader.model, self.noise, self.seed, strength=self.strength, plausibility=self.plausibility)


@dataclass(frozen=True)
class MTI(Method):
    """Where the entropy exceeds `entropy_threshold` (τ), guidance (`guidance` is ω) away from the negative prompt."""

    entropy_threshold: float = 1.0
    guidance: float = 1.5
    negative_prompt: str = "OUTPUT ERROR"
    plausibility: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("entropy_threshold", self.entropy_threshold, 0)
        checks.number("guidance", self.guidance)
        if not self.negative_prompt:
            raise ValueError("negative_prompt='': a text of at least one token")
        checks.share("plausibility", self.plausibility)

    def negative_ids(self, tokenizer: Any) -> list[int]:
        checks.need_tokenizer(tokenizer, "MTI reads its negative prompt")
        return tokenizer(self.negative_prompt, add_special_tokens=False).input_ids

    def reserve(self, tokenizer: Any) -> int:
        return len(self.negative_ids(tokenizer))

    def scorer(self, reader: Reader, tokenizer: Any) -> Scorer:
        negative = self.negative_ids(tokenizer)
        return GuidedScorer(reader, negative, self.entropy_threshold, self.guidance, self.plausibility)
