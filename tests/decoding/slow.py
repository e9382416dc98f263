"""Decoding read slowly: for every token the whole text is run again in float64, and every formula is written out once more.

Nothing here is shared with `loopcd`. A `Slow` is a model by the formulas of tests/reference.py; `decode` takes from it token
after token by a rule. A rule says which token it takes, and whether that is `clear`: not decided by rounding.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import exp, log, sqrt
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import HrmTextForCausalLM

import reference
from loopcd.models import LoopedModel

CLEAR = 1e-3  # float32 logits of these models are right to 2e-4

Choice = tuple[int, bool]


class Text(list[int]):
    """A text being written; its first `prompt` tokens were read in one pass."""

    def __init__(self, ids: Sequence[int], prompt: int | None = None) -> None:
        super().__init__(ids)
        self.prompt = len(self) if prompt is None else prompt


Rule = Callable[[Text], Choice]


class Slow:
    """What a model says after a text, when it is stopped after a loop. Answers are remembered.

    A token sees only those before it; so what is remembered of a longer text answers for its beginnings too.
    """

    def __init__(self, model: LoopedModel) -> None:
        self.config, self.family, self.loops = model.config, model.config.model_type, model.num_loops
        self.weights = reference.float64(model.state_dict())
        self._states: dict[tuple[int, ...], list[Tensor]] = {}
        self._logits: dict[tuple[int, ...], dict[int, Tensor]] = {}  # of HRM-Text by loop, [time, vocab]
        own = deepcopy(model.config)  # its number of loops is set at every reading
        self._hrm = HrmTextForCausalLM(own).double() if self.family == "hrm_text" else None
        if self._hrm is not None:
            self._hrm.load_state_dict(self.weights)

    def states(self, ids: Sequence[int]) -> list[Tensor]:
        """The latents [time, width] after 0, 1, … loops."""
        key = tuple(ids)
        longer = next((text for text in self._states if len(text) > len(key) and text[: len(key)] == key), None)
        if longer is not None:
            return [state[: len(key)] for state in self._states[longer]]
        if key not in self._states:
            walk = reference.huginn_latents if self.family == "huginn_raven" else reference.ouro_latents
            self._states[key] = walk(self.weights, self.config, torch.tensor(key), self.loops)
        return self._states[key]

    def remember(self, ids: Sequence[int]) -> None:
        """Read a text of which beginnings will be asked for."""
        if self._hrm is None:
            self.states(ids)
        else:
            for loop in range(1, self.loops + 1):
                self.said(ids, loop)

    def readout(self, state: Tensor) -> Tensor:
        """Logits [time, vocab] of a latent."""
        read = reference.huginn_readout if self.family == "huginn_raven" else reference.ouro_readout
        return read(self.weights, self.config, state)

    def hidden(self, ids: Sequence[int]) -> Tensor:
        """[width], what the head reads of the last token: the readout with the identity for a head."""
        names = ("transformer.wte.weight", "lm_head.weight", "model.embed_tokens.weight")
        eye = torch.eye(self.states(ids)[0].shape[-1], dtype=torch.float64)
        with mock.patch.object(self, "weights", {**self.weights, **dict.fromkeys(names, eye)}):
            return self.readout(self.states(ids)[-1])[-1]

    @torch.no_grad()
    def said(self, ids: Sequence[int], loop: int) -> Tensor:
        """Logits [vocab] of the next token by the model stopped after `loop` loops."""
        if self._hrm is not None:
            key = tuple(ids)
            known = (said[loop] for text, said in self._logits.items() if loop in said and text[: len(key)] == key)
            logits = next(known, None)
            if logits is None:
                self._hrm.config.H_cycles = self._hrm.model.config.H_cycles = loop
                logits = self._hrm(torch.tensor([list(ids)]), use_cache=False).logits[0]
                self._logits.setdefault(key, {})[loop] = logits
            return logits[len(key) - 1]
        return self.readout(self.states(ids)[loop])[-1]

    def early(self, ids: Text, loop: int, coda: str = "shared") -> Tensor:
        """As `said`; with the shared coda, what was written after the prompt sees the text before by the expert's entries."""
        if coda == "own" or self.family != "huginn_raven" or len(ids) == ids.prompt:
            return self.said(ids, loop)
        states = self.states(ids)
        return self.through_the_experts_coda(states[-1], states[loop])

    def through_the_experts_coda(self, expert: Tensor, amateur: Tensor) -> Tensor:
        """Huginn's logits [vocab] of the amateur's last latent, every token before it being the expert's; all [time, width]."""
        norm = self.weights["transformer.ln_f.weight"]
        expert = reference.rms_norm(expert, norm, self.config.norm_eps)
        amateur = reference.rms_norm(amateur, norm, self.config.norm_eps)[-1:]
        for layer in range(self.config.n_layers_in_coda):
            at = f"transformer.coda.{layer}"
            mixed = torch.cat([expert[:-1], amateur])
            amateur = reference.huginn_layer(self.weights, at, self.config, mixed)[-1:]
            expert = reference.huginn_layer(self.weights, at, self.config, expert)
        hidden = reference.rms_norm(amateur, norm, self.config.norm_eps)
        return (hidden @ self.weights[f"{'transformer.wte' if self.config.tie_word_embeddings else 'lm_head'}.weight"].T)[0]


