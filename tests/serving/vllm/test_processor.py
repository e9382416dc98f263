"""The processor through both of vLLM's interfaces, on a real model's readouts; V2 with vLLM's own types, made by hand."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor.loader import (
    build_custom_logits_processors,
    build_custom_logits_processors_params_validator,
)

from loopcd.decoding import rules
from loopcd.serving.vllm.model import model_of
from loopcd.serving.vllm.processor import LoopCDProcessor

GREEDY = SamplingParams()
ONE = SamplingParams(extra_args={"loopcd_amateur_loop": 1, "loopcd_strength": 0.5})
THREE = SamplingParams(extra_args={"loopcd_amateur_loop": 3, "loopcd_strength": 0.9, "loopcd_plausibility": 0.02})
SETTINGS = {id(ONE): (1, 0.5, 0.1), id(THREE): (3, 0.9, 0.02)}


@pytest.fixture(scope="module")
def config(subject: Callable[[str], Any]) -> Iterator[Any]:
    """The configuration of a running engine."""
    with subject("ouro").engine() as engine:
        yield engine.llm_engine.vllm_config


@pytest.fixture
def logits(config: Any) -> Tensor:
    """Of five rows; the model keeps what its amateurs read out there."""
    model = model_of(config)
    model.expect(model.served.amateur_loops, [], some_rows=False)
    width = model.config.hidden_size * (1 + len(model.served.amateur_loops))
    hidden = torch.randn(5, width, generator=torch.Generator().manual_seed(0))
    return model.compute_logits(hidden).float().clone()  # pyright: ignore[reportOptionalMemberAccess]


def wanted(config: Any, logits: Tensor, params: list[SamplingParams]) -> Tensor:
    """Row by row, straight from the formula."""
    model, rows = model_of(config), []
    for row, each in enumerate(params):
        if id(each) not in SETTINGS:
            rows.append(logits[row])
            continue
        loop, strength, plausibility = SETTINGS[id(each)]
        place = model.served.amateur_loops.index(loop)
        amateur = model.amateur_logits(torch.tensor([row]), torch.tensor([place]))[0].float()
        rows.append(rules.contrast(logits[row], amateur, strength, rules.plausible(logits[row], plausibility)))
    return torch.stack(rows)


def context(slots: list[int]) -> LogitsContext:
    mapping, rows = torch.tensor(slots), len(slots)
    return LogitsContext(
        expanded_idx_mapping=mapping,
        idx_mapping=mapping,
        idx_mapping_np=np.array(slots),
        expanded_local_pos=torch.zeros(rows, dtype=torch.long),
        input_ids=torch.zeros(rows, dtype=torch.long),
        pos=torch.zeros(rows, dtype=torch.long),
        seq_lens_upper_bound_np=np.ones(rows, dtype=np.int64),
    )


def v2(config: Any) -> Any:
    """As vLLM's V2 runner makes it: found by the entry point, checked to be of the V2 interface."""
    states = dict.fromkeys(["device", "max_num_reqs", "vocab_size", "all_token_ids", "prompt_len", "prefill_len", "total_len"])
    (processor,) = build_custom_logits_processors(config, SimpleNamespace(**states), False)  # pyright: ignore
    assert type(processor) is LoopCDProcessor
    return processor


def test_v2_goes_by_slots(config: Any, logits: Tensor) -> None:
    processor, slots = v2(config), [7, 2, 9, 0, 4]
    params = [ONE, GREEDY, THREE, GREEDY, ONE]
    assert [processor.add_request(slot, each) for slot, each in zip(slots, params, strict=True)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    processor.apply_staged_writes()
    expected = wanted(config, logits, params)
    torch.testing.assert_close(processor.apply(logits.clone(), context(slots)), expected)
    # the next step has the rows in another order, and one request is gone
    expected = wanted(config, logits, [params[4], params[0], params[2], GREEDY, GREEDY])
    torch.testing.assert_close(processor.apply(logits.clone(), context([4, 7, 9, 2, 0])), expected)
    processor.add_request(7, GREEDY)  # a slot's new owner is not taken for its last
    expected = wanted(config, logits, [GREEDY, GREEDY, THREE, GREEDY, ONE])
    torch.testing.assert_close(processor.apply(logits.clone(), context(slots)), expected)


def test_v2_maps_the_rows_of_drafted_tokens(config: Any, logits: Tensor) -> None:
    """Three requests with five rows: the first and the last have drafted tokens."""
    processor, slots = v2(config), [7, 2, 9]
    for slot, each in zip(slots, [ONE, GREEDY, THREE], strict=True):
        processor.add_request(slot, each)
    of_rows = [7, 7, 2, 9, 9]
    drafted = replace(context(slots), expanded_idx_mapping=torch.tensor(of_rows))
    expected = wanted(config, logits, [ONE, ONE, GREEDY, THREE, THREE])
    torch.testing.assert_close(processor.apply(logits.clone(), drafted), expected)


def test_v1_goes_by_rows(config: Any, logits: Tensor) -> None:
    processor = LoopCDProcessor(config, torch.device("cpu"), False)
    params = [ONE, GREEDY, THREE, GREEDY, ONE]
    added = [(row, each, None, []) for row, each in enumerate(params)]
    processor.update_state(BatchUpdate(batch_size=5, removed=[], added=added, moved=[]))
    torch.testing.assert_close(processor.apply(logits.clone()), wanted(config, logits, params))
    processor.update_state(None)
    torch.testing.assert_close(processor.apply(logits.clone()), wanted(config, logits, params))
    moves = [(4, 0, MoveDirectionality.UNIDIRECTIONAL), (1, 2, MoveDirectionality.SWAP)]
    processor.update_state(BatchUpdate(batch_size=4, removed=[0], added=[], moved=moves))
    moved = [ONE, THREE, GREEDY, GREEDY]
    torch.testing.assert_close(processor.apply(logits[:4].clone()), wanted(config, logits[:4], moved))


def test_greedy_batches_are_left_alone(config: Any, logits: Tensor) -> None:
    processor = v2(config)
    assert not processor.add_request(0, GREEDY) and not processor.is_argmax_invariant()
    assert processor.apply(logits, context([0])) is logits


def test_what_a_grammar_forbade_stays_forbidden(config: Any, logits: Tensor) -> None:
    processor = LoopCDProcessor(config, torch.device("cpu"), False)
    processor.update_state(BatchUpdate(5, [], [(row, [ONE, THREE][row % 2], None, []) for row in range(5)], []))
    best = logits.argmax(dim=-1)
    logits[torch.arange(5), best] = -torch.inf
    logits[4] = -torch.inf  # nothing at all is allowed
    scores = processor.apply(logits.clone())
    assert bool((scores[torch.arange(5), best] == -torch.inf).all())
    assert bool(scores[:4].isfinite().any(dim=-1).all()) and not bool(scores.isnan().any())


def test_v2_checks_requests_where_they_arrive(config: Any) -> None:
    validate = build_custom_logits_processors_params_validator(None)
    validate(ONE)
    validate(GREEDY)
    with pytest.raises(VLLMValidationError, match="loopcd_strength=-1"):
        validate(SamplingParams(extra_args={"loopcd_strength": -1}))
