"""Tasks that lm-eval defines: its prompts, its few-shot draws, its filters and its metrics, on our runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loopcd.decoding.texts import trim
from loopcd.evaluation.task import Grades, Item
from loopcd.evaluation.tasks.questions import QuestionTask

FEWSHOT_SEED = 1234  # lm-eval's own
LONGEST_ANSWER = 1000  # characters of an extracted answer
Records = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class HarnessTask(QuestionTask):
    """One of lm-eval's tasks. `readings` says which (filter, metric) of lm-eval each of our metrics is."""

    readings: Mapping[str, tuple[str, str]]
    definition: Any = field(repr=False)  # lm_eval's ConfigurableTask
    template: str | None = None  # where the prompts are not lm-eval's own

    def grade(self, items: Sequence[Item], texts: Sequence[str]) -> list[Grades]:
        from lm_eval.api.instance import Instance

        made = [
            Instance("generate_until", item.document, (item.prompt, {}), 0, resps=[trim(text, self.stop)[0]])
            for item, text in zip(items, texts, strict=True)
        ]
        if not made:
            return []
        self.definition._instances = made
        self.definition.apply_filters()
        return [self._grades(instance) for instance in made]

    def _grades(self, instance: Any) -> Grades:
        scores: dict[str, dict[str, Any]] = {}
        for name in sorted({name for name, _ in self.readings.values()}):
            answer = instance.filtered_resps[name]
            # lm-eval's exact match takes time quadratic in the answer; no gold answer is that long
            endless = name != "none" and len(answer) > LONGEST_ANSWER
            scores[name] = {} if endless else self.definition.process_results(instance.doc, [answer])
        return {metric: bool(scores[name].get(key, 0)) for metric, (name, key) in self.readings.items()}

    def describe(self) -> dict[str, Any]:
        own = self.definition.config.doc_to_text
        return {
            "grader": f"lm-eval {version('lm-eval')}, task {self.definition.config.task} version {self.definition.VERSION}"
            + (f", math-verify {version('math-verify')}" if "math_verify" in self.definition.aggregation() else ""),
            "readings": {metric: f"{key},{name}" for metric, (name, key) in self.readings.items()},
            "data": [file.describe() for file in self.files],
            "split": self.split,
            "shots": self.shots,
            **({"fewshot_seed": FEWSHOT_SEED} if self.template is None else {}),
            "template": self.template or (own if isinstance(own, str) else "lm-eval's doc_to_text"),
        }


def read_yaml(yaml: str) -> dict[str, Any]:
    """What a file of lm-eval's (below its folder of tasks) says."""
    try:
        import lm_eval.tasks
        from lm_eval.tasks._yaml_loader import load_yaml
    except ImportError as error:
        raise ValueError(f"this task needs lm-eval ({error}): pip install 'loopcd[eval]'") from error
    return load_yaml(Path(str(lm_eval.tasks.__file__)).parent / yaml)


def shipped_examples(yaml: str, shots: int) -> list[dict[str, str]]:
    """The first worked examples that lm-eval ships with the task of that file."""
    samples: Any = read_yaml(yaml)["fewshot_config"]["samples"]  # a list, or a function that gives it
    return samples[:shots] if isinstance(samples, list) else samples()[:shots]


def load_definition(yaml: str, shots: int, splits: Mapping[str, Records]) -> Any:
    """lm-eval's task of that file on these records instead of the hub's."""
    config = read_yaml(yaml)
    import datasets
    from lm_eval.api.task import ConfigurableTask

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it explains its options at length
    tables = {name: datasets.Dataset.from_list(list(records)) for name, records in splits.items()}
    config.update(num_fewshot=shots, custom_dataset=lambda **_: tables)
    for structural in ("tag", "group", "task_list"):
        config.pop(structural, None)
    hidden = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with explained():
            definition = ConfigurableTask(config=config)
            definition.set_fewshot_seed(FEWSHOT_SEED)
            return definition
    finally:
        if hidden:
            datasets.enable_progress_bars()


def documents_of(definition: Any) -> list[dict[str, Any]]:
    """The test documents, in their order."""
    import datasets

    datasets.disable_progress_bars()
    with explained():
        return [dict(document) for document in definition.test_docs()]


def prompts_of(definition: Any, shots: int) -> list[tuple[dict[str, Any], str]]:
    """(document, prompt) of every test document. The shots follow from one generator, so all are drawn, in order."""
    documents = documents_of(definition)
    with explained():
        return [(document, definition.fewshot_context(document, num_fewshot=shots)) for document in documents]


@contextmanager
def explained() -> Iterator[None]:
    """lm-eval takes a benchmark's records apart without looking whether they are the benchmark's."""
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"lm-eval cannot make its task of these records ({reason}): are they this benchmark's?") from error
