"""Tasks that lm-eval defines: its prompts, its few-shot draws, its filters and its metrics, on our runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loopcd.evaluation.apart import apart
from loopcd.evaluation.task import Grades, Item
from loopcd.evaluation.tasks.questions import ReadTask, Records

log = logging.getLogger("loopcd")

FEWSHOT_SEED = 1234  # lm-eval's own
LONGEST_ANSWER = 1000  # characters of an extracted answer
MATH_SECONDS = 60  # for an answer that is computed with; the graders' own limits, of 5 s each, do not reach all of sympy
Readings = Mapping[str, tuple[str, str]]  # which (filter, metric) of lm-eval each of our metrics is


def harness_task(definition: Any, readings: Readings, **others: Any) -> ReadTask:
    """One of lm-eval's tasks. `definition` is its ConfigurableTask."""
    computed = "math_verify" in definition.aggregation()
    math = f", math-verify {version('math-verify')}" if computed else ""
    return ReadTask(
        metrics=tuple(readings),
        read=partial(_read_apart if computed else _read, definition, readings),
        grader=f"lm-eval {version('lm-eval')}, task {definition.config.task} version {definition.VERSION}{math}",
        readings={metric: f"{key},{name}" for metric, (name, key) in readings.items()},
        **others,
    )


def _read(definition: Any, readings: Readings, text: str, item: Item) -> Grades:
    from lm_eval.api.instance import Instance

    made = Instance("generate_until", item.document, (item.prompt, {}), 0, resps=[text])
    definition._instances = [made]
    definition.apply_filters()
    scores: dict[str, dict[str, Any]] = {}
    for name in sorted({name for name, _ in readings.values()}):
        answer = made.filtered_resps[name]
        # lm-eval's exact match takes time quadratic in the answer; no gold answer is that long
        endless = name != "none" and len(answer) > LONGEST_ANSWER
        scores[name] = {} if endless else definition.process_results(made.doc, [answer])
    return {metric: bool(scores[name].get(key, 0)) for metric, (name, key) in readings.items()}


def _read_apart(definition: Any, readings: Readings, text: str, item: Item) -> Grades:
    """Towers of powers and their factorials take hours and all memory: such an answer is wrong."""
    said = apart(partial(_read, definition, readings, text, item), MATH_SECONDS)
    if said is None:
        log.warning("%s: an answer that cannot be computed with in %d s and 4 GiB counts as wrong", item.id, MATH_SECONDS)
        return dict.fromkeys(readings, False)
    return said


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
    with _at_work():
        definition = ConfigurableTask(config=config)
        definition.set_fewshot_seed(FEWSHOT_SEED)
        return definition


def documents_of(definition: Any) -> list[dict[str, Any]]:
    """The test documents, in their order."""
    with _at_work():
        return [dict(document) for document in definition.test_docs()]


def prompts_of(definition: Any, shots: int) -> list[tuple[dict[str, Any], str]]:
    """(document, prompt) of every test document. The shots follow from one generator, so all are drawn, in order."""
    documents = documents_of(definition)
    with _at_work():
        return [(document, definition.fewshot_context(document, num_fewshot=shots)) for document in documents]


@contextmanager
def _at_work() -> Iterator[None]:
    """lm-eval takes a benchmark's records apart without looking whether they are the benchmark's; `datasets` draws bars."""
    import datasets

    shown = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"lm-eval cannot make its task of these records ({reason}): are they this benchmark's?") from error
    finally:
        if shown:
            datasets.enable_progress_bars()
