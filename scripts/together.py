"""Whether texts that go on together, each at its own loop, some ahead of themselves, get the tokens that they get alone.

together.py [--prompts 200] [--tokens 24] [--rows 32] [--models tiny-huginn,tiny-ouro,nanbeige] [--only "greedy.*drawn"]
            [--in-step]

Prompts of very different lengths, every ninth cancelled in the middle; greedy, LoopCD, draws, both exit criteria, waves,
rounds and batches in step, each against every row alone and undrafted. A text that differs is counted as a near tie where the
two best scores at its first other token are nearer than rounding.
"""

import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import torch

import loopcd
from loopcd.decoding.rounds import NEAR
from loopcd.models import LoopedModel, NanbeigeConfig, NanbeigeForCausalLM

DRAWN = {"temperature": 0.9, "top_p": 0.95, "seed": 3}


def settings(model: LoopedModel) -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """A name, the method together, the method alone, and how tokens are drawn."""
    amateur, _ = loopcd.LoopCD().resolve(model)
    wave, rounds = loopcd.SelfDraft(amateur, wave=True), loopcd.SelfDraft(amateur, 4, wave=False)
    latent = loopcd.EarlyExit(0.05, min_loops=amateur + 1)
    leaving = {"latent": latent}
    if hasattr(model, "gate_logits"):
        leaving["gate"] = loopcd.EarlyExit(0.6, min_loops=amateur + 1, criterion="gate")
    for name, make in {"greedy": loopcd.Greedy, "loopcd": loopcd.LoopCD}.items():
        yield name, make(), make(), {}
        yield f"{name}, drawn", make(), make(), DRAWN
        yield f"{name}, wave", make(draft=wave), make(), {}
        yield f"{name}, wave, drawn", make(draft=wave), make(), DRAWN
        yield f"{name}, rounds", make(draft=rounds), make(), {}
        yield f"{name}, rounds, drawn", make(draft=rounds), make(), DRAWN
        for criterion, rule in leaving.items():
            yield f"{name}, exit by {criterion}", make(exit=rule), make(exit=rule), {}
            yield f"{name}, exit by {criterion}, drawn", make(exit=rule), make(exit=rule), DRAWN


def prompts_of(model: LoopedModel, count: int, tokens: int) -> list[list[int]]:
    """From one token to most of a short context, drawn so that short ones are the more frequent."""
    generator = torch.Generator().manual_seed(7)
    longest = min(200, model.max_context - tokens - 1)
    lengths = (1 + (longest - 1) * torch.rand(count, generator=generator) ** 2).long().tolist()
    return [torch.randint(3, model.config.vocab_size, (length,), generator=generator).tolist() for length in lengths]


def longest(number: int, tokens: int) -> int:
    """Texts end at different times, so that those which are cancelled are in the middle."""
    return max(1, tokens - number % 4 * tokens // 8)


def made_together(
    model: LoopedModel, prompts: Any, method: Any, rows: int, tokens: int, drawn: Any, in_step: bool
) -> dict[int, list[int]]:
    if in_step or (method.draft is not None and not method.draft.wave):
        made = loopcd.generate(model, None, prompts, method, max_new_tokens=tokens, batch_size=rows, **drawn)
        return {number: each.token_ids[: longest(number, tokens)] for number, each in enumerate(made)}
    batch = loopcd.Batch(model, rows=rows)
    handles = [
        batch.submit(each, method, max_new_tokens=longest(at, tokens), number=at, **drawn) for at, each in enumerate(prompts)
    ]
    doomed = set(range(4, len(prompts), 9))
    for _ in batch:
        for number in sorted(doomed):
            if handles[number].token_ids or handles[number].ended:
                handles[number].cancel()
                doomed.discard(number)
    return {number: each.result().token_ids for number, each in enumerate(handles) if each.ended != "cancelled"}


def near_tie(model: LoopedModel, text: list[int]) -> bool:
    with torch.no_grad():
        best = model(torch.tensor([text])).logits[0, -1].topk(2).values
    return float(best[0] - best[1]) < NEAR[torch.float32]


def loaded(name: str) -> LoopedModel:
    if name != "nanbeige":
        return loopcd.load(name)[0]
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    fields: dict[str, Any] = {"hidden_size": 64, **heads, "num_hidden_layers": 2, "intermediate_size": 96}
    made = NanbeigeForCausalLM(NanbeigeConfig(**fields, num_loops=4, vocab_size=256)).eval()
    with torch.no_grad():
        made.lm_head.weight.normal_(0, 0.5)
    return made


@click.command()
@click.option("--prompts", default=200)
@click.option("--tokens", default=24)
@click.option("--rows", default=32)
@click.option("--models", default="tiny-huginn,tiny-ouro,nanbeige")
@click.option("--only", default="", help="Settings in whose name this regular expression is found.")
@click.option("--in-step", is_flag=True, help="In batches of texts that run each loop together; none is cancelled there.")
def main(prompts: int, tokens: int, rows: int, models: str, only: str, in_step: bool) -> None:
    torch.set_num_threads(1)
    sys.modules["loopcd.decoding.generate"].HOST = float("inf")  # pyright: ignore[reportAttributeAccessIssue]
    wrong = 0
    for name in models.split(","):
        model, known = loaded(name), dict[str, list[list[int]]]()
        asked = prompts_of(model, prompts, tokens)
        for label, together, alone, drawn in settings(model):
            if not re.search(only, label):
                continue
            begun, key = time.process_time(), f"{alone}{drawn}"
            if key not in known:
                options = {"max_new_tokens": tokens, **drawn}
                known[key] = [
                    loopcd.generate(model, None, [each], alone, numbers=[at], **options)[0].token_ids
                    for at, each in enumerate(asked)
                ]
            made = made_together(model, asked, together, rows, tokens, drawn, in_step)
            wanted = [each[: longest(at, tokens)] for at, each in enumerate(known[key])]
            other = [at for at, each in made.items() if each != wanted[at]]
            near = [at for at in other if near_tie(model, asked[at] + _common(made[at], wanted[at]))]
            wrong += len(other) - len(near)
            told = f"{len(made) - len(other)} of {len(made)} the same, {len(near)} other at a near tie"
            click.echo(f"{name}, {label}: {told} ({time.process_time() - begun:.0f} s)")
    sys.exit(1 if wrong else 0)


def _common(one: list[int], other: list[int]) -> list[int]:
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:at]


if __name__ == "__main__":
    main()
