"""One text that runs ahead of itself in a wave, token by token."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from loopcd.decoding.draft import DraftReport, SelfDraft
from loopcd.decoding.flight import Row
from loopcd.decoding.loop import Job, Step, steps
from loopcd.decoding.ticks import Ticks
from loopcd.decoding.wave import wave_pace
from loopcd.models.places import unseated
from loopcd.models.stages import checked_loops

if TYPE_CHECKING:
    from loopcd.decoding.methods import Method


def waves(draft: SelfDraft, job: Job) -> bool:
    """Whether the one text of this job runs ahead of itself in a wave, rather than in rounds."""
    cache, model = job.cache, job.model
    padded = job.attention_mask is not None and not bool(job.attention_mask.all())
    if draft.wave is False or len(job.input_ids) > 1 or padded or job.chunk is not None or job.sampling.keeps:
        return False
    if cache is not None and (cache.length >= job.input_ids.shape[1] or cache.valid is not None or cache.reach or cache.behind):
        return False
    if len({weight.device for weight in model.parameters()}) > 1:
        return False
    num_loops = checked_loops(job.num_loops, model.num_loops)
    if draft.wave is None and (num_loops == 1 or draft.loops is not None):
        return False
    plan = draft.plan(model, num_loops, waves=draft.wave)
    return draft.wave is True or (plan is not None and plan.wave)


def wave_steps(method: "Method", job: Job) -> Iterator[Step]:
    """As `loop.steps`, for one text that runs ahead of itself."""
    draft, num_loops = method.draft, checked_loops(job.num_loops, job.model.num_loops)
    plan = None if draft is None or not draft.fallback else draft.plan(job.model, num_loops, waves=True)
    if plan is not None and job.limit is not None:
        pace, report = wave_pace(job.model, num_loops, plan, 1), DraftReport(plan.loops, plan.length)
        longest = job.limit - job.input_ids.shape[1]
        if pace.wait >= longest:  # waves rest all along, and the plain loop spends less between loops
            for step in steps(method, job):
                report.plain += 1
                pace.plain()
                yield replace(step, drafts=report)
            return
    ticks, row = Ticks(job.model, 1, job.num_loops), Row(method, job)
    ticks.add(row)
    given = read = 0  # tokens, and the ticks that the prompt took
    held = 0 if job.cache is None else job.cache.length
    try:
        while ticks.busy:
            ticks.step()
            if row.error is not None:
                raise row.error
            assert row.wave is not None
            read = ticks.ticks if not row.tokens else read
            row.wave.report.ticks = ticks.ticks - read
            while given < len(row.tokens):
                given, held = given + 1, job.input_ids.shape[1] + given
                yield row.step(given - 1)
    finally:
        if job.cache is not None:  # somebody may go on from it: from what was read of the tokens that were given
            job.cache.crop(min(held - job.cache.length, 0))
            unseated(job.cache)
