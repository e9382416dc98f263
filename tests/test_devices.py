"""No tensors of two devices meet: every method, family, exit, draft, trace and stream, on one device and on two; and what a
device has to do for a token, and how often it is waited for.

The devices are stand-ins (tests/standin.py). What is made there is what is made on the CPU.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from torch import nn

import loopcd
from decoding.runs import run
from evaluation.fakes import steps_with
from loopcd import MTI, EarlyExit, Greedy, LoopCD, NoiseCD, SelfDraft, SelfEval
from loopcd.bench.exact import bench_exact
from loopcd.bench.speeds import bench_methods
from loopcd.bench.subjects import Subject
from loopcd.bench.timing import Stopwatch
from loopcd.evaluation.engine import LocalEngine
from loopcd.evaluation.evaluate import evaluate
from loopcd.evaluation.plan import RunPlan, parse_methods
from loopcd.evaluation.task import Item
from loopcd.models import LoopedModel, layout, loop_logits
from loopcd.models.layout import lay_out
from loopcd.tracing.live import LiveTracer
from standin import DeviceMix, counting, devices, placed, split
from tools import LATER, TOLERANCE, byte_tokenizer, left_padded, random_ids, tiny_hrm, tiny_huginn, tiny_ouro

TOKENIZER = byte_tokenizer()
# each with a second layer, for the other device
MAKERS = {"huginn": tiny_huginn, "ouro": tiny_ouro, "hrm": partial(tiny_hrm, L_cycles=1)}
METHODS: dict[str, Any] = {
    "greedy": Greedy(),
    "loopcd": LoopCD(),
    "own coda": LoopCD(coda="own"),
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
    "wave": LoopCD(1, draft=SelfDraft(2, wave=True, fallback=False)),
}
# which modules are on the second device: every second layer, or all but the layers
SPLITS: dict[str, Callable[[str], bool] | None] = {
    "one": None,
    "layers apart": lambda name: name.endswith((".1", "coda.0", ".norm", "final_norm")),
    "ends apart": lambda name: name.endswith(("wte", "embed_tokens", "lm_head", "ln_f", "adapter", "early_exit_gate")),
}


def placing(name: str) -> Callable[[LoopedModel], LoopedModel]:
    second = SPLITS[name]
    return lambda model: placed(model, "standin:0" if second is None else split(model, second))


@pytest.fixture(params=list(SPLITS))
def place(request: pytest.FixtureRequest) -> Callable[[LoopedModel], LoopedModel]:
    return placing(request.param)


@cache
def on_the_cpu(name: str, family: str) -> list[list[int]]:
    ids, mask, options = asked(name)
    return MAKERS[family]().generate(ids, attention_mask=mask, **options).tolist()


def asked(name: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Two rows, one padded, and what `generate` is called with."""
    ids, mask = left_padded([random_ids(1, 7)[0], random_ids(1, 5, seed=1)[0]])
    options = {
        "custom_generate": METHODS[name],
        "max_new_tokens": 3,
        "num_loops": 3,
        "do_sample": False,
        "tokenizer": TOKENIZER,
    }
    return ids, mask, options


# a Latin square: each method meets each family and each split once, each family each split; the gate, which one has, all
SQUARE = [
    (name, family, where)
    for at, name in enumerate(METHODS)
    for (row, family), (column, where) in product(enumerate(MAKERS), enumerate(SPLITS))
    if name == "gate" or (at + row + column) % 3 == 0
]


@pytest.mark.parametrize(("name", "family", "where"), SQUARE)
def test_methods(name: str, family: str, where: str) -> None:
    place = placing(where)
    if name == "gate" and family != "ouro":  # the others have none, wherever they are
        with devices(), pytest.raises(ValueError, match="gate"):
            place(MAKERS[family]()).generate(random_ids(1, 5).to("standin:0"), **asked(name)[2])
        return
    wanted, (ids, mask, options) = on_the_cpu(name, family), asked(name)
    with devices():
        model = place(MAKERS[family]())
        there, its_mask = ids.to(model.device), mask.to(model.device)
        made = model.generate(there, attention_mask=its_mask, **options)
        assert made.device.type == "standin"
        assert made.tolist() == wanted
        if where == "one":
            assert model.generate(there[:1], **options).tolist() == wanted[:1]


@pytest.mark.parametrize(("family", "where"), list(zip(MAKERS, SPLITS, strict=True)))
def test_texts_traces_and_streams(family: str, where: str) -> None:
    place = placing(where)
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


