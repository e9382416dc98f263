"""Weights in another order, side by side or not multiplied by torch are the same model: the same numbers, names and files."""

import copy
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import cpu_offload
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

import loopcd
from family import PROPERTIES
from loopcd.models import LoopedModel, layout
from loopcd.models.layout import LaidOutLinear, Layout, by_numpy, by_onednn, by_torch, lay_out, together
from tools import LATER, MAKERS, assert_close, logits_of, random_ids, save_model, tiny_huginn, tiny_ouro

FAMILIES = {**MAKERS, **LATER}
EVERYTHING = Layout(True, by_numpy, by_numpy, by_numpy, by_onednn, by_onednn)


def chosen(monkeypatch: pytest.MonkeyPatch, wanted: Layout) -> None:
    """Every weight is laid out like this, however small."""

    def choose(outputs: int, inputs: int, dtype: torch.dtype, fixed: bool, threads: int, scratch: int) -> Layout:
        return replace(wanted, columns=wanted.columns and not fixed)

    monkeypatch.setattr(layout, "SMALLEST", 1)
    monkeypatch.setattr(layout, "timed", choose)


@pytest.fixture(
    params=[EVERYTHING, Layout(columns=True), Layout(few=by_onednn, several=by_numpy)], ids=["all", "columns", "rows"]
)
def wanted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Layout:
    chosen(monkeypatch, request.param)
    return request.param


@pytest.mark.parametrize("name", FAMILIES)
def test_same_numbers_names_and_files(name: str, wanted: Layout, tmp_path: Path) -> None:
    plain = FAMILIES[name]()
    model = copy.deepcopy(plain)
    lay_out(model)
    ids = random_ids(2, 20)
    assert_close(logits_of(model, ids), logits_of(plain, ids))
    before, after = plain.state_dict(), model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) and before[key].shape == after[key].shape for key in before)
    model.save_pretrained(tmp_path / "laid")
    plain.save_pretrained(tmp_path / "plain")
    files = [sorted((tmp_path / kind).glob("*.safetensors")) for kind in ("laid", "plain")]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]


