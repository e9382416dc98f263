"""All results on one page that needs nothing but itself: no scripts, no fonts, no requests; pictures are part of it.

Everything that is shown goes through `escape`. Pictures are images, so that nothing inside them can act, and the page's own
policy forbids whatever was overlooked.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from loopcd.analysis.result import Page
from loopcd.evaluation.partings import Parting, Piece
from loopcd.evaluation.table import Table, Verdict

MARKS: dict[Verdict, str] = {"holds": "✓", "holds in part": "◐", "does not hold": "✗", "is undecided": "?"}
_PAGE = Path(__file__).with_name("report.html")  # with places for what is shown


def report(pages: Sequence[Page], pictures: Mapping[str, bytes], title: str) -> str:
    """`pictures` are SVGs by the element's name."""
    listed = "\n".join(
        f'<li><span class="mark" title="{escape(page.result.finding.verdict)}">{MARKS[page.result.finding.verdict]}</span> '
        f'<a href="#{escape(page.name)}">{escape(page.title)}</a></li>'
        for page in pages
    )
    legend = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    sections = "\n".join(_section(page, pictures.get(page.name)) for page in pages)
    made = Template(_PAGE.read_text(encoding="utf-8"))
    return made.substitute(title=escape(title), legend=escape(legend), listed=listed, sections=sections)


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
    name, question, gold = example.about
    columns = "".join(
        f"<div><b>{escape(side.title)}</b><pre>{_marked(side.pieces, tag)}</pre></div>"
        for side, tag in zip(example.sides, ("del", "ins"), strict=True)
    )
    title = f"{name}, right answer {gold}"
    return f'<h3>{escape(title)}</h3>\n<pre>{escape(question)}</pre>\n<div class="sides">{columns}</div>'


def _marked(pieces: Sequence[Piece], tag: str) -> str:
    return "".join(f"<{tag}>{escape(piece.text)}</{tag}>" if piece.differs else escape(piece.text) for piece in pieces)
