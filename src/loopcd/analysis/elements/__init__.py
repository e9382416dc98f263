"""The elements by name, in the paper's order.

To add one: write a function from the laboratory to a `Result`, and name it here, with the answers that it needs. Answers and
traces asked for through the laboratory are cached and shared; the renderers take any `Result`.
"""

from __future__ import annotations

from loopcd.analysis.elements import changed_texts, comparison, interventions, tokens, variants
from loopcd.analysis.elements.element import Element
from loopcd.analysis.laboratory import GREEDY, Laboratory, Wanted


def _pair(lab: Laboratory) -> tuple[Wanted, ...]:
    return (Wanted((GREEDY, lab.loopcd())),)


ELEMENTS: dict[str, Element] = {
    "fig2a": Element("Figure 2a: trace entropy of right and wrong answers", tokens.fig2a),
    "fig2bc": Element("Figure 2b, c: margin and entropy from loop to loop", tokens.fig2bc),
    "table1": Element("Table 1: token replacement", interventions.table1),
    "table2": Element("Table 2: methods, accuracy and speed", comparison.table2, comparison.wanted_table2),
    "table3": Element(
        "Table 3: early exit", comparison.table3, lambda lab: (Wanted(tuple(comparison.exit_methods(lab).values())),)
    ),
    "table4": Element(
        "Table 4: the amateur's loop",
        variants.table4,
        lambda lab: (Wanted((GREEDY, *variants.sweep_methods(lab).values())),),
    ),
    "fig3": Element("Figure 3: the most frequent hard tokens", tokens.fig3),
    "table5": Element(
        "Table 5: selective contrast", variants.table5, lambda lab: (Wanted(tuple(variants.selective_methods(lab).values())),)
    ),
    "fig4": Element("Figure 4: hard tokens in right and wrong answers", tokens.fig4),
    "table6": Element("Table 6: margin flips", tokens.table6),
    "fig5": Element("Figure 5: the loop of the peak margin", tokens.fig5),
    "table7": Element("Table 7: early overconfidence and Late-Flips", tokens.table7),
    "table8": Element("Table 8: Late-Flip reversion", interventions.table8),
    "table9": Element(
        "Table 9: one setting for all benchmarks",
        variants.table9,
        lambda lab: [Wanted((GREEDY, lab.loopcd()), task=task) for task in lab.benchmarks],
    ),
    "table10": Element("Table 10: four seeds", variants.table10, variants.seeded_answers),
    "fig6": Element("Figure 6: texts side by side", changed_texts.fig6, _pair),
    "app": Element("Appendix: answers changed by LoopCD", changed_texts.appendix, _pair),
}


def elements(wanted: str) -> dict[str, Element]:
    """One element, several with commas between them, or "all"; by name."""
    chosen = list(ELEMENTS) if wanted == "all" else [part.strip() for part in wanted.split(",")]
    for name in chosen:
        if name not in ELEMENTS:
            raise ValueError(f"there is no element {name!r}: known are {', '.join(ELEMENTS)}, all")
        if chosen.count(name) > 1:
            raise ValueError(f"{wanted!r}: {name} stands there twice")
    return {name: ELEMENTS[name] for name in chosen}


__all__ = ["ELEMENTS", "Element", "elements"]
