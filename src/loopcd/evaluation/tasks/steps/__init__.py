"""`steps`: grade-school word problems with worked answers, made by seeded code. See docs/steps.md."""

from loopcd.evaluation.tasks.steps.families import Knobs
from loopcd.evaluation.tasks.steps.generator import SPLITS, VARIANTS, problem_at, problems, related, split_of, stream
from loopcd.evaluation.tasks.steps.problem import Cue, Problem

__all__ = ["SPLITS", "VARIANTS", "Cue", "Knobs", "Problem", "problem_at", "problems", "related", "split_of", "stream"]
