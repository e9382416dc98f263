"""No tensors of two devices meet: every method, family, exit, draft, trace and stream, on one device and on two.

The devices are stand-ins (tests/standin.py). What is made there is what is made on the CPU.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import loopcd
from loopcd import MTI, EarlyExit, Greedy, LoopCD, NoiseCD, SelfDraft, SelfEval
from loopcd.models import LoopedModel, loop_logits
from loopcd.tracing.live import LiveTracer
from standin import DeviceMix, devices, placed, split
from tools import MAKERS, TOLERANCE, byte_tokenizer, left_padded, random_ids, tiny_huginn, tiny_ouro

METHODS: dict[str, Any] = {
    "greedy": Greedy(),
    "loopcd": LoopCD(),
    "own coda": LoopCD(coda="own"),
    "shared coda": LoopCD(coda="shared"),
    "auto": LoopCD("auto"),
    "hard positions": LoopCD(where="hard"),
    "noisecd": NoiseCD(),
    "mti": MTI(entropy_threshold=0.1),
    "exit": Greedy(exit=EarlyExit(0.5)),
    "exit, skipped": Greedy(exit=EarlyExit(0.5, exited="skip")),
    "exit and loopcd": LoopCD(1, exit=EarlyExit(0.5, min_loops=2)),
    "gate": Greedy(exit=EarlyExit(0.6, criterion="gate")),
    "draft": Greedy(draft=SelfDraft(2, 3)),
    "draft by rule": LoopCD(draft=SelfDraft(None, None)),
    "drafted loopcd": LoopCD(draft=SelfDraft(2, 3, fallback=False)),
}
# which modules are on the second device: every second layer, or all but the layers
SPLITS: dict[str, Callable[[str], bool] | None] = {
    "one": None,
    "layers apart": lambda name: name.endswith((".1", "coda.0", ".norm", "final_norm")),
    "ends apart": lambda name: name.endswith(("wte", "embed_tokens", "lm_head", "ln_f", "adapter", "early_exit_gate")),
}


@pytest.fixture(params=list(SPLITS))
def place(request: pytest.FixtureRequest) -> Callable[[LoopedModel], LoopedModel]:
    second = SPLITS[request.param]
    return lambda model: placed(model, "standin:0" if second is None else split(model, second))


@pytest.fixture(params=list(MAKERS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@cache
def on_the_cpu(name: str, family: str) -> list[list[int]]:
    ids, mask, options = asked(name)
    return MAKERS[family]().generate(ids, attention_mask=mask, **options).tolist()


def asked(name: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Two rows, one padded, and what `generate` is called with."""
    ids, mask = left_padded([random_ids(1, 7)[0], random_ids(1, 5, seed=1)[0]])
    options = {"custom_generate": METHODS[name], "max_new_tokens": 4, "do_sample": False, "tokenizer": byte_tokenizer()}
    return ids, mask, options


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, family: str, place: Callable[[LoopedModel], LoopedModel]) -> None:
    if name == "gate" and family != "ouro":
        pytest.skip("no gate")
    wanted, (ids, mask, options) = on_the_cpu(name, family), asked(name)
    with devices():
        model = place(MAKERS[family]())
        there, its_mask = ids.to(model.device), mask.to(model.device)
        made = model.generate(there, attention_mask=its_mask, **options)
        assert made.device.type == "standin"
        assert made.tolist() == wanted
        assert model.generate(there[:1], **options).tolist() == wanted[:1]


def test_texts_traces_and_streams(family: str, place: Callable[[LoopedModel], LoopedModel]) -> None:
    tokenizer, prompts = byte_tokenizer(), ["one and", "two"]
    runs: list[tuple[Any, dict[str, Any]]] = [
        (LoopCD(), {"trace": True}),
        (LoopCD(), {"temperature": 0.8, "top_p": 0.9}),
        (Greedy(draft=SelfDraft(2, 3)), {"temperature": 0.8, "stop": "a"}),
    ]

    def tokens(model: LoopedModel) -> list[list[int]]:
        made = [loopcd.generate(model, tokenizer, prompts, method, max_new_tokens=4, **more) for method, more in runs]
        return [each.token_ids for texts in made for each in texts]

    wanted = tokens(MAKERS[family]())
    with devices():
        model = place(MAKERS[family]())
        assert tokens(model) == wanted
        pieces = loopcd.stream(model, tokenizer, prompts[0], LoopCD(), max_new_tokens=4)
        assert "".join(pieces) == tokenizer.decode(wanted[0], skip_special_tokens=True)
        tracer = LiveTracer(model, tokenizer, tokenizer(prompts[0]).input_ids)
        assert tracer.add(65).token_ids.tolist() == [65]


def test_the_plain_ways(family: str, place: Callable[[LoopedModel], LoopedModel]) -> None:
    ids, plain = random_ids(2, 6), MAKERS[family]()
    logits, wanted = loop_logits(plain, ids), plain.generate(ids, max_new_tokens=4, do_sample=False).tolist()
    with devices():
        model = place(MAKERS[family]())
        there = ids.to(model.device)
        torch.testing.assert_close(loop_logits(model, there).cpu(), logits, rtol=0, atol=TOLERANCE)
        assert model.generate(there, do_sample=True, top_k=5, max_new_tokens=2).shape == (2, 8)
        assert model.generate(there, max_new_tokens=4, do_sample=False, prefill_chunk_size=2).tolist() == wanted


def test_answers_that_judge_themselves(place: Callable[[LoopedModel], LoopedModel]) -> None:
    from decoding.labels import labelled_model, labelled_tokenizer

    for family in ("huginn", "ouro"):
        asked = (labelled_tokenizer(), ["one", "or two"], SelfEval(2))
        wanted = loopcd.generate(labelled_model(family), *asked, max_new_tokens=3)
        with devices():
            assert loopcd.generate(place(labelled_model(family)), *asked, max_new_tokens=3) == wanted


def test_what_only_some_families_have(place: Callable[[LoopedModel], LoopedModel]) -> None:
    ids, tokenizer = random_ids(2, 5), byte_tokenizer()
    drawn = loopcd.generate(tiny_huginn(), tokenizer, "one", loopcd.Greedy(), init_seed=3, max_new_tokens=3)
    exits: list[dict[str, Any]] = [{"exit_threshold": 0.5}, {"exit_at_step": 1}, {"use_weighted_exit": True}]
    wanted = [tiny_ouro()(ids, **options).logits.detach() for options in exits]
    with devices():
        assert loopcd.generate(place(tiny_huginn()), tokenizer, "one", loopcd.Greedy(), init_seed=3, max_new_tokens=3) == drawn
        model = place(tiny_ouro())
        for options, logits in zip(exits, wanted, strict=True):
            torch.testing.assert_close(model(ids.to(model.device), **options).logits.cpu(), logits, rtol=0, atol=TOLERANCE)


def test_the_stand_in_notices() -> None:
    with devices():
        here, there, beyond = torch.ones(2), torch.ones(2).to("standin:0"), torch.ones(2).to("standin:1")
        for wrong in (
            lambda: there + here,
            lambda: there + beyond,
            lambda: torch.cat([there, beyond]),
            lambda: here[there.long()],
            lambda: nn.Linear(2, 2)(there),
        ):
            with pytest.raises(DeviceMix):
                wrong()
        assert (there + 1 + torch.tensor(1.0)).tolist() == [3, 3]
