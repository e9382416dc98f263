"""The elements by name, in the paper's order.

To add one: write a module with an `Element` (what it is called, which answers it needs, a function from the laboratory to a
`Result`) and name it here. Answers and traces asked for through the laboratory are cached and shared; the renderers take
any `Result`. A module is imported when its element is asked for.
"""

from __future__ import annotations

from importlib import import_module

from loopcd.analysis.elements.element import Element

_HERE = "loopcd.analysis.elements"
ELEMENTS: dict[str, str] = {  # name: module and attribute
    "fig2a": f"{_HERE}.uncertainty:FIG2A",
    "fig2bc": f"{_HERE}.uncertainty:FIG2BC",
    "table1": f"{_HERE}.perturbation:TABLE1",
    "table2": f"{_HERE}.comparison:TABLE2",
    "table3": f"{_HERE}.comparison:TABLE3",
    "table4": f"{_HERE}.settings:TABLE4",
    "fig3": f"{_HERE}.hard_tokens:FIG3",
    "table5": f"{_HERE}.settings:TABLE5",
    "fig4": f"{_HERE}.hard_tokens:FIG4",
    "table6": f"{_HERE}.hard_tokens:TABLE6",
    "fig5": f"{_HERE}.hard_tokens:FIG5",
    "table7": f"{_HERE}.late_flips:TABLE7",
    "table8": f"{_HERE}.late_flips:TABLE8",
    "table9": f"{_HERE}.robustness:TABLE9",
    "table10": f"{_HERE}.robustness:TABLE10",
    "fig6": f"{_HERE}.changed_texts:FIG6",
    "app": f"{_HERE}.changed_texts:APPENDIX",
}


def element(name: str) -> Element:
    if name not in ELEMENTS:
        raise ValueError(f"there is no element {name!r}: known are {', '.join(ELEMENTS)}, all")
    module, _, attribute = ELEMENTS[name].partition(":")
    return getattr(import_module(module), attribute)


def elements(wanted: str) -> list[Element]:
    """One element, several with commas between them, or "all"."""
    chosen = list(ELEMENTS) if wanted == "all" else [part.strip() for part in wanted.split(",")]
    repeated = [name for name in chosen if chosen.count(name) > 1]
    if repeated:
        raise ValueError(f"{wanted!r}: {repeated[0]} stands there twice")
    return [element(name) for name in chosen]


__all__ = ["ELEMENTS", "Element", "element", "elements"]