# Rules


def probabilities(logits: Tensor) -> list[float]:
    weights = [exp(z - float(logits.max())) for z in logits.tolist()]
    return [weight / sum(weights) for weight in weights]


def best(scores: dict[int, float]) -> Choice:
    first, second, *_ = sorted([*scores.values(), -torch.inf, -torch.inf], reverse=True)
    return max(scores, key=lambda token: scores[token]), first - second > CLEAR


def greedy(logits: Tensor) -> Choice:
    return best(dict(enumerate(logits.tolist())))


def over_plausible(expert: Tensor, plausibility: float, score: Callable[[int], float]) -> Choice:
    """The best token of those with p_e(v) ≥ α · max p_e; clear if a slightly other α gives the same one."""
    p = probabilities(expert)
    choices = []
    for alpha in (plausibility, plausibility * (1 + CLEAR), plausibility * (1 - CLEAR)):
        choices.append(best({v: score(v) for v in range(len(p)) if p[v] >= min(alpha, 1) * max(p)}))
    return choices[0][0], all(choice == (choices[0][0], True) for choice in choices)


def contrast(expert: Tensor, amateur: Tensor, strength: float, plausibility: float = 0.1) -> Choice:
    """s(v) = log p_e(v) − λ log p_a(v)"""
    p_e, p_a = probabilities(expert), probabilities(amateur)
    return over_plausible(expert, plausibility, lambda v: log(p_e[v]) - strength * log(p_a[v]))


def guided(cond: Tensor, uncond: Tensor, weight: float, plausibility: float = 0.1) -> Choice:
    """s(v) = (1 − ω) log p_uc(v) + ω log p_cond(v)"""
    p_c, p_uc = probabilities(cond), probabilities(uncond)
    return over_plausible(cond, plausibility, lambda v: (1 - weight) * log(p_uc[v]) + weight * log(p_c[v]))


def plausible_count(logits: Tensor, plausibility: float = 0.1) -> int:
    p = probabilities(logits)
    return sum(each >= plausibility * max(p) for each in p)


def entropy(logits: Tensor) -> float:
    return -sum(p * log(p) for p in probabilities(logits))


# Decoding


def decode(prompt: Sequence[int], count: int, rule: Rule) -> list[int]:
    """`count` tokens after the prompt; every one of them must be clear."""
    ids = prompt if isinstance(prompt, Text) else Text(prompt)
    start = len(ids)
    for _ in range(count):
        token, clear = rule(ids)
        assert clear, f"token {len(ids) - start} is decided by rounding: take another text for this test"
        ids.append(token)
    return ids[start:]


def loopcd_rule(slow: Slow, amateur: int, strength: float, plausibility: float = 0.1, coda: str = "shared") -> Rule:
    def rule(ids: Text) -> Choice:
        return contrast(slow.said(ids, slow.loops), slow.early(ids, amateur, coda), strength, plausibility)

    return rule


# Early exit


