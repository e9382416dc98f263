"""Any combination of the arguments of `generate`, and what it must make of a prompt, read slowly.

A `Combination` is drawn from a seed. `slow_text` writes one row of it token by token: the text before is run again in float64
(`Slow`), and bans, scores, warpers, draws and ends are written out once more.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

import loopcd
from decoding.slow import Slow, SlowExits, Text
from loopcd import MTI, EarlyExit, Greedy, LoopCD, LoopGuidance, NoiseCD, SelfDraft
from tools import EOS, PAD, VOCABULARY, byte_tokenizer

INF = float("inf")
TIE = 1e-9  # float64 passes of different shapes differ by 1e-12
TOKENIZER = byte_tokenizer()
NEGATIVE = "NO!"


@dataclass(frozen=True)
class Combination:
    """One call of `generate`: through transformers, or through `loopcd.generate` where `short`."""

    seed: int
    family: str
    method: Any
    prompts: list[list[int]]
    count: int
    loops: int
    short: bool
    sampled: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    penalty: float = 1.0
    suppressed: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    ngram: int = 0
    min_new: int = 0
    ends: list[int] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    chunk: int | None = None
    first: int | None = None  # tokens of a first call, from whose cache a second goes on

    @classmethod
    def drawn(cls, seed: int) -> "Combination":
        """Usual settings as often as unusual ones; every eighth goes on from the cache of a drafted batch."""
        random = Random(seed)
        if seed % 8 == 7:
            return cls._resumed(seed, random)
        family = random.choice(["huginn", "huginn", "ouro", "ouro", "hrm"])
        loops, short, sampled = random.choice([2, 3, 4, 5]), random.random() < 0.35, random.random() < 0.4
        rows = 1 if sampled and not short else random.choice([1, 2, 3])  # transformers draws all rows from one generator
        prompts = [random.choices(range(VOCABULARY - 3), k=random.randint(1, 9)) for _ in range(rows)]
        made = cls(seed, family, _method(random, family, loops), prompts, random.randint(1, 9), loops, short, sampled)
        some = lambda chance, value, other: value if random.random() < chance else other  # noqa: E731
        made = replace(
            made,
            temperature=some(0.6 * sampled, random.choice([0.5, 1.7]), 1.0),
            top_p=some(0.4 * sampled, random.choice([0.3, 0.8]), 1.0),
            stops=some(0.3, random.sample([chr(code) for code in range(ord("A"), ord("Z") + 1)], 20), []),
        )
        if short:
            return made
        tokens = list(range(VOCABULARY))
        first = some(0.3, random.randint(1, 6), None)
        made = replace(
            made,
            top_k=some(0.3 * sampled, random.choice([2, 10]), 0),
            penalty=some(0.3, random.choice([0.7, 1.5, 4.0]), 1.0),
            suppressed=some(0.3, random.sample(tokens, 180), []),
            bad_words=some(0.3, [[token] for token in random.sample(tokens, 100)], []),
            ngram=some(0.25, random.choice([1, 2]), 0),
            ends=some(0.4, random.sample(tokens, 30), []),
            chunk=some(0.3, random.choice([1, 2, 4]), None),
            first=first,
        )
        if first is not None:
            return replace(made, ends=[], stops=[])  # a row that ended would go on by its padding
        return replace(made, min_new=some(0.5 * bool(made.ends), random.randint(1, min(6, made.count)), 0))

    @classmethod
    def _resumed(cls, seed: int, random: Random) -> "Combination":
        """Drafts of nearly all loops, of which rows accept different numbers, so that the first call's cache is not level."""
        family, loops = random.choice(["huginn", "ouro", "hrm"]), random.choice([3, 4, 5])
        prompts = [random.choices(range(VOCABULARY - 3), k=random.randint(1, 9)) for _ in range(random.choice([2, 3]))]
        method: Any = random.choice([Greedy(), LoopCD(1, 0.9, 0.5), LoopGuidance(1, 0.5)])
        method = replace(method, draft=SelfDraft(loops - 1, random.randint(2, 5), fallback=False))
        made = cls(seed, family, method, prompts, random.randint(3, 9), loops, short=False, first=random.randint(3, 9))
        return replace(made, penalty=random.choice([1.0, 1.5]), chunk=random.choice([None, None, 2]))


