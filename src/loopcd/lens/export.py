"""The page as a file that opens from disk."""

from collections.abc import Sequence
from pathlib import Path

from loopcd.lens.examples import Example
from loopcd.lens.page import write_page
from loopcd.tracing.writing import write_whole


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