@dataclass
class LeavingAttention:
    """`reference.attend` for a text in which token q left the loop after `depths[q]` loops.

    It is called once for every layer in turn. At a loop that token q did not run, others see it by the entry of the last
    loop that it ran, or not at all.
    """

    depths: list[int]
    exited: str
    layers: int  # of a loop
    before: int  # layers before the loops
    calls: int = 0
    entries: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        loop, layer = divmod(self.calls - self.before, self.layers)
        self.calls += 1
        time = len(query)
        allowed = torch.ones(time, time).tril().bool()
        if loop >= 0:
            self.entries[loop, layer] = key, value
            if self.exited == "last":
                ran = [min(loop, depth - 1) for depth in self.depths]
                key = torch.stack([self.entries[at, layer][0][q] for q, at in enumerate(ran)])
                value = torch.stack([self.entries[at, layer][1][q] for q, at in enumerate(ran)])
            else:
                allowed &= torch.tensor([depth > loop for depth in self.depths]) | torch.eye(time).bool()
        return masked_attention(query, key, value, allowed)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    outputs = []
    for head in range(query.shape[1]):
        scores = query[:, head] @ key[:, head // group].T / sqrt(query.shape[-1])
        outputs.append(scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ value[:, head // group])
    return torch.cat(outputs, dim=-1)


@dataclass
class SlowExits:
    """A text with exits: the prompt leaves at once, then every token by itself."""

    slow: Slow
    rule: Any  # has threshold, min_loops, criterion, exited
    depths: list[int] = field(default_factory=list)

    def read(self, ids: list[int]) -> list[Tensor]:
        """The latents of all tokens; notes at which loop the new ones leave."""
        config = self.slow.config
        huginn = self.slow.family == "huginn_raven"
        layers = config.n_layers_in_recurrent_block if huginn else config.num_hidden_layers
        new = len(ids) - len(self.depths)
        depths = self.depths + [self.slow.loops] * new
        leaving = LeavingAttention(depths, self.rule.exited, layers, config.n_layers_in_prelude if huginn else 0)
        with mock.patch.object(self.slow, "_states", {}), mock.patch.object(reference, "attend", leaving):
            states = self.slow.states(ids)
        left = next((loop for loop in range(1, self.slow.loops) if self.leaves(states, loop, new)), self.slow.loops)
        self.depths += [left] * new
        return states

    def leaves(self, states: list[Tensor], loop: int, new: int) -> bool:
        if loop < (self.rule.min_loops or 0):
            return False
        if self.rule.criterion == "gate":
            weight = self.slow.weights["model.early_exit_gate.weight"][0]
            gates = [state[-new:] @ weight + self.slow.weights["model.early_exit_gate.bias"] for state in states[1 : loop + 1]]
            staying = torch.stack([1 - torch.sigmoid(gate) for gate in gates]).prod(dim=0)
            value = float((1 - staying).mean())
            assert abs(value - self.rule.threshold) > CLEAR * value
            return value >= self.rule.threshold
        now, then = states[loop][-new:], states[loop - 1][-new:]
        value = float(((now - then).norm(dim=-1) / now.norm(dim=-1)).mean())
        assert abs(value - self.rule.threshold) > CLEAR * value
        return value < self.rule.threshold

    def expert(self, ids: list[int]) -> tuple[Tensor, list[Tensor]]:
        """The latents [time, width] with which each token left; and all latents."""
        states = self.read(ids)
        return torch.stack([states[depth][q] for q, depth in enumerate(self.depths)]), states


def decode_with_exits(
    slow: Slow, prompt: Sequence[int], count: int, rule: Any, amateur: int | None = None, strength: float = 0.0
) -> tuple[list[int], list[int]]:
    """The tokens, greedy or by LoopCD, and the loops run for each."""
    exits, loops = SlowExits(slow, rule), []

    def choose(ids: Text) -> Choice:
        ended, states = exits.expert(ids)
        loops.append(exits.depths[-1])
        expert = slow.readout(ended)[-1]
        if amateur is None:
            return greedy(expert)
        if slow.family != "huginn_raven" or len(ids) == ids.prompt:
            return contrast(expert, slow.readout(states[amateur])[-1], strength)
        return contrast(expert, slow.through_the_experts_coda(ended, states[amateur]), strength)

    return decode(prompt, count, choose), loops
