"""The properties that a family of looped models must have, each a function of a model.

    python tests/family.py                  every family that the tests know
    python tests/family.py parcae FOLDER    some of them, or a checkpoint

prints them one by one. tests/models/test_families.py runs them as tests.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import loopcd
import reference
from loopcd.models import LoopCache, LoopedModel
from tools import LATER, MAKERS, assert_close, byte_tokenizer, left_padded, logits_of, random_ids

PROMPTS = ["Hello", "A longer prompt, with more in it", "x"]
CLEAR = 1e-3  # a choice closer than this is decided by rounding

Property = Callable[[LoopedModel], None]
PROPERTIES: dict[str, Property] = {}


def family_property(name: str) -> Callable[[Property], Property]:
    def add(check: Property) -> Property:
        PROPERTIES[name] = check
        return check

    return add


def ids_of(model: LoopedModel, rows: int, time: int, seed: int = 0) -> torch.Tensor:
    return random_ids(rows, time, min(model.config.vocab_size, 256), seed)


def in_pieces(model: LoopedModel, ids: torch.Tensor, pieces: list[int], mask: torch.Tensor | None = None) -> torch.Tensor:
    """Logits [rows, time, vocab] of a text fed to one cache piece by piece."""
    cache, said, stop = LoopCache(), [], 0
    for length in pieces:
        start, stop = stop, stop + length
        seen = None if mask is None else mask[:, :stop]
        said.append(logits_of(model, ids[:, start:stop], cache, attention_mask=seen))
    return torch.cat(said, dim=1)


def generated(model: LoopedModel, method: Any, prompts: list[str] = PROMPTS, **options: Any) -> list[Any]:
    made = loopcd.generate(model, byte_tokenizer(), prompts, method, **{"max_new_tokens": 12, **options})
    return [(each.token_ids, each.loops) for each in made]  # pyright: ignore[reportGeneralTypeIssues]


# The numbers


@family_property("float64 reading: every loop's logits are those of its formulas")
def float64_reading(model: LoopedModel) -> None:
    ids = ids_of(model, 1, 12)
    found = loopcd.loop_logits(model, ids)[0]
    for loop in range(1, model.num_loops + 1):
        assert_close(found[loop - 1], reference.logits(model.state_dict(), model.config, ids[0], loop))


@family_property("cached = uncached: token by token, past the cache's first block")
def cached(model: LoopedModel) -> None:
    ids = ids_of(model, 2, 36)
    assert_close(in_pieces(model, ids, [1] * 36), logits_of(model, ids))


@family_property("chunked = whole: a prompt cut anywhere")
def chunked(model: LoopedModel) -> None:
    ids = ids_of(model, 2, 13)
    for pieces in ([5, 1, 7], [12, 1], [2, 2, 9]):
        assert_close(in_pieces(model, ids, pieces), logits_of(model, ids))


@family_property("padded = alone: a left-padded row has the numbers of the row alone, also in pieces")
def padded(model: LoopedModel) -> None:
    rows = [ids_of(model, 1, length, seed=length)[0] for length in (3, 9, 6)]
    ids, mask = left_padded(rows, pad=0)
    for together in (logits_of(model, ids, attention_mask=mask), in_pieces(model, ids, [4, 1, 4], mask)):
        for found, row in zip(together, rows, strict=True):
            assert_close(found[-len(row) :], logits_of(model, row[None])[0])


@family_property("a later token never changes an earlier one")
def causal(model: LoopedModel) -> None:
    ids = ids_of(model, 1, 10)
    changed = torch.cat([ids[:, :7], ids_of(model, 1, 3, seed=9)], dim=1)
    assert_close(logits_of(model, ids)[:, :7], logits_of(model, changed)[:, :7])


@family_property("eager = sdpa")
def attended_alike(model: LoopedModel) -> None:
    ids, before = ids_of(model, 2, 9), model.config._attn_implementation or "sdpa"
    wanted = logits_of(model, ids)
    try:
        model.set_attn_implementation("eager")
        assert model.config._attn_implementation == "eager"
        assert_close(in_pieces(model, ids, [6, 1, 2]), wanted)
    finally:
        model.set_attn_implementation(before)


@family_property("saved and loaded = itself, through loopcd.load and its own class")
def saved(model: LoopedModel) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ids = ids_of(model, 2, 7)
        for again in (loopcd.load(folder)[0], type(model).from_pretrained(folder).eval()):
            assert torch.equal(logits_of(again, ids), logits_of(model, ids))


# Early readouts


@family_property("early readout = run at that depth, along a text, in padded rows, read now and then")
@torch.no_grad()
def early_readout(model: LoopedModel) -> None:
    ids, mask = left_padded([ids_of(model, 1, 4)[0], ids_of(model, 1, 9, seed=1)[0]], pad=0)
    loop = max(1, model.num_loops - 1)
    stopped = logits_of(model, ids, attention_mask=mask, num_loops=loop)
    cache, stop = LoopCache(), 0
    for index, length in enumerate([6, 1, 1, 1]):
        start, stop = stop, stop + length
        state = model.begin(ids[:, start:stop], cache, attention_mask=mask[:, :stop])
        for _ in range(loop):
            state = model.advance(state)
        parked = model.park(state, "own")
        for _ in range(model.num_loops - loop):
            state = model.advance(state)
        model.readout(state)
        if index % 2 == 1:
            assert_close(model.head(model.read_parked(parked))[:, 0], stopped[:, stop - 1])


@family_property("reading early leaves what follows as it was, whatever the coda")
@torch.no_grad()
def reading_leaves_no_trace(model: LoopedModel) -> None:
    ids = ids_of(model, 2, 8)
    wanted = logits_of(model, ids)
    for coda in ("shared", "own"):
        cache, said = LoopCache(), []
        for piece in ids.split([4, 1, 1, 2], dim=1):
            state = model.advance(model.begin(piece, cache))
            parked = model.park(state, coda)
            for _ in range(model.num_loops - 1):
                state = model.advance(state)
            said.append(model.head(model.readout(state)))
            model.read_parked(parked)
        assert_close(torch.cat(said, dim=1), wanted)


@family_property("whole texts' latents are read as the texts were")
@torch.no_grad()
def latents_of_texts(model: LoopedModel) -> None:
    state = model.begin(ids_of(model, 2, 7))
    state = model.advance(state)
    read = model.read_latents(state.hidden, model.ids_in(state.tokens.rotary))
    assert_close(read, model.readout(state))


# Methods


@family_property("drafted = undrafted: greedy, LoopCD and LoopGuidance, in batches of different lengths")
def drafted(model: LoopedModel) -> None:
    draft = loopcd.SelfDraft(1, 3, fallback=False)
    guided = lambda **more: loopcd.LoopGuidance(1, 0.7, **more)  # noqa: E731
    for method in (loopcd.Greedy, lambda **more: loopcd.LoopCD(1, 0.5, **more), guided):
        assert generated(model, method(draft=draft)) == generated(model, method())
    chosen = loopcd.Greedy(draft=loopcd.SelfDraft())  # which looks at the first tokens before it drafts
    assert generated(model, chosen, max_new_tokens=30) == generated(model, loopcd.Greedy(), max_new_tokens=30)


@family_property("a batch = its rows alone: LoopCD with either coda, LoopGuidance, early exit")
def batched(model: LoopedModel) -> None:
    methods: list[Any] = [loopcd.LoopCD(1, 0.5, coda="shared"), loopcd.LoopCD(1, 0.5, coda="own"), loopcd.LoopGuidance(1, 0.7)]
    methods += [loopcd.Greedy(exit=loopcd.EarlyExit(0.6, exited=exited)) for exited in ("last", "skip")]  # pyright: ignore
    for method in methods:
        alone = [each for prompt in PROMPTS for each in generated(model, method, [prompt])]
        assert generated(model, method) == alone


@family_property("strength 0 = greedy, and an exit that never leaves = none")
def nothing_added(model: LoopedModel) -> None:
    wanted = generated(model, loopcd.Greedy())
    assert generated(model, loopcd.LoopCD(1, 0.0)) == generated(model, loopcd.LoopGuidance(1, 0.0)) == wanted
    assert generated(model, loopcd.Greedy(exit=loopcd.EarlyExit(0.0))) == wanted


@family_property("LoopCD = its formula, read slowly in float64, with a coda of its own")
def contrast(model: LoopedModel) -> None:
    ids, weights = ids_of(model, 1, 8), model.state_dict()
    made = model.generate(ids, custom_generate=loopcd.LoopCD(1, 0.5, coda="own"), max_new_tokens=6, do_sample=False)
    text, choices = ids[0], 0
    for token in made[0, ids.shape[1] :].tolist():
        expert, amateur = (
            reference.logits(weights, model.config, text, loop)[-1].log_softmax(dim=-1) for loop in (model.num_loops, 1)
        )
        scores = (expert - 0.5 * amateur).masked_fill(expert < expert.max() + torch.log(torch.tensor(0.1)), -torch.inf)
        first, second = scores.topk(2).values.tolist()
        if first - second > CLEAR:
            assert token == int(scores.argmax())
            choices += 1
        text = torch.cat([text, torch.tensor([token])])
    assert choices > 2


def run(name: str, model: LoopedModel) -> int:
    """Print which of the properties this model has; how many it lacks."""
    sys.stdout.write(f"{name}: {type(model).__name__}, {model.num_loops} loops\n")
    lacking = 0
    for title, check in PROPERTIES.items():
        try:
            check(model)
            said = "ok     "
        except KeyError as error:
            said, title = "not run", f"{title} (no reading of {error} in tests/reference_families.py)"
        except (AssertionError, RuntimeError, ValueError, TypeError) as error:
            said, lacking = "LACKS  ", lacking + 1
            title = f"{title}\n           {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        sys.stdout.write(f"  {said}  {title}\n")
    return lacking


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    makers = {**MAKERS, **LATER}
    lacking = 0
    for name in names or list(makers):
        model = loopcd.load(name, dtype="float32")[0] if Path(name).is_dir() else makers[name]()
        lacking += run(name, model)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
