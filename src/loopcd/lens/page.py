"""The page as one file: markup, styles and scripts of `page/` put together, with the data inside.

`python -m loopcd.lens.build FILE` writes the page without data. Nothing is generated ahead of time, so there is nothing to go
stale: whoever serves or exports the page builds it from its sources, in a few milliseconds and without any tool.
"""

import json
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from loopcd.lens.examples import Example
from loopcd.tracing.writing import write_whole

SOURCES = Path(__file__).parent / "page"
VENDOR = SOURCES / "vendor"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)


def write_page(data: dict[str, Any]) -> str:
    """The whole page with its data, which stands in it as JSON that cannot end the element it stands in."""
    return _page().replace("{{data}}", as_data(data))


def as_data(data: dict[str, Any]) -> str:
    """JSON in which no character means anything to an HTML parser."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _page() -> str:
    styles = [_read(VENDOR / "uPlot.min.css"), _read(SOURCES / "style.css")]
    scripts = [_read(VENDOR / "uPlot.iife.min.js"), bundled("main.js")]
    page = _read(SOURCES / "index.html")
    page = page.replace("{{policy}}", policy(scripts, styles))
    page = page.replace("{{styles}}", "\n".join(f"<style>{each}</style>" for each in styles))
    library, own = scripts
    licence = f"<!-- uPlot\n{_read(VENDOR / 'uPlot.LICENSE')}-->"  # it has to go wherever the library goes
    return page.replace("{{scripts}}", f'{licence}\n<script>{library}</script>\n<script type="module">{own}</script>')


def policy(scripts: list[str], styles: list[str]) -> str:
    """What the page may do: run exactly these scripts, talk to the server that it came from, and nothing else."""
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def bundled(entry: str) -> str:
    """A module and all that it imports as one script: a scope for each file, after those that it needs."""
    order: list[str] = []
    _visit(entry, order, ())
    return "\n".join(["const modules = {};", *(_scoped(name, _read(SOURCES / name)) for name in order)])


def _scoped(name: str, text: str) -> str:
    text = _IMPORT.sub(r'const {\1} = modules["\2"];\n', text)
    exported = _EXPORT.findall(text)
    text = _EXPORT.sub(lambda found: found[0].removeprefix("export "), text)
    if re.search(r"^(import|export)\b", text, re.MULTILINE):
        raise ValueError(f'{name}: only `import {{ … }} from "./name.js";` and `export` before a declaration can be bundled')
    return f'modules["{name}"] = (() => {{\n{text}return {{ {", ".join(exported)} }};\n}})();'


def _visit(name: str, order: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"{' imports '.join([*above, name])}: a circle of imports cannot be bundled")
    if name in order:
        return
    for _, needed in _IMPORT.findall(_read(SOURCES / name)):
        _visit(needed, order, (*above, name))
    order.append(name)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def export(path: Path, examples: Sequence[Example], note: str = "") -> int:
    """Write the page with these examples inside; its size in bytes."""
    if not examples:
        raise ValueError("there is nothing to show: no trace in the files, or no problem on which the texts differ")
    models = sorted({trace.model for example in examples for trace in example.traces})
    data = {
        "title": ", ".join(models),
        "note": note,
        "examples": [{**example.summary(), "traces": example.payloads()} for example in examples],
    }
    page = write_page(data).encode()
    write_whole(path, page)
    return len(page)
