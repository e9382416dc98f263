"""What a run found, as tables for people: the same rows for the terminal and for the report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loopcd.bench.compare import Change
from loopcd.evaluation.table import Table


def tables(run: Mapping[str, Any]) -> list[Table]:
    """All tables of the parts that the run holds."""
    return [table for part, make in MAKERS.items() if run.get(part) for table in make(run[part])]


def ratio_tables(ratios: Mapping[str, Any]) -> Iterator[Table]:
    batches = sorted({batch for each in ratios.values() for batch in each}, key=int)
    columns = ["tokens per second over greedy", *(f"{name}, batch {batch}" for name in ratios for batch in batches)]
    names = list(dict.fromkeys(key for each in ratios.values() for batch in each.values() for key in batch))
    rows = [[key, *(spread(ratios[m].get(b, {}).get(key)) for m in ratios for b in batches)] for key in names]
    yield Table.of("Methods", columns, rows)


def detail_tables(details: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["what the methods did", "contested", "loops per token", "draft", "acceptance", "tokens a round"]
    columns += ["near ties", "texts as undrafted", "cache over plain"]
    rows = []
    for (model, batch, name), told in leaves(details, 3):
        if name.split("+")[0] != "loopcd" and "+" not in name:
            continue  # of the others the ratios say all
        cells = [percent(told["contested"]), f"{told['loops_per_token']:.2f}"]
        if "acceptance" in told:
            cells += [f"{told['draft_length']} tokens by {told['draft_loops']} loops", percent(told["acceptance"])]
            cells += [f"{told['accepted_length']:.2f}", str(told["near_ties"])]
            cells += [f"{told['identical_texts']} of {told['texts']}", f"{told['cache_over_plain']:.3f}"]
        rows.append([f"{model}, batch {batch}, {name}", *cells, *[""] * (len(columns) - 1 - len(cells))])
    yield Table.of("Details", columns, rows)


def exact_tables(exact: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["texts", "the same undrafted", "the same alone", "drafted choices", "near ties among them", "acceptance"]
    rows = []
    for (model, batch, name, draft), told in leaves(exact, 4):
        same = [f"{told[key]} of {told['texts']}" if key in told else "" for key in ("identical_texts", "identical_alone")]
        counts = [str(told["choices"]), str(told["near_ties"]), percent(told["acceptance"])]
        rows.append([f"{model}, batch {batch}, {name}, {draft}", *same, *counts])
    yield Table.of("Drafting changes no token", columns, rows)


def decode_tables(decode: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["decoding, one thread", "batch", "context", "tokens per CPU second", "MB per token", "limit", "share of limit"]
    rows = []
    for name, told in decode["models"].items():
        for cell in told["cells"]:
            sizes = [str(cell["batch"]), str(cell["context"]), f"{cell['tokens_per_cpu_second']['median']:.1f}"]
            limit = [f"{cell['limit']:.1f}", percent(cell["share_of_limit"]["median"])]
            rows.append([name, *sizes, f"{cell['bytes_per_token'] / 1e6:.0f}", *limit])
    yield Table.of(f"Decoding ({decode['bandwidth']['median'] / 1e9:.1f} GB/s measured between the rounds)", columns, rows)
    yield from _across(decode)


def _across(decode: Mapping[str, Any]) -> Iterator[Table]:
    rows = []
    for name, told in decode["models"].items():
        rows += [[f"{name}: largest over smallest batch, context {c}", spread(x)] for c, x in told["batch_gain"].items()]
        for batch, grown in told["growth"].items():
            what = f"{name}: a step at context {grown['to']} over one at {grown['from']}, batch {batch}"
            step, attention = grown["step_seconds"] * 1e3, grown["attention_seconds"] * 1e3
            rows.append([what, f"+{step:.1f} ms, of which attention +{attention:.1f} ms"])
    if rows:
        yield Table.of("Across batches and contexts", ["across", "found"], rows)


def vllm_tables(told: Mapping[str, Any]) -> Iterator[Table]:
    names = list(dict.fromkeys(key for each in told.values() for key in each["ratios"]))
    columns = ["vLLM, tokens per second", *(f"{model}, batch {each['batch']}" for model, each in told.items())]
    yield Table.of("vLLM", columns, [[key, *(spread(each["ratios"].get(key)) for each in told.values())] for key in names])


def reference_tables(told: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["beside the public code, one thread, float32", "context", "tokens per CPU second", "reference"]
    columns += ["decoding over it", "prompt over it", "same text"]
    rows = []
    for (model, context), each in leaves(told, 2):
        speeds = [f"{each['tokens_per_cpu_second'][side]['median']:.1f}" for side in ("ours", "reference")]
        same = "yes" if each["same_text"] else "no"
        rows.append([model, context, *speeds, spread(each["decode"]), spread(each["prompt"]), same])
    yield Table.of("Beside the public code", columns, rows)


def full_size_tables(told: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["full size, random weights", "weights", "threads", f"prompt of {told['prompt']}", "step", "GB/s"]
    columns += ["prompt over float32", "step over float32"]
    rows = []
    for model, each in told["models"].items():
        for (threads, kind), cell in leaves(each["threads"], 2):
            took = [f"{cell[name]['median']:.2f} s" for name in ("prompt_seconds", "step_seconds")]
            speed = f"{cell['bytes_per_second']['median'] / 1e9:.1f}"
            over = [spread(cell.get(name)) for name in ("prompt_over_float32", "step_over_float32")]
            rows.append([f"{model}, {kind}", f"{each['weights'][kind] / 1e9:.2f} GB", threads, *took, speed, *over])
    yield Table.of("Full size", columns, rows)


def change_table(changes: Sequence[Change]) -> Table:
    rows = [
        [each.name, str(each.before), str(each.now), f"{each.change:+.1%}", "changed" if each.flagged else ""]
        for each in changes
    ]
    return Table.of("Against the earlier run", ["ratio", "before", "now", "change", "outside both spreads"], rows)


def leaves(told: Mapping[str, Any], depth: int) -> list[tuple[tuple[str, ...], Any]]:
    """What is told so many keys deep, after these keys."""
    if depth == 0:
        return [((), told)]
    return [((key, *keys), leaf) for key, inner in told.items() for keys, leaf in leaves(inner, depth - 1)]


def spread(told: Mapping[str, float] | None) -> str:
    if told is None:
        return ""
    return f"{told['median']:.2f} ({told['low']:.2f}–{told['high']:.2f})"


def percent(share: float) -> str:
    return f"{share:.1%}"


MAKERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Table]]] = {  # by what the run holds; benchmarks/ adds its own
    "ratios": ratio_tables,
    "details": detail_tables,
    "exact": exact_tables,
    "decode": decode_tables,
    "vllm": vllm_tables,
    "reference": reference_tables,
    "full-size": full_size_tables,
}
