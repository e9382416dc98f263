"""What README and docs show works: examples print what stands below them, commands parse and fit their models, names exist."""

import ast
import contextlib
import importlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from loopcd.cli import main
from loopcd.decoding.registry import METHODS
from loopcd.models.names import built_in

REPO = Path(__file__).parents[1]
PAGES = [REPO / "README.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").glob("*.md"))]
CARDS = sorted((REPO / "src" / "loopcd" / "assets").glob("*/README.md"))
LONG = ("gsm8k", "gsm8k-lm-eval", "math500", "strategyqa", "humaneval", "mbpp")  # prompts beyond a tiny model's context


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str
    shown: str | None  # what a block of output right below it holds

    @property
    def whole(self) -> bool:
        """Whether it can be run by itself: it loads a built-in model, or imports only."""
        loads = re.findall(r'load\("([\w/.-]+)"', self.text)
        return (
            self.language == "python" and self.text.startswith(("import", "from")) and all(each in built_in() for each in loads)
        )


def blocks(page: Path) -> Iterator[Block]:
    found = list(re.finditer(r"^```(\w*)\n(.*?)^```\n?", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    for each, after in zip_longest(found, found[1:]):
        output = after is not None and after[1] == "text" and after.start() == each.end()
        yield Block(page.name, each[1], each[2], after[2] if output and after else None)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every `loopcd …` of a page: lines of indented and bash blocks, and code in the text that has options or a name."""
    text = re.sub(r"^```(?!bash).*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines() if re.match(r"    \S|\s*loopcd ", line)]
    given = {name: value for line in lines for name, value in re.findall(r'^(\w+)="(.*?)"', line)}
    lines += re.findall(r"`(loopcd [a-z-]+ [^`]*)`", text)
    for line in lines:
        line = re.sub(r"\$'(.*?)'", r"'\1'", line.rpartition("| ")[2] if "| loopcd" in line else line)
        line = re.sub(r"\$(\w+)", lambda name: given.get(name[1], name[0]), line)
        if line.startswith("loopcd ") and "…" not in line and "..." not in line:
            yield line, shlex.split(line, comments=True)[1:]


PYTHON = [each for page in PAGES for each in blocks(page) if each.language == "python"]
COMMANDS = [(page.name, line, words) for page in (*PAGES, *CARDS) for line, words in commands(page)]


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) >= 10 and len(COMMANDS) >= 50
    assert sum(each.shown is not None for each in PYTHON if each.page == "README.md") == 3


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({each.page for each in PYTHON}))
def test_examples_run_and_print_what_is_shown(page: str) -> None:
    """A page's examples go on from one another, as a reader does; those that cannot stand alone are only read."""
    names: dict[str, Any] = {"__name__": f"documented.{page}"}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for each in (each for each in PYTHON if each.page == page and each.whole):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(each.text, page, "exec"), names)
            if each.shown is not None:
                assert printed.getvalue() == each.shown
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("each", PYTHON, ids=lambda each: each.page)
def test_names_of_the_package_exist(each: Block) -> None:
    for node in ast.walk(ast.parse(each.text)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("loopcd"):
                assert [name.name for name in names if not _importable(module, name.name)] == []
            case ast.Attribute(value=ast.Name(id="loopcd"), attr=name):
                assert hasattr(importlib.import_module("loopcd"), name), name


def _importable(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize(("page", "line", "words"), COMMANDS, ids=[line for _, line, _ in COMMANDS])
def test_a_command_is_understood(page: str, line: str, words: list[str]) -> None:
    command: Any = main
    if words and not words[0].startswith("-"):
        assert words[0] in main.commands, f"{page}: {line}"
        command = main.commands[words[0]]
    if "--help" in words or command is main:
        return
    try:
        parsed = command.make_context(words[0], list(words[1:]), parent=click.Context(main)).params
    except click.ClickException as error:
        raise AssertionError(f"{page}: {line}: {error.format_message()}") from error
    long = parsed.get("task") in LONG and not (parsed.get("prompts") or parsed.get("answers"))
    assert not (long and parsed.get("model") in built_in()), (
        f"{page}: {line}: {parsed['task']} does not fit into {parsed['model']}"
    )


@pytest.mark.slow
def test_methods_of_commands_fit_their_models() -> None:
    from loopcd.evaluation.engine import LocalEngine
    from loopcd.evaluation.plan import parse_methods

    engines = {name: LocalEngine.load(name) for name in built_in()}
    for _, line, words in COMMANDS:
        given = dict(pairwise(words))
        engine = engines.get(given.get("--model", "tiny-huginn"))
        if words and words[0] in ("eval", "sweep") and "--methods" in given and engine is not None:
            for spec in parse_methods(given["--methods"]):
                assert engine.settings(spec.build()) is not None, line


def test_targets_of_make_exist() -> None:
    text = (REPO / "Makefile").read_text()
    known = set(re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[1].split())  # pyright: ignore[reportOptionalSubscript]
    named = {name for page in PAGES for name in re.findall(r"(?:^    |`)make ([\w-]+)", page.read_text(), flags=re.MULTILINE)}
    assert named and named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    gone = [each for each in links if "://" not in each and not (page.parent / each.partition("#")[0]).exists()]
    assert gone == []


def test_the_reference_names_all_that_the_package_offers() -> None:
    own, _, others = (REPO / "docs" / "reference.md").read_text().partition("\n## More of ")
    directives, classes = re.findall(r"^::: [\w.]+\.(\w+)$", own, flags=re.MULTILINE), re.findall(r"`(\w+ForCausalLM)`", own)
    assert others and sorted([*directives, *classes]) == sorted(importlib.import_module("loopcd").__all__)


@pytest.mark.parametrize("name", list(METHODS))
def test_every_setting_of_a_method_is_named(name: str) -> None:
    text = (REPO / "docs" / "methods.md").read_text()
    assert [each.name for each in fields(METHODS[name]) if not re.search(rf"\b{each.name}\b[=`]", text)] == []


# What a page says of results is what stands in their files


def rows_of(page: Path) -> Iterator[list[str]]:
    """The cells of every line of a page's tables."""
    for line in page.read_text().splitlines():
        if line.startswith("| "):
            yield [cell.strip().replace("−", "-") for cell in line.strip("|").split(" | ")]


@pytest.mark.parametrize("model", ["tiny-huginn", "tiny-ouro"])
def test_rules_for_the_amateur_are_shown_as_they_were_measured(model: str) -> None:
    page, told = REPO / "docs" / "results" / model / "auto.md", REPO / "docs" / "analysis.md"
    heads, *rows = rows_of(page)
    found = {row[0]: dict(zip(heads, row, strict=True)) for row in rows}
    wanted = [
        model,
        found["none (greedy)"]["flex, test split (%)"].partition(" [")[0] + " %",
        found["fixed"]["Δ to greedy (points)"],
        *(found[rule]["Δ to the fixed loop (points)"] for rule in ("divergence", "peak", "mean", "contest")),
    ]
    assert wanted in list(rows_of(told))
    assert f"{int(found['contest']['answers changed'])} of" in told.read_text()


@pytest.mark.parametrize("page", sorted((REPO / "docs" / "results").glob("*/README.md")), ids=lambda page: page.parent.name)
def test_a_summary_says_what_its_pages_say(page: Path) -> None:
    """A page that was made anew after its summary would contradict it."""
    rows = re.findall(r"^\| \[.*?\]\((\w+\.md)\) \| (.*?) \| (.*?) \| (.*?) \|$", page.read_text(), flags=re.MULTILINE)
    assert len(rows) == 17
    for name, claim, verdict, found in rows:
        assert f"**{found} The paper's claim, that {claim}, {verdict} here.**" in (page.parent / name).read_text(), name
