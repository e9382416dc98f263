"""How often a step waits for the device, what 16 bits may decide, and what flash attention cannot serve."""

from typing import Any

import pytest
import torch

import loopcd
from decoding.runs import run
from loopcd import EarlyExit, Greedy, LoopCD, SelfDraft
from loopcd.decoding import rules
from loopcd.decoding.exits import LOOKED_AFTER
from loopcd.decoding.reader import Reader
from loopcd.decoding.ticks import Ticks
from standin import counting, devices, placed
from tools import MAKERS, random_ids, tiny_huginn, tiny_ouro

DRAFT = SelfDraft(2, 4, fallback=False)


def waits(method: Any, rows: int) -> float:
    """Of a step, plain ones between drafting rounds counted too: those of a longer text less those of a shorter one."""
    with devices():
        model, ids = placed(tiny_huginn().bfloat16(), "standin:0"), random_ids(rows, 5).to("standin:0")
        found = []
        for count in (3, 9):
            with counting() as counts:
                made = run(model, ids, method, count=count)
            steps = count if made.drafts is None else made.drafts.rounds + made.drafts.plain
            found.append((sum(counts.waits.values()), steps))
    (few, short), (many, long) = found
    return (many - few) / (long - short)


@pytest.mark.parametrize(
    ("method", "most", "rows"),
    [
        (Greedy(), 1, 1),
        (Greedy(), 1, 4),
        (LoopCD(1, 0.9, plausibility=0.9999), 2, 4),  # next to nothing is contested
        (LoopCD(1, 0.9, plausibility=0.5), 3, 1),
        (LoopCD(1, 0.9, plausibility=0.5), 3, 4),
        (Greedy(draft=DRAFT), 3, 4),
        (LoopCD(1, 0.9, plausibility=0.9, draft=DRAFT), 3, 1),
        (LoopCD(1, 0.9, plausibility=0.001), 3, 4),  # nearly every token is plausible
        (LoopCD(1, 0.9, plausibility=0.001, draft=DRAFT), 3, 4),
    ],
)
def test_a_step_waits_for_the_device_no_more_than_it_must(method: Any, most: int, rows: int) -> None:
    assert waits(method, rows) <= most


@pytest.mark.parametrize("name", ["latent", "skipped", "gate", "loopcd"])
def test_texts_at_their_own_loops_are_looked_at_every_fourth_tick(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, loops, at = name == "gate", 8, list[int]()
    make = (lambda: tiny_ouro(total_ut_steps=loops)) if gate else (lambda: tiny_huginn(mean_recurrence=loops))
    rule = EarlyExit(0.7, 2, "gate") if gate else EarlyExit(0.4, 2, exited="skip" if name == "skipped" else "last")
    method = LoopCD(1, 0.9, 0.1, exit=rule) if name == "loopcd" else Greedy(exit=rule)
    asked = [random_ids(1, 3 + seed, seed=seed)[0].tolist() for seed in range(4)]
    here = loopcd.generate(make(), None, asked, method, max_new_tokens=9, batch_size=3)
    look = Ticks._look
    monkeypatch.setattr(Ticks, "_look", lambda ticks: at.append(ticks.ticks) or look(ticks))
    with devices(), counting() as counts:
        there = loopcd.generate(placed(make(), "standin:0"), None, asked, method, max_new_tokens=9, batch_size=3)
    assert [(each.token_ids, each.loops) for each in there] == [(each.token_ids, each.loops) for each in here]
    assert len({loop for each in here for loop in each.loops}) > 1  # or the test would show little
    late = sum(loop > loops - LOOKED_AFTER for each in here for loop in each.loops)  # what ends has to be looked at
    assert sum(each % LOOKED_AFTER > 0 for each in at) <= late
    assert not [where for where in counts.waits if "copy to the device at models/places.py" in where]


@pytest.mark.parametrize("autocast", [False, True])
@torch.no_grad()
def test_a_contrast_in_16_bits_is_decided_in_32(autocast: bool) -> None:
    """Large logits of a bfloat16 head are equal by the dozen; what is compared is computed again from the hidden states."""
    model = tiny_ouro() if autocast else tiny_ouro().bfloat16()
    model.lm_head.weight.mul_(6)
    equal = 0
    for seed in range(12):
        ids = random_ids(1, 6, seed=seed)
        reader, parked = Reader(model), {}
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            reading, _ = reader.read(ids, watch=lambda state, kept=parked: kept.update({state.loop: state.hidden[:, -1]}))
            found = run(model, ids, LoopCD(1, 0.9, 0.01), count=1, output_scores=True)
        weight = model.lm_head.weight.float()
        expert, amateur = (hidden.float() @ weight.T for hidden in (reading.hidden, parked[1]))
        wanted = rules.contrast(expert, amateur, 0.9, rules.plausible(expert, 0.01))
        torch.testing.assert_close(found.scores[0], wanted, rtol=0, atol=1e-3)
        assert int(found.sequences[0, -1]) == int(wanted.argmax())
        rounded = reading.logits.topk(8).values[0]
        equal += len(rounded) - len(set(rounded.tolist()))
    assert equal > 0  # or the test would show nothing


@torch.no_grad()
def test_gates_are_judged_in_32_bits() -> None:
    """A cumulated probability of 0.999 is 1.0 in bfloat16."""
    model = tiny_ouro().bfloat16()
    gate: Any = model.model.early_exit_gate
    gate.weight.zero_()
    gate.bias.fill_(4.6)  # 0.99 a loop: 0.99, then 0.9999
    made = run(model, random_ids(1, 4), Greedy(exit=EarlyExit(0.99999, criterion="gate")), count=2)
    assert made.loops.tolist() == [[3, 3]]


def test_what_flash_attention_cannot_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MAKERS["ouro"]()
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match="exited=\"skip\" needs masks that attn_implementation='flash_attention_2'"):
        loopcd.generate(model, None, [[1, 2]], Greedy(exit=EarlyExit(exited="skip")))
    with pytest.raises(ValueError, match="cannot serve rows of different lengths, which drafting in a batch makes"):
        loopcd.generate(model, None, [[1, 2], [3]], Greedy(draft=DRAFT), max_new_tokens=4)