@pytest.mark.parametrize(("family", "where"), list(zip(MAKERS, SPLITS, strict=True)))
def test_the_plain_ways(family: str, where: str) -> None:
    place = placing(where)
    ids, plain = random_ids(2, 6), MAKERS[family]()
    logits, wanted = loop_logits(plain, ids), plain.generate(ids, max_new_tokens=4, do_sample=False).tolist()
    with devices():
        model = place(MAKERS[family]())
        there = ids.to(model.device)
        torch.testing.assert_close(loop_logits(model, there).cpu(), logits, rtol=0, atol=TOLERANCE)
        assert model.generate(there, do_sample=True, top_k=5, max_new_tokens=2).shape == (2, 8)
        assert model.generate(there, max_new_tokens=4, do_sample=False, prefill_chunk_size=2).tolist() == wanted


@pytest.mark.parametrize(("family", "where"), [("ouro", "one"), ("huginn", "layers apart"), ("ouro", "ends apart")])
def test_answers_that_judge_themselves(family: str, where: str) -> None:
    from decoding.labels import labelled_model, labelled_tokenizer

    asked = (labelled_tokenizer(), ["one", "or two"], SelfEval(2))
    wanted = loopcd.generate(labelled_model(family), *asked, max_new_tokens=3)
    with devices():
        assert loopcd.generate(placing(where)(labelled_model(family)), *asked, max_new_tokens=3) == wanted


@pytest.mark.parametrize("where", ["layers apart", "ends apart"])
def test_most_rows_stay_where_others_leave_a_pass_of_many_loops(where: str) -> None:
    """A device is asked after every fourth loop, so that with few loops nobody leaves before the last."""
    asked = (TOKENIZER, ["one", "or two", "three of them here", "four"], Greedy(exit=EarlyExit(0.2)))
    make = partial(tiny_ouro, total_ut_steps=12)
    wanted = loopcd.generate(make(), *asked, max_new_tokens=6)
    with devices():
        assert loopcd.generate(placing(where)(make()), *asked, max_new_tokens=6) == wanted


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


EXITS = {
    "nobody leaves": EarlyExit(0.0),
    "latent": EarlyExit(0.4, 1),
    "skipped": EarlyExit(0.4, 1, exited="skip"),
    "gate": EarlyExit(0.7, criterion="gate"),
    "gate, skipped": EarlyExit(0.7, criterion="gate", exited="skip"),
}


@pytest.mark.parametrize(("name", "rows"), [*((name, 3) for name in EXITS), ("latent", 1), ("gate", 1)])
def test_early_exit_waits_once_in_four_loops_and_leaves_where_it_did(name: str, rows: int) -> None:
    rule, loops, ids = EXITS[name], 8, random_ids(rows, 3)
    if rule.criterion == "gate":
        make = lambda: tiny_ouro(total_ut_steps=loops, num_hidden_layers=1)  # noqa: E731
    else:
        make = lambda: tiny_huginn(mean_recurrence=loops, n_layers_in_recurrent_block=1)  # noqa: E731
    for method in (Greedy(exit=rule), LoopCD(1, exit=EarlyExit(rule.threshold, 2, rule.criterion, rule.exited))):
        here = run(make(), ids, method, count=6)
        with devices():
            model = placed(make(), "standin:0")
            with counting() as few:
                run(model, ids.to(model.device), method, count=2)
            with counting() as many:
                there = run(model, ids.to(model.device), method, count=6)
        assert there.sequences.tolist() == here.sequences.tolist() and there.loops.tolist() == here.loops.tolist()
        waits = (sum(many.waits.values()) - sum(few.waits.values())) / 4
        assert waits <= loops / 4 + (1 if isinstance(method, Greedy) else 2), many.waits
        if name != "nobody leaves":  # or the test would show little
            assert len({loop for row in here.loops.tolist() for loop in row}) > 1


def test_a_token_of_huginns_shape_takes_half_of_the_kernels_that_it_took() -> None:
    """4,469 once, in 16 bits; as many kernels for a narrow model as for a wide one."""
    layers = {"n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 4, "n_layers_in_coda": 2, "mean_recurrence": 32}
    with devices():
        model = placed(tiny_huginn(**layers, n_embd=8, n_heads=2, intermediate_size=8).bfloat16(), "standin:0")
        ids = random_ids(1, 2).to(model.device)
        with counting() as few:
            run(model, ids, Greedy(), count=2)
        with counting() as many:
            run(model, ids, Greedy(), count=3)
    assert sum(many.kernels.values()) - sum(few.kernels.values()) <= 4469 / 2, many.kernels - few.kernels


@torch.no_grad()
def test_fewer_kernels_compute_the_same_and_hooks_see_what_layers_made() -> None:
    ids, seen = random_ids(2, 6), list[torch.Tensor]()
    exact = tiny_huginn().double()(ids).logits
    rounded = tiny_huginn().bfloat16()(ids).logits
    plain = tiny_huginn()
    plain.transformer["core_block"][0].register_forward_hook(lambda *given: seen.append(given[2]))  # pyright: ignore
    plain(ids)
    with devices():
        model = placed(tiny_huginn().bfloat16(), "standin:0")
        error = (model(ids.to(model.device)).logits.cpu() - exact).abs().max()
        assert error <= 1.5 * (rounded - exact).abs().max()  # not less right than what the CPU rounds
        model, there = placed(tiny_huginn(), "standin:0"), list[torch.Tensor]()
        torch.testing.assert_close(model(ids.to(model.device)).logits.cpu(), exact.float(), rtol=0, atol=TOLERANCE)
        model.transformer["core_block"][0].register_forward_hook(lambda *given: there.append(given[2]))  # pyright: ignore
        model(ids.to(model.device))
        for mine, other in zip(there, seen, strict=True):
            torch.testing.assert_close(mine.cpu(), other, rtol=0, atol=TOLERANCE)
        embeddings = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0)).to(model.device)
        before = embeddings.clone()
        model(inputs_embeds=embeddings)
        assert torch.equal(embeddings.cpu(), before.cpu())