@pytest.mark.parametrize("check", PROPERTIES)
def test_family_properties_hold(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One family after the other: what the products give, the test above has for all."""
    name = ("huginn", "ouro", "parcae")[list(PROPERTIES).index(check) % 3]
    chosen(monkeypatch, EVERYTHING)
    model = FAMILIES[name]()
    lay_out(model)
    PROPERTIES[check](model)


def linears(model: LoopedModel) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def test_load_lays_out_unless_told_not_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen(monkeypatch, EVERYTHING)
    folder = save_model(tmp_path / "model", tiny_huginn(tie_embeddings=True, tie_word_embeddings=True))
    model, _ = loopcd.load(folder, device="cpu")
    inner = [each for each in linears(model) if each is not model.lm_head]
    assert all(isinstance(each, LaidOutLinear) and each.weight.stride(0) == 1 for each in inner)
    # the head's rows are looked up one by one: it keeps its order, and stays tied
    assert model.lm_head.weight.is_contiguous() and model.lm_head.weight is model.get_input_embeddings().weight
    plain, _ = loopcd.load(folder, device="cpu", layout=False)
    assert all(type(each) is nn.Linear and each.weight.is_contiguous() for each in linears(plain))


def test_a_joined_weight_that_is_kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As accelerate keeps it until it is used: it is not asked whether it is the joined one."""
    chosen(monkeypatch, EVERYTHING)
    model, ids = tiny_ouro(), random_ids(1, 4)
    wanted = logits_of(model, ids)
    lay_out(model)
    offloaded: Any = cpu_offload(model, execution_device=torch.device("cpu"))
    assert_close(logits_of(offloaded, ids), wanted)


def test_saved_as_transformers_takes_its_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also those that are given by their places."""
    chosen(monkeypatch, EVERYTHING)
    model, ids = tiny_ouro(), random_ids(1, 4)
    lay_out(model)
    for number, weights in enumerate((None, model.state_dict())):
        model.save_pretrained(tmp_path / str(number), True, weights)
        assert_close(logits_of(loopcd.load(tmp_path / str(number))[0], ids), logits_of(model, ids))


def test_joined_weights_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, Layout(columns=True))
    model = tiny_ouro()
    lay_out(model)
    attention: Any = model.model.layers[0].self_attn
    calls: list[Tensor] = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        calls.append(weight)
        return product(x, weight, bias)

    product = F.linear
    monkeypatch.setattr(F, "linear", counted)
    x = torch.randn(1, 3, 32)
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    with torch.no_grad():
        found = together(x, *parts)
    assert len(calls) == 1 and calls[0].shape[0] == sum(part.out_features for part in parts)
    assert_close(found, torch.cat([part(x) for part in parts], dim=-1))


def test_a_changed_layer_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined weights are left alone where a layer was replaced, hooked, moved or given another weight or forward."""
    chosen(monkeypatch, EVERYTHING)

    class Adapted(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.weight = base, base.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + 1

    def hooked(mlp: Any) -> None:
        mlp.up_proj.register_forward_hook(lambda module, args, output: output + 1)

    def hooked_everywhere(mlp: Any) -> Any:
        return register_module_forward_hook(lambda module, args, output: output + 1)

    def looked_at_everywhere(mlp: Any) -> Any:
        return register_module_forward_pre_hook(lambda module, args: (args[0] + 1,))  # pyright: ignore[reportArgumentType]

    def forwarded(mlp: Any) -> None:  # as accelerate hooks a module
        mlp.up_proj.forward = lambda x, before=mlp.up_proj.forward: before(x) + 1

    def adapted(mlp: Any) -> None:
        mlp.up_proj = Adapted(mlp.up_proj)

    def given(mlp: Any) -> None:
        mlp.up_proj.weight = nn.Parameter(torch.randn_like(mlp.up_proj.weight))

    def viewed(mlp: Any) -> None:  # another view that begins at the same address
        mlp.up_proj.weight.data = mlp.up_proj.weight.data[:1].expand(48, -1)

    x = torch.randn(1, 2, 32)
    for change in (hooked, hooked_everywhere, looked_at_everywhere, forwarded, adapted, given, viewed):
        model = tiny_ouro()
        lay_out(model)
        mlp: Any = model.model.layers[0].mlp
        with torch.no_grad():
            before = together(x, mlp.gate_proj, mlp.up_proj)
            handle = change(mlp)
            after = together(x, mlp.gate_proj, mlp.up_proj)
            wanted = torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], dim=-1)
        if handle is not None:
            handle.remove()
        assert_close(after, wanted)
        assert (after - before).abs().max() > 0.5, change.__name__


def test_joined_weights_go_with_the_weights_that_they_were(wanted: Layout, tmp_path: Path) -> None:
    """In another dtype the joined ones would be kept beside those that are used; a hook for a while changes nothing."""
    model = tiny_ouro()
    lay_out(model)
    first: Any = model.model.layers[0].self_attn
    beside, ids = weakref.ref(first.q_proj.beside.weight), random_ids(1, 4)
    handle = first.v_proj.register_forward_hook(lambda module, args, output: None)
    logits_of(model, ids)
    handle.remove()
    model.save_pretrained(tmp_path, state_dict=model.state_dict())
    assert beside() is not None
    model.double()
    logits_of(model, ids)
    assert beside() is None
    assert_close(logits_of(model, ids), logits_of(type(model).from_pretrained(tmp_path).double(), ids))


def test_weights_that_change_in_place_are_seen(wanted: Layout) -> None:
    model, other = tiny_ouro(seed=0), tiny_ouro(seed=1)
    lay_out(model)
    model.load_state_dict(other.state_dict())
    ids = random_ids(1, 8)
    assert_close(logits_of(model, ids), logits_of(other, ids))


