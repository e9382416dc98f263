"""The house rules that a machine can check: who imports whom, what importing does, what is pinned and packed."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "src" / "loopcd"
MOST_LINES = 450

# Top to bottom: a room imports itself and the rooms before it.
ROOMS = (
    "models",
    "decoding",
    "tracing",
    "evaluation",
    "analysis",
    "lens",
    "serving",
    "training",
    "assets",
    "bench",
    "cli",
)
EXEMPT = {"__init__.py", "__main__.py"}  # they put the rooms together, as the command line does


# The order of the rooms


def room_violations(package: Path) -> list[str]:
    """One line for each import in `package` that goes against the order of the rooms, or file outside any room."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if str(inside) in EXEMPT or inside.parts[0] in {"cli", "cli.py"}:
            continue
        room = inside.parts[0].removesuffix(".py")
        if room not in ROOMS:
            found.append(f"{inside}: '{room}' is not a room")
            continue
        for line, target in imported_rooms(path, package):
            if target not in ROOMS:
                found.append(f"{inside}:{line}: {room} imports '{target}' of the package's top")
            elif ROOMS.index(target) > ROOMS.index(room):
                found.append(f"{inside}:{line}: {room} imports {target}")
    return found


def imported_rooms(path: Path, package: Path) -> Iterator[tuple[int, str]]:
    """(line, name directly below the package) for each import of the package, wherever in the file it stands."""
    home = [package.name, *path.relative_to(package).parts[:-1]]  # the package that relative imports start from
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for module in imported_modules(node, home):
            top, _, rest = module.partition(".")
            if top == package.name:
                yield getattr(node, "lineno", 0), rest.partition(".")[0] or package.name


def imported_modules(node: ast.AST, home: list[str]) -> list[str]:
    """The absolute dotted names that one syntax node imports."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = home[: len(home) - level + 1] if level else []
            parts = base + ([module] if module else [])
            return [".".join([*parts, alias.name]) for alias in names]
        case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]):
            return [name] if called in {"import_module", "__import__"} and not name.startswith(".") else []
    return []


def test_rooms_import_only_rooms_above_them() -> None:
    assert room_violations(PACKAGE) == []


def make_package(root: Path, files: dict[str, str]) -> Path:
    package = root / "loopcd"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("models/a.py", "import loopcd.decoding"),
        ("models/a.py", "import os, loopcd.decoding.rules as rules"),
        ("models/a.py", "from loopcd.decoding import rules"),
        ("models/a.py", "from loopcd import decoding"),
        ("models/a.py", "from ..decoding import rules"),
        ("models/a.py", "from .. import decoding"),
        ("models/__init__.py", "from ..tracing import trace"),
        ("models/huginn/a.py", "from ...analysis.tables import table"),
        ("models/huginn/__init__.py", "from ... import cli"),
        ("decoding/a.py", "def late():\n    from loopcd.tracing import trace"),
        ("tracing/a.py", "if TYPE_CHECKING:\n    from loopcd.evaluation import runner"),
        ("training/a.py", "import importlib\nimportlib.import_module('loopcd.assets')"),
        ("evaluation/a.py", "from loopcd.cli import main"),
        ("evaluation/a.py", "import loopcd"),
        ("evaluation/a.py", "from loopcd import load"),
        ("evaluation/a.py", "from .. import *"),
        ("utils.py", ""),
        ("helpers/a.py", "import os"),
    ],
)
def test_a_wrong_import_or_room_is_found(tmp_path: Path, file: str, text: str) -> None:
    assert len(room_violations(make_package(tmp_path, {file: text}))) == 1


def test_right_imports_pass(tmp_path: Path) -> None:
    package = make_package(
        tmp_path,
        {
            "__init__.py": "from .training import recipe\nfrom loopcd.models import load",
            "cli.py": "import loopcd\nfrom loopcd.lens import page",
            "models/cache.py": "import torch\nfrom loopcd.models import layers\nfrom .layers import norm",
            "models/huginn/model.py": "from ..cache import Cache\nfrom ...models import cache",
            "analysis/tables.py": "from . import figures\ndef late():\n    from .. import decoding",
            "assets/__init__.py": "import loopcdlike.analysis\nfrom loopcd.training import recipe",
        },
    )
    assert room_violations(package) == []


def test_files_have_one_job() -> None:
    long = {str(path.relative_to(PACKAGE)): n for path in PACKAGE.rglob("*.py") if (n := line_count(path)) > MOST_LINES}
    assert long == {}, f"more than {MOST_LINES} lines: two jobs in one file?"


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


# One word, one thing


def shared_names(package: Path) -> dict[str, list[str]]:
    """Classes that several files define, each with these files; but serving has the models' layers once more, for vLLM."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(package).as_posix())
    rooms = {name: [file.partition("/")[0] for file in files] for name, files in found.items()}
    return {name: files for name, files in found.items() if len(files) > 1 and rooms[name] != ["models", "serving"]}