@pytest.mark.parametrize("family", ["huginn", "ouro"])
def test_weights_that_are_kept_elsewhere_until_they_are_used(family: str) -> None:
    asked = (TOKENIZER, ["one and", "two"], LoopCD(1))
    wanted = loopcd.generate(MAKERS[family](), *asked, max_new_tokens=4)
    offloaded = cpu_offload(MAKERS[family](), execution_device=torch.device("cpu"))
    assert offloaded.device == torch.device("cpu") and {weight.device.type for weight in offloaded.parameters()} == {"meta"}
    assert loopcd.generate(offloaded, *asked, max_new_tokens=4) == wanted


def replica(module: nn.Module) -> Any:
    """A copy as nn.DataParallel makes it: what were parameters are plain tensors."""
    made = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        made._modules[name] = None if child is None else replica(child)
    for name, weight in module._parameters.items():
        if weight is None:
            made._parameters[name] = None
        else:
            setattr(made, name, weight.data.clone())
    return made


@pytest.mark.parametrize("family", [*MAKERS, *LATER])
def test_the_copies_of_data_parallel(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SMALLEST", 1)
    ids, model = random_ids(2, 5), {**MAKERS, **LATER}[family]()
    wanted = model(ids).logits.detach()
    lay_out(model)
    with devices():
        copied = replica(placed(model, "standin:0"))
        torch.testing.assert_close(copied(ids.to("standin:0")).logits.cpu(), wanted, rtol=0, atol=TOLERANCE)


def test_a_layer_that_is_no_weight() -> None:
    class Doubled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.inner(x)

    def wrapped() -> LoopedModel:
        model: Any = tiny_huginn()
        model.transformer["core_block"][0].mlp.proj = Doubled(model.transformer["core_block"][0].mlp.proj)
        return model

    ids = random_ids(1, 5)
    wanted = wrapped()(ids).logits.detach()
    with devices():
        model = placed(wrapped(), "standin:0")
        torch.testing.assert_close(model(ids.to(model.device)).logits.cpu(), wanted, rtol=0, atol=TOLERANCE)


def test_an_evaluation_and_the_benchmark(tmp_path: Path) -> None:
    """What `make demo` and `loopcd bench` do with a model that is elsewhere."""
    items = [Item(f"short/{number}", "ab" * (1 + number), 0) for number in range(3)]
    task = steps_with(items, name="short", max_new_tokens=4)

    def evaluated(model: LoopedModel, name: str) -> dict[str, Any]:
        engine, plan = LocalEngine(model, byte_tokenizer(), "tiny", batch_size=2), RunPlan(parse_methods("greedy,loopcd"))
        return evaluate(task, engine, plan, tmp_path / name).results.as_json()

    small = {"n_layers_in_recurrent_block": 1, "mean_recurrence": 3}
    wanted = evaluated(tiny_huginn(**small), "here")
    with devices():
        model = placed(tiny_huginn(**small), "standin:0")
        assert evaluated(model, "there") == wanted
        subject = Subject("tiny", model, None, 4)
        ratios = bench_methods([subject], [2], prompts=2, rounds=1, say=lambda _: None)["ratios"]["tiny"]["2"]
        assert {"loopcd/greedy", "loopcd+draft/greedy", "exit+loopcd/greedy"} <= set(ratios)
        exact = bench_exact([subject], [2], prompts=2, say=lambda _: None)["tiny"]["2"]["loopcd"]
        assert all(each["identical_texts"] == each["identical_alone"] == 2 for each in exact.values())


def test_times_are_taken_when_a_gpu_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append("before" if not waits else "after"))
    with Stopwatch().running():
        assert waits == ["before"]
    assert waits == ["before", "after"]


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