def test_training_and_copies_and_dtypes(wanted: Layout) -> None:
    plain = tiny_ouro()
    model = copy.deepcopy(plain)
    lay_out(model)
    ids = random_ids(2, 8)
    for each in (plain, model):
        each(input_ids=ids, labels=ids).loss.backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        if one.grad is not None:
            assert other.grad is not None
            assert_close(other.grad, one.grad)
    assert_close(logits_of(copy.deepcopy(model), ids), logits_of(plain, ids))
    one = ids[:1, :1]  # which numpy may have multiplied, and does not in bfloat16
    narrow = logits_of(copy.deepcopy(model).bfloat16(), one)
    assert_close(narrow, logits_of(copy.deepcopy(plain).bfloat16(), one), 0.1)
    assert_close(logits_of(model.double(), ids).float(), logits_of(plain, ids))


def test_timing_is_kept_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    layout.timed.cache_clear()
    monkeypatch.setattr(layout, "SMALLEST", 32 * 32)
    lay_out(tiny_ouro())
    made = layout.timed.cache_info().misses
    lay_out(tiny_ouro())
    assert made > 0 and layout.timed.cache_info().misses == made
    layout.timed.cache_clear()


def test_built_in_models_are_too_small_to_be_timed_with_few_rows() -> None:
    layout.timed.cache_clear()
    loopcd.load("tiny-ouro", device="cpu")
    assert layout.timed.cache_info().misses == 0


@pytest.mark.parametrize(("onednn", "wanted"), [(0.5, Layout(many=by_onednn)), (0.8, Layout())])
def test_small_weights_change_hands_only_for_many_rows_and_a_clear_gain(
    monkeypatch: pytest.MonkeyPatch, onednn: float, wanted: Layout
) -> None:
    monkeypatch.setattr(layout, "_raced", lambda *_: {by_torch: 1.0, by_onednn: onednn})
    monkeypatch.setattr(layout, "TINY", 1)
    layout.timed_small.cache_clear()
    model = tiny_ouro()
    lay_out(model)
    layout.timed_small.cache_clear()
    head: Any = model.lm_head
    assert getattr(head, "layout", Layout()) == wanted
    asked: list[int] = []
    monkeypatch.setattr(Layout, "product", lambda self, x, weight, bias=None: asked.append(len(x)) or F.linear(x, weight, bias))
    x = torch.randn(layout.MANY, 32)
    assert_close(head(x), F.linear(x, head.weight))
    assert_close(head(x[:-1]), F.linear(x[:-1], head.weight))
    assert asked == ([layout.MANY] if wanted.many is by_onednn else [])


@pytest.mark.parametrize("product", [by_onednn, by_numpy])
@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("outputs", [24, 7])
@pytest.mark.parametrize("columns", [False, True])
def test_whoever_multiplies_the_product_is_the_same(product: layout.Product, rows: int, outputs: int, columns: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(outputs, 16, generator=drawn))
    weight.data = weight.data.t().contiguous().t() if columns else weight.data
    x, bias = torch.randn(1, 5, 16, generator=drawn)[:, :rows], torch.randn(outputs, generator=drawn)
    with torch.no_grad():
        for each in (None, bias):
            assert_close(product(x, weight, each), by_torch(x, weight, each))


@pytest.mark.parametrize("threads", [1, 2])
def test_numpy_multiplies_only_where_it_keeps_to_one_thread(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """It does not ask torch how many threads there may be."""
    raced: list[layout.Product] = []

    def numpy_wins(products: Any, x: Tensor, weights: list[Tensor]) -> dict[layout.Product, float]:
        raced.extend(products)
        return {product: 0.5 if product is by_numpy else 1.0 for product in products}

    monkeypatch.setattr(layout, "threadpool_info", lambda: [{"user_api": "blas", "num_threads": threads}])
    monkeypatch.setattr(layout, "_raced", numpy_wins)
    found = layout.timed.__wrapped__(64, 32, torch.float32, False, 1, 2**16)
    assert (by_numpy in raced) is (threads == 1)
    up_to_several = {found.one, found.two, found.few, found.several}
    assert up_to_several == ({by_numpy} if threads == 1 else {by_torch}) and found.many is by_torch
