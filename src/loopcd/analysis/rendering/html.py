"""All results on one page that needs nothing but itself: no scripts, no fonts, no requests; pictures are part of it.

Everything that is shown goes through `escape`. Pictures are images, so that nothing inside them can act, and the page's own
policy forbids whatever was overlooked.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from loopcd.analysis.result import Page
from loopcd.evaluation.partings import Parting, Piece
from loopcd.evaluation.table import Table, Verdict

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MARKS: dict[Verdict, str] = {"holds": "✓", "holds in part": "◐", "does not hold": "✗", "is undecided": "?"}
STYLE = """
:root { --ink: #1a1a1a; --soft: #595959; --rule: #cccccc; --right: #0072B2; --wrong: #B34700; --ground: #ffffff;
        --mark: #f3f3f3; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #b0b0b0; --rule: #555555; --right: #6db9ef; --wrong: #f0a060; --ground: #1b1b1b;
          --mark: #2a2a2a; }
  img { background: #ffffff; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 76rem; margin: 0 auto;
       padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 3rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
.finding { font-weight: 600; } .soft, footer { color: var(--soft); font-size: .85rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; margin: .7rem 0; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top; }
th { border-bottom: 2px solid var(--ink); vertical-align: bottom; } th { max-width: 9rem; }
.figure { text-align: right; } td.figure { white-space: nowrap; }
td.paper, th.paper { color: var(--soft); background: var(--mark); }
img { max-width: 100%; height: auto; } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: .5rem 0 1.5rem; }
.sides > div { border: 1px solid var(--rule); padding: .6rem; } .sides b { display: block; margin-bottom: .3rem; }
@media (max-width: 45rem) { .sides { grid-template-columns: 1fr; } }
del, ins { text-decoration: underline; text-decoration-thickness: 2px; font-weight: 700; }
del { color: var(--wrong); } ins { color: var(--right); } code { overflow-wrap: anywhere; }
nav ol { columns: 2; } nav .mark { display: inline-block; width: 1.2em; }
@media print { h2 { break-after: avoid; } img, table { break-inside: avoid; } }
"""


def report(pages: Sequence[Page], pictures: Mapping[str, bytes], title: str) -> str:
    """`pictures` are SVGs by the element's name."""
    listed = "\n".join(
        f'<li><span class="mark" title="{escape(page.result.finding.verdict)}">{MARKS[page.result.finding.verdict]}</span> '
        f'<a href="#{escape(page.name)}">{escape(page.title)}</a></li>'
        for page in pages
    )
    legend = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    sections = "\n".join(_section(page, pictures.get(page.name)) for page in pages)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="soft">The paper's claims, here: {escape(legend)}. Columns on a grey ground are the paper's own figures.
Brackets hold 95 % intervals.</p>
<nav><ol>
{listed}
</ol></nav>
{sections}
</body>
</html>
"""


def _section(page: Page, picture: bytes | None) -> str:
    result = page.result
    parts = [f'<section id="{escape(page.name)}">', f"<h2>{escape(page.title)}</h2>"]
    parts.append(f'<p class="finding">{escape(result.finding.sentence)}</p>')
    if picture is not None:
        data = b64encode(picture).decode()
        parts.append(f'<p><img alt="{escape(result.finding.found)}" src="data:image/svg+xml;base64,{data}"></p>')
    parts.append(_table(result.table))
    parts += [f"<p>{escape(note)}</p>" for note in result.notes]
    parts += [_example(example) for example in result.examples]
    parts.append(f"<footer>Settings: {escape(page.settings_line)}.<br>Made by <code>{escape(page.command)}</code></footer>")
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    classes = [_classes(not column.words, column.heading.startswith("paper")) for column in table.columns]
    head = "".join(f"<th{kind}>{escape(each.titled)}</th>" for each, kind in zip(table.columns, classes, strict=True))
    rows = ["".join(f"<td{kind}>{escape(text)}</td>" for text, kind in zip(row, classes, strict=True)) for row in table.texts()]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _classes(figure: bool, theirs: bool) -> str:
    named = [name for name, wanted in (("figure", figure), ("paper", theirs)) if wanted]
    return f' class="{" ".join(named)}"' if named else ""


def _example(example: Parting) -> str:
    title = f"{example.item.id}, right answer {example.item.gold}"
    columns = "".join(
        f"<div><b>{escape(side.title)}</b><pre>{_marked(side.pieces, tag)}</pre></div>"
        for side, tag in zip(example.sides, ("del", "ins"), strict=True)
    )
    return f'<h3>{escape(title)}</h3>\n<pre>{escape(example.question)}</pre>\n<div class="sides">{columns}</div>'


def _marked(pieces: Sequence[Piece], tag: str) -> str:
    return "".join(f"<{tag}>{escape(piece.text)}</{tag}>" if piece.differs else escape(piece.text) for piece in pieces)