def test_a_name_means_one_thing() -> None:
    assert shared_names(PACKAGE) == {}


def test_a_name_that_means_two_things_is_found(tmp_path: Path) -> None:
    files = {
        "models/a.py": "class Row:\n    class Inner: ...",
        "lens/b.py": "class Row: ...",
        "bench/c.py": "class Inner: ...\nclass _Own: ...",
        "cli/d.py": "class _Own: ...",
    }
    assert shared_names(make_package(tmp_path, files)) == {"Row": ["lens/b.py", "models/a.py"]}
    again = {"models/e.py": "class Layer: ...", "serving/vllm/e.py": "class Layer: ..."}
    assert shared_names(make_package(tmp_path / "again", again)) == {}


# Where files are written

# What writes by itself: the one place for it, and what goes into a fresh folder of the system's, an archive that is open, or
# the isolation's own root
WRITERS = ("tracing/writing.py", "tracing/files.py", "lens/server.py", "evaluation/code/")


def writes(package: Path) -> list[str]:
    """One line for each call in `package` that opens a file for writing past `tracing/writing.py`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).as_posix()
        if not inside.startswith(WRITERS):
            calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
            found += [f"{inside}:{call.lineno}" for call in calls if opens_for_writing(call)]
    return found


def opens_for_writing(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [each.value for each in (*call.args, *(k.value for k in call.keywords)) if isinstance(each, ast.Constant)]
    modes = [text for text in texts if isinstance(text, str) and re.fullmatch(r"[rwxab+t]{1,4}", text)]
    return name in {"write_text", "write_bytes"} or (name in {"open", "fdopen"} and any(set(m) & set("wax+") for m in modes))


def test_files_are_written_in_one_place_which_follows_no_link() -> None:
    assert writes(PACKAGE) == []


@pytest.mark.parametrize(
    "text",
    ["path.write_text('x')", "p.write_bytes(b'')", "open(p, 'w')", "p.open('ab')", "p.open(mode='r+')", "io.open(p, 'x')"],
)
def test_a_write_elsewhere_is_found(tmp_path: Path, text: str) -> None:
    assert len(writes(make_package(tmp_path, {"lens/a.py": text, "lens/b.py": "p.open('rb')\nopen(p)"}))) == 1


# What importing does

# Run in a fresh interpreter: imports torch and the parts of transformers that a model is made of, then each module named
# in argv, in a fork of its own, and prints as a line of JSON what that changed.
PROBE = textwrap.dedent(
    """
    import importlib, json, locale, logging, os, random, signal, sys, threading, warnings
    import numpy, torch, transformers
    import transformers.generation, transformers.masking_utils, transformers.modeling_utils
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache, GenerationMixin

    def state():
        return {
            "torch default dtype": torch.get_default_dtype(),
            "torch default device": torch.get_default_device(),
            "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
            "torch grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
            "torch RNG": torch.get_rng_state().tolist(),
            "torch precision": (
                torch.get_float32_matmul_precision(),
                torch.are_deterministic_algorithms_enabled(),
                torch.backends.cudnn.benchmark,
                torch.backends.cudnn.allow_tf32,
            ),
            "random RNG": random.getstate(),
            "numpy RNG": repr(numpy.random.get_state(legacy=False)["state"]["key"].tolist()),
            "numpy errors": numpy.geterr(),
            "transformers verbosity": transformers.logging.get_verbosity(),
            "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
            "warnings": list(warnings.filters),
            "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
            "environment": dict(os.environ),
            "locale": locale.setlocale(locale.LC_ALL),
            "working folder": os.getcwd(),
            "sys": (list(sys.path), sys.excepthook, sys.stdout, sys.stderr, sys.getrecursionlimit()),
            "running threads": threading.active_count(),
        }

    for module in sys.argv[1:]:
        if os.fork() == 0:
            before, modules = state(), set(sys.modules)
            importlib.import_module(module)
            after = state()
            changed = [name for name in before if before[name] != after[name]]
            print(json.dumps({"changed": changed, "loaded": sorted(set(sys.modules) - modules)}), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0, module
    """
)

# Needed by some commands only; importing loopcd leaves them alone.
NOT_AT_IMPORT = (
    "click",
    "datasets",
    "evalplus",
    "lm_eval",
    "math_verify",
    "matplotlib",
    "pandas",
    "rich",
    "scipy.stats",
    "starlette",
    "statsmodels",
    "uvicorn",
    "vllm",
)


def probe_imports(modules: list[str], *search: Path) -> list[dict[str, list[str]]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search)), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", PROBE, *modules], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(modules), f"importing {modules} printed: {run.stdout}"
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_importing_changes_nothing_and_loads_no_optional_library(tmp_path: Path) -> None:
    """Beside a module that changes everything, or the probe would show little."""
    (tmp_path / "rude.py").write_text(
        textwrap.dedent(
            """
            import locale, logging, os, random, signal, sys, tempfile, threading, time, warnings
            import matplotlib
            import numpy, torch, transformers

            torch.set_default_dtype(torch.float64)
            torch.set_default_device("meta")
            torch.set_num_threads(torch.get_num_threads() + 1)
            torch.set_grad_enabled(False)
            torch.manual_seed(1)
            torch.set_float32_matmul_precision("medium")
            random.seed(1)
            numpy.random.seed(1)
            numpy.seterr(all="raise")
            transformers.logging.set_verbosity_error()
            logging.basicConfig(level=logging.DEBUG)
            warnings.simplefilter("error")
            signal.signal(signal.SIGUSR1, lambda *_: None)
            os.environ["RUDE"] = "1"
            locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")
            os.chdir(tempfile.gettempdir() if os.getcwd() != tempfile.gettempdir() else "/")
            sys.path.append("/rude")
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            """
        ),
        encoding="utf-8",
    )
    ours, rude = probe_imports(["loopcd", "rude"], REPO / "src", tmp_path)
    every_kind = re.findall(r'^ {8}"([^"]+)": ', PROBE, flags=re.MULTILINE)
    assert len(every_kind) == 18
    assert rude["changed"] == every_kind and "matplotlib" in rude["loaded"]
    assert ours["changed"] == []
    loaded = [name for name in ours["loaded"] if any(f"{name}.".startswith(f"{bad}.") for bad in NOT_AT_IMPORT)]
    assert "loopcd" in ours["loaded"] and loaded == []


def test_the_fast_tests_are_there(request: pytest.FixtureRequest) -> None:
    (files,) = [module.FAST_FILES for module in request.config.pluginmanager.get_plugins() if hasattr(module, "FAST_FILES")]
    assert [path.name for path in files if not path.is_file()] == []


# What is pinned and what is packed


def test_every_dependency_is_pinned() -> None:
    pinned = read_pins(REPO / "constraints.txt")
    assert pinned["torch"] == "2.13.0"
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [
        *project["dependencies"],
        *(text for extra in ("dev", "eval", "plots", "lens", "docs", "release") for text in extras[extra]),
    ]
    wanted = [Requirement(text) for text in named]
    excluded = [str(need) for need in wanted if not need.specifier.contains(pinned[canonicalize_name(need.name)])]
    assert excluded == []
    assert sorted(installed_closure(wanted) - set(pinned)) == []
    assert [name for name in made_variable("evalplus") if canonicalize_name(name) not in pinned] == []


def test_what_reads_pickles_is_not_kept() -> None:
    """sqlitedict comes with lm-eval, for a cache that `loopcd lm-eval` refuses."""
    assert made_variable("unneeded") == ["sqlitedict"]
    assert "pip uninstall -qq -y $(unneeded)" in (REPO / "Makefile").read_text(encoding="utf-8")


def made_variable(name: str) -> list[str]:
    """The words of a variable of the Makefile."""
    found = re.search(rf"^{name} = (.*)$", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1].split()


def read_pins(path: Path) -> dict[str, str]:
    """Version by name; a line that is neither a comment nor `name==version` is an error."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pins = [re.fullmatch(r"([\w-]+)==([\w.]+)", line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


def installed_closure(wanted: list[Requirement]) -> set[str]:
    """Names of all distributions that `wanted` brings into this environment, itself included."""
    names, todo = set(), list(wanted)
    while todo:
        need = todo.pop()
        known = f"{canonicalize_name(need.name)}[{','.join(sorted(need.extras))}]"
        if known in names:
            continue
        names.add(known)
        try:
            texts = requires(need.name) or []
        except PackageNotFoundError:
            continue
        for child in map(Requirement, texts):
            marker = child.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ["", *need.extras]):
                todo.append(child)
    return {name.partition("[")[0] for name in names}


@pytest.mark.slow
def test_the_wheel_holds_all_of_the_package(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "src" / "loopcd", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPO / name, copy)
    for name in ("probe.safetensors", "probe.json", "probe.md"):  # also before there are any assets
        path = copy / "src" / "loopcd" / "assets" / "probe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(command, cwd=copy, capture_output=True, check=True)

    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("loopcd/")}
    present = {str(path.relative_to(copy / "src")) for path in (copy / "src").rglob("*") if path.is_file()}
    assert packed == present
