"""`loopcd verify`: whether a model works as it should on this machine, by comparing ways that must agree.

Each check gives the largest difference that it saw and the share of choices that were near ties: where two tokens are nearer
than the working dtype can tell, either is right.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf, log
from typing import Any

import torch
from torch import Tensor

from loopcd.bench.subjects import random_ids
from loopcd.bench.timing import timed
from loopcd.bench.traffic import step_traffic
from loopcd.decoding import Greedy, LoopCD, Method, SelfDraft, generate
from loopcd.decoding.chat import turn_ends
from loopcd.decoding.texts import pad_left
from loopcd.models import LoopedModel, cache_bytes, load, loop_logits
from loopcd.models.memory import free_beside, gigabytes

TEXTS = (
    "Tom has 3 apples and buys 4 more. How many apples does he have?",
    "The capital of France is Paris, and the capital of Italy is",
    "2 + 2 = 4. 3 + 5 = 8. 7 + 6 =",
)
# what logits may differ by, at a size of 20, when the same numbers are added up in another order
ALLOWED = {torch.float64: 1e-8, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
CONTEXT = 2048


@dataclass(frozen=True)
class Check:
    """What was looked at, whether it is right, and what was found."""

    name: str
    right: bool
    found: str
    difference: float | None = None  # the largest
    near_ties: float | None = None  # share of the choices that rounding may decide


@dataclass(frozen=True)
class Verification:
    model: str
    device: str
    dtype: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def right(self) -> bool:
        return all(check.right for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "right": self.right}


def verify(
    name: str, *, dtype: str | None = None, device: str | None = None, tokens: int = 24, say: Callable[[str], None] = print
) -> Verification:
    """Run all checks that can be run; a model that cannot be loaded has one finding."""
    start = time.perf_counter()
    say("loading")
    try:
        model, tokenizer = load(name, dtype=dtype, device=device)
    except (ValueError, MemoryError, OSError) as error:
        place, found = (device or "?", dtype or "?"), [Check("files", False, str(error))]
    else:
        place, size = (str(model.device), str(model.dtype).removeprefix("torch.")), sum(map(torch.numel, model.parameters()))
        found = [Check("files", True, f"complete, {size:,} parameters, all finite")]
        for check in _Checks(model, tokenizer, tokens).all():
            say(check.name)
            found.append(check)
    return Verification(name, *place, tuple(found), time.perf_counter() - start)


class _Checks:
    def __init__(self, model: LoopedModel, tokenizer: Any, tokens: int) -> None:
        self.model, self.tokenizer, self.tokens = model, tokenizer, tokens
        self.prompts: list[list[int]] = [
            random_ids(model, 1, 12 + number, number)[0].tolist() if tokenizer is None else tokenizer(text).input_ids
            for number, text in enumerate(TEXTS)
        ]

    def all(self) -> Iterator[Check]:
        agreeing = (self.loops, self.cached, self.batched, self.chunked, self.drafted, self.contrasted)
        for check in (self.special_tokens, self.memory, *agreeing, self.speed):
            try:
                yield check()
            except Exception as error:  # a check that breaks down is a finding, not the end of the report
                yield Check(check.__name__.replace("_", " "), False, f"{type(error).__name__}: {error}")

    def special_tokens(self) -> Check:
        if self.tokenizer is None:
            return Check("special tokens", True, "no tokenizer: token ids only")
        vocab, config = self.model.config.vocab_size, self.model.generation_config
        ends = config.eos_token_id if config is not None else None
        ids = {"end": ends, "pad": self.tokenizer.pad_token_id, "begin": self.tokenizer.bos_token_id}
        listed = [(kind, each) for kind, value in ids.items() for each in (value if isinstance(value, list) else [value])]
        beyond = [f"{kind} token {each}" for kind, each in listed if each is not None and not 0 <= each < vocab]
        longest = max(self.tokenizer.get_vocab().values())
        if longest >= vocab:
            beyond.append(f"the tokenizer's token {longest}")
        if not any(kind == "end" and each is not None for kind, each in listed):
            beyond.append("no end token, so that texts never end")
        template = "a chat template" if getattr(self.tokenizer, "chat_template", None) else "no chat template"
        told = ", ".join(f"{kind} {value}" for kind, value in ids.items())
        told += f", turns end by {sorted(turn_ends(self.tokenizer)) or 'nothing known'}, {template}"
        return Check("special tokens", not beyond, f"vocabulary of {vocab}, but: {'; '.join(beyond)}" if beyond else told)

    def memory(self) -> Check:
        context = min(CONTEXT, self.model.max_context)
        needed, free = cache_bytes(self.model, context), free_beside(self.model)
        told = f"a text of {context} tokens takes {gigabytes(needed)}"
        if free is None:
            return Check("memory", True, f"{told}; what is free on {self.model.device} is not known")
        return Check("memory", needed <= free, f"{told}, {gigabytes(free)} are free: {free // needed} at a time")

    @torch.no_grad()
    def loops(self) -> Check:
        """Later loops say something else than the first, and all of it is finite."""
        said = loop_logits(self.model, self._tensor(self.prompts[0])).float()[0]  # [loop, time, vocab]
        if not bool(torch.isfinite(said).all()):
            return Check("loops", False, "logits are not finite")
        loops, change, spread = len(said), float((said[-1] - said[0]).abs().max()), float(said[-1].std())
        told = f"{loops} loops, of which the last moves logits by up to {change:.2f} (their spread is {spread:.2f})"
        return Check("loops", (change > 0 or loops == 1) and spread > 0, told)

    @torch.no_grad()
    def cached(self) -> Check:
        found = []
        for prompt in self.prompts:
            whole, cache, parts = self._logits([prompt])[0], self.model.new_cache(), []
            for start, stop in ((0, len(prompt) // 2), *((at, at + 1) for at in range(len(prompt) // 2, len(prompt)))):
                ids = self._tensor(prompt[start:stop])
                parts.append(self.model(ids, past_key_values=cache).logits[0])
            found.append((torch.cat(parts), whole))
        return self._compared("cached = uncached", found)

    @torch.no_grad()
    def batched(self) -> Check:
        together = self._logits(self.prompts)
        alone = [self._logits([prompt])[0] for prompt in self.prompts]
        return self._compared("batch = alone", [(row[-len(one) :], one) for row, one in zip(together, alone, strict=True)])

    @torch.no_grad()
    def chunked(self) -> Check:
        ids = self._tensor(self.prompts[0])
        told = {"return_dict_in_generate": True, "output_logits": True}
        options: dict[str, Any] = {"custom_generate": Greedy(), "max_new_tokens": 1, "do_sample": False, **told}
        chunked, whole = (self.model.generate(ids, prefill_chunk_size=size, **options).logits[0] for size in (5, None))
        return self._compared("chunked = whole", [(chunked, whole)])

    def drafted(self) -> Check:
        if self.model.num_loops < 2:
            return Check("drafted = undrafted", True, "one loop: nothing can be drafted")
        draft = SelfDraft(max(1, self.model.num_loops // 4), 4, fallback=False)
        pairs = [(Greedy(), Greedy(draft=draft)), (LoopCD(), LoopCD(draft=draft))]
        made = [(self._texts(plain), self._texts(drafting)) for plain, drafting in pairs]
        return self._same_texts("drafted = undrafted", made)

    @torch.no_grad()
    def contrasted(self) -> Check:
        """LoopCD against its formula, read from whole texts again for every token."""
        if self.model.num_loops < 2:
            return Check("LoopCD = its formula", True, "one loop: nothing to contrast with")
        method = LoopCD(coda="own").settled(self.model)
        amateur, strength = int(method.amateur_loop or 1), float(method.strength or 0.0)
        wrong, ties, all_tokens = [], 0, 0
        for number, (prompt, made) in enumerate(zip(self.prompts, self._texts(method), strict=True)):
            ids = self._tensor([*prompt, *made])[:, :-1]
            said = loop_logits(self.model, ids, loops=[amateur, self.model.num_loops])[0, :, len(prompt) - 1 :].double()
            early, expert = said.log_softmax(dim=-1)  # [tokens, vocab]
            scores, border = expert - strength * early, expert.amax(dim=-1) + log(method.plausibility)
            best = scores.masked_fill(expert < border[:, None], -inf).amax(dim=-1)
            chosen = self._tensor(made).T.long()  # [tokens, 1]
            score, chance = scores.gather(1, chosen)[:, 0], expert.gather(1, chosen)[:, 0]
            allowed = torch.tensor([self._allowed(row) for row in said[1]]).to(border)
            right = (chance >= border) & (score == best)
            near = (chance >= border - allowed) & (score >= best - 2 * allowed)
            all_tokens, ties = all_tokens + len(made), ties + int((near & ~right).sum())
            wrong += [f"token {at} of text {number}" for at in torch.nonzero(~right & ~near).flatten().tolist()]
        told = f"{all_tokens} tokens by amateur loop {amateur}, strength {strength}"
        if wrong:
            told = f"{len(wrong)} of {told} are not the formula's, first {wrong[0]}"
        return Check("LoopCD = its formula", not wrong, told, near_ties=ties / max(1, all_tokens))

    def speed(self) -> Check:
        bandwidth = _bandwidth(self.model.device)
        told = [f"memory {bandwidth / 1e9:.1f} GB/s"]
        try:
            moved = step_traffic(self.model, len(self.prompts[0]) + self.tokens).per_token()
            told[0] += f", which allows {bandwidth / moved:.0f} tokens/s"
        except (ValueError, TypeError, AttributeError):
            pass  # a family whose bytes are not counted
        methods: dict[str, Method] = {"greedy": Greedy()}
        if self.model.num_loops > 1:
            methods |= {"LoopCD": LoopCD(), "drafted": LoopCD(draft=SelfDraft(None, None))}
        for name, method in methods.items():
            self._texts(method, 1)
            made = timed(lambda method=method: len(self._texts(method, 1)[0]))
            told.append(f"{name} {made.rate:.1f} tokens/s")
        return Check("speed", True, ", ".join(told))

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.model.device)

    def _logits(self, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
        """[time, vocab] of each prompt, padding included."""
        ids, mask = pad_left(prompts, self.model.config.pad_token_id or 0, self.model.device)
        return list(self.model(ids, attention_mask=None if bool(mask.all()) else mask).logits)

    def _texts(self, method: Method, count: int | None = None) -> list[list[int]]:
        made = generate(self.model, None, self.prompts[:count], method, max_new_tokens=self.tokens)
        return [each.token_ids for each in made]

    def _allowed(self, logits: Tensor) -> float:
        return ALLOWED.get(self.model.dtype, ALLOWED[torch.bfloat16]) * max(1.0, float(logits.abs().max()) / 20)

    def _compared(self, name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Check:
        """Logits [time, vocab] found in two ways."""
        largest, ties, positions, right = 0.0, 0, 0, True
        for first, second in pairs:
            difference = float((first.float() - second.float()).abs().max())
            allowed = self._allowed(second.float())
            best = second.float().topk(2, dim=-1).values
            ties += int((best[..., 0] - best[..., 1] < allowed).sum())
            positions += best[..., 0].numel()
            largest, right = max(largest, difference), right and difference <= allowed
        return Check(name, right, f"logits of {positions} tokens", largest, ties / positions)

    def _same_texts(self, name: str, pairs: Sequence[tuple[list[list[int]], list[list[int]]]]) -> Check:
        """Texts that must be the same, up to where two tokens are nearer than rounding."""
        wrong, ties, texts = [], 0, 0
        for plain, other in pairs:
            for prompt, first, second in zip(self.prompts, plain, other, strict=True):
                texts += 1
                at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
                if at is None:
                    wrong += [f"text {texts} has another length"] if len(first) != len(second) else []
                elif self._tie([*prompt, *first[:at]], first[at], second[at]):
                    ties += 1
                else:
                    wrong.append(f"token {at} of text {texts}")
        told = f"{texts} texts" if not wrong else f"{len(wrong)} of {texts} texts differ, first in {wrong[0]}"
        return Check(name, not wrong, told, near_ties=ties / texts)

    @torch.no_grad()
    def _tie(self, ids: Sequence[int], first: int, second: int) -> bool:
        """Whether rounding may decide between two tokens: by the expert's logits, or by what a contrast makes of them."""
        said = loop_logits(self.model, self._tensor(ids)).float()[0, :, -1]
        allowed = self._allowed(said[-1])
        gaps = [float(each[first] - each[second]) for each in said]
        preset = LoopCD().settled(self.model)
        contrast = gaps[-1] - float(preset.strength or 0) * gaps[int(preset.amateur_loop or 1) - 1]
        border = float(said[-1].max()) + log(preset.plausibility)
        on_border = any(abs(float(said[-1][token]) - border) < allowed for token in (first, second))
        return abs(gaps[-1]) < allowed or abs(contrast) < 2 * allowed or on_border


def _bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes on the device."""
    data = torch.ones(32 * 2**20 if device.type == "cpu" else 256 * 2**20, device=device)
    copy = torch.empty_like(data)
    copy.copy_(data)
    return timed(lambda: sum(2 * copy.copy_(data).nbytes for _ in range(3))).rate