def _method(random: Random, family: str, loops: int) -> Any:
    early = random.randint(1, loops - 1)
    coda: Any = random.choice(["own", "shared"])
    alpha = random.choice([0.01, 0.1, 0.5, 1.0])
    kind = random.choice(["greedy", "loopcd", "loopcd", "loopcd", "auto", "guidance", "guidance", "noise", "mti"])
    if kind == "noise" and family == "hrm":  # the slow reading knows no hidden states of this family
        kind = "loopcd"
    strength = random.choice([0.0, 0.3, 0.9, 2.0])
    method: Any = {
        "greedy": Greedy(),
        "loopcd": LoopCD(early, strength, alpha, coda, lazy=random.random() < 0.7),
        "auto": LoopCD("auto", strength, alpha, coda),
        "guidance": LoopGuidance(early, random.choice([0.0, 0.5, 2.0]), random.random() < 0.5, coda),
        "noise": NoiseCD(random.choice([0.0, 0.5, 2.0]), strength, alpha, seed=random.randint(0, 5)),
        "mti": MTI(random.choice([0.5, 3.0, 4.0]), random.choice([0.5, 1.5, 3.0]), NEGATIVE, alpha),
    }[kind]
    extra = random.choice(["none", "exit", "draft", "draft"])
    if extra == "draft" and method.can_draft:
        fixed = SelfDraft(random.randint(1, loops - 1), random.randint(2, 5), fallback=False)
        return replace(method, draft=random.choice([fixed, fixed, SelfDraft(), SelfDraft(length=4)]))
    if extra == "exit" and family != "hrm":
        deepest = {"loopcd": early, "guidance": early, "auto": max(1, loops // 2)}.get(kind, 0)
        criterion = "gate" if family == "ouro" and random.random() < 0.5 else "latent"
        exited: Any = random.choice(["last", "skip"])
        return replace(method, exit=EarlyExit(random.uniform(0.2, 0.9), deepest + random.randint(1, 2), criterion, exited))
    return method


# The slow reading


class Tie(Exception):
    """Two tokens are nearer than rounding: the combination shows nothing."""


@dataclass
class Reader:
    """What the loops say after a text, with or without exits; texts come one token longer each time."""

    slow: Slow
    exits: SlowExits | None
    ended: Tensor = field(default_factory=lambda: torch.empty(0))  # [time, width], with which each token left
    states: list[Tensor] = field(default_factory=list)  # after each loop, [time, width]

    def read(self, ids: Text) -> Tensor:
        """The expert's logits [vocab]."""
        if self.slow._hrm is not None:
            return self.slow.said(ids, self.slow.loops)
        if self.exits is None:
            self.states = self.slow.states(ids)
            self.ended = self.states[self.slow.loops]
        else:
            self.ended, self.states = self.exits.expert(ids)
        return self.slow.readout(self.ended)[-1]

    def early(self, ids: Text, loop: int, coda: str) -> Tensor:
        if self.slow._hrm is not None:
            return self.slow.said(ids, loop)
        if coda == "own" or self.slow.family != "huginn_raven" or len(ids) == ids.prompt:
            return self.slow.readout(self.states[loop])[-1]
        return self.slow.through_the_experts_coda(self.ended, self.states[loop])

    def noisy(self, method: NoiseCD, step: int) -> Tensor:
        names = ("transformer.wte.weight", "lm_head.weight", "model.embed_tokens.weight")
        blind, eye = copy(self.slow), torch.eye(self.ended.shape[-1], dtype=torch.float64)
        blind.weights = {**self.slow.weights, **dict.fromkeys(names, eye)}
        hidden = blind.readout(self.ended)[-1]
        generator = torch.Generator().manual_seed(method.seed * 1_000_003 + step)
        noise = torch.randn(len(hidden), generator=generator).double()
        return self.slow.weights["lm_head.weight"] @ (hidden + method.noise * hidden.pow(2).mean().sqrt() * noise)

    def after(self, ids: Text, more: list[int]) -> Tensor:
        """What is said after further tokens, which are then forgotten."""
        known = None if self.exits is None else list(self.exits.depths)
        said = Reader(self.slow, self.exits).read(Text([*ids, *more]))
        if self.exits is not None and known is not None:
            self.exits.depths = known
        return said


def plausible(expert: Tensor, alpha: float) -> Tensor:
    p = expert.softmax(dim=-1)
    near = (p / (alpha * p.max()) - 1).abs() < TIE
    if bool((near & (p < p.max())).any()):
        raise Tie
    return p >= alpha * p.max()


def scores_of(case: Combination, reader: Reader, ids: Text, expert: Tensor, step: int) -> Tensor:
    """The method's scores [vocab] from the expert's logits, in which what is banned is −∞."""
    method = case.method
    if isinstance(method, Greedy):
        return expert
    if isinstance(method, LoopGuidance):
        first, second = expert.softmax(dim=-1).sort(descending=True).values[:2].tolist()
        weight = method.weight * (1 - (first - second)) if method.adaptive else method.weight
        guided = expert + weight * (expert - reader.early(ids, method.early_loop, method.coda))
        return guided.masked_fill(expert == -INF, -INF)
    allowed = plausible(expert, method.plausibility)
    own = expert.log_softmax(dim=-1)
    if isinstance(method, MTI):
        entropy = float(-(own.exp() * own)[own > -INF].sum())
        if entropy <= method.entropy_threshold:
            return own.masked_fill(~allowed, -INF)
        other = reader.after(ids, TOKENIZER(NEGATIVE).input_ids).log_softmax(dim=-1)
        scores = (1 - method.guidance) * other + method.guidance * own
    else:
        if isinstance(method, NoiseCD):
            amateur = reader.noisy(method, step)
        elif method.amateur_loop == "auto":
            half = range(1, max(1, case.loops // 2) + 1)
            amateur = sum((reader.early(ids, loop, method.coda) for loop in half), torch.zeros(())) / len(half)
        else:
            amateur = reader.early(ids, method.amateur_loop, method.coda)
        scores = own - method.strength * amateur.log_softmax(dim=-1)
    return scores.masked_fill(~allowed, -INF).log_softmax(dim=-1)


def banned(case: Combination, text: list[int], step: int) -> set[int]:
    """What may not follow the text, padding included, as step `step` of a call."""
    words = {word[0] for word in case.bad_words}
    found = {*case.suppressed, *(words - set(case.ends))}  # transformers lets a bad word end a text
    if case.ngram:
        before = text[len(text) - case.ngram + 1 :]
        starts = range(len(text) - case.ngram + 1)
        found |= {text[at + case.ngram - 1] for at in starts if text[at : at + case.ngram - 1] == before}
    return found | (set(case.ends) if step <= case.min_new else set())


def warped(case: Combination, text: list[int], scores: Tensor) -> Tensor:
    """Penalty, temperature, top k and top p, in transformers' order."""
    seen = torch.zeros(len(scores), dtype=torch.bool).index_fill(0, torch.tensor(text), True)
    punished = torch.where(scores < 0, scores * case.penalty, scores / case.penalty)
    scores = torch.where(seen, punished, scores)
    if not case.sampled:
        return scores
    scores = scores / case.temperature
    if case.top_k:
        scores = scores.masked_fill(scores < scores.sort(descending=True).values[case.top_k - 1], -INF)
    if case.top_p < 1:
        values, order = scores.softmax(dim=-1).sort(descending=True)
        before = values.cumsum(dim=0) - values  # of the more probable ones
        if bool(((before - case.top_p).abs() < TIE).any()):
            raise Tie
        scores = scores.index_fill(0, order[before >= case.top_p], -INF)
    return scores


def chosen(case: Combination, scores: Tensor, generator: torch.Generator) -> int:
    if case.sampled:
        return int(torch.multinomial(scores.softmax(dim=-1), 1, generator=generator))
    best = scores.sort(descending=True).values[:2]
    if float(best[0] - best[1]) < TIE:
        raise Tie
    return int(scores.argmax())


def over(case: Combination, ids: Text) -> bool:
    """Whether the last token ends the text; a token is a byte, so a stop string of one letter is a token."""
    ends = [*case.ends, EOS] if case.short else case.ends
    return ids[-1] in ends or TOKENIZER.decode(ids[-1:]) in case.stops


def slow_text(case: Combination, slow: Slow, row: int, guess: list[int]) -> list[int]:
    """The new tokens of one prompt. A right guess saves time: the loops are then run once, over the whole text."""
    slow = copy(slow)
    slow.loops, slow._states, slow._logits = case.loops, {}, {}
    if case.method.exit is None:
        slow.remember([*case.prompts[row], *guess])
    reader = Reader(slow, None if case.method.exit is None else SlowExits(slow, case.method.exit))
    ids, padding = Text(case.prompts[row]), max(map(len, case.prompts)) - len(case.prompts[row])
    for count in [case.count] if case.first is None else [case.first, case.count]:
        generator = torch.Generator().manual_seed(case.seed * 1_000_003 + row if case.short else case.seed)
        for step in range(1, count + 1):
            expert, text = reader.read(ids), [PAD] * padding + ids
            expert = expert.index_fill(0, torch.tensor(sorted(banned(case, text, step)), dtype=torch.long), -INF)
            scores = scores_of(case, reader, ids, expert, step)
            ids.append(chosen(case, warped(case, text, scores), generator))
            if over(case, ids):
                return ids[ids.prompt :]
    return ids[ids.prompt :]


# The call


def made_by_loopcd(case: Combination, model: Any) -> list[list[int]]:
    """The new tokens of every row, up to its end."""
    if case.short:
        drawing = {"temperature": case.temperature if case.sampled else 0.0, "top_p": case.top_p, "seed": case.seed}
        options = {"max_new_tokens": case.count, "stop": case.stops, "num_loops": case.loops}
        made = loopcd.generate(model, TOKENIZER, case.prompts, case.method, batch_size=2, **drawing, **options)
        return [each.token_ids for each in made]
    longest = max(map(len, case.prompts))
    ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in case.prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in case.prompts])
    cache = None
    for count in [case.count] if case.first is None else [case.first, case.count]:
        torch.manual_seed(case.seed)
        output = model.generate(ids, attention_mask=mask, past_key_values=cache, **options_of(case, count))
        mask = torch.cat([mask, torch.ones(len(ids), output.sequences.shape[1] - ids.shape[1], dtype=torch.long)], dim=1)
        ids, cache = output.sequences, output.past_key_values
    rows = [Text(row.tolist(), longest) for row in ids]
    lengths = [next((at for at in range(longest + 1, len(row)) if over(case, Text(row[:at]))), len(row)) for row in rows]
    return [row[longest:length] for row, length in zip(rows, lengths, strict=True)]


def options_of(case: Combination, count: int) -> dict[str, Any]:
    """What transformers' generate is called with."""
    drawing = {"temperature": case.temperature, "top_p": case.top_p, "top_k": case.top_k} if case.sampled else {}
    given = {
        "suppress_tokens": case.suppressed,
        "bad_words_ids": case.bad_words,
        "no_repeat_ngram_size": case.ngram,
        "min_new_tokens": case.min_new,
        "eos_token_id": case.ends,
        "stop_strings": case.stops,
        "prefill_chunk_size": case.chunk,
    }
    return {
        "custom_generate": case.method,
        "max_new_tokens": count,
        "num_loops": case.loops,
        "do_sample": case.sampled,
        "repetition_penalty": case.penalty,
        "pad_token_id": PAD,
        "tokenizer": TOKENIZER,
        "return_dict_in_generate": True,
        **drawing,
        **{name: value for name, value in given.items() if value},
    }
