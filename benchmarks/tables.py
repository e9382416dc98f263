"""What the further parts found, as tables for people."""

from collections.abc import Iterator, Mapping
from typing import Any

from loopcd.bench.tables import leaves, percent, spread
from loopcd.evaluation.table import Table


def overhead_tables(overhead: Mapping[str, Any]) -> Iterator[Table]:
    names = ["loopcd/greedy", "loopcd eager/greedy", "loopcd own coda/greedy"]
    rows = [
        [f"{model}, vocabulary {vocabulary}, {head}", percent(told["contested"]), *(spread(told.get(n)) for n in names)]
        for (model, vocabulary, head), told in leaves(overhead, 3)
    ]
    yield Table.of("What LoopCD costs", ["LoopCD over greedy", "contested", "LoopCD", "asked everywhere", "own coda"], rows)


def worst_tables(worst: Mapping[str, Any]) -> Iterator[Table]:
    rows = [
        [f"{model}, batch {batch}, {draft}", percent(told["acceptance"]), spread(told["cold"]), spread(told["warm"])]
        for (model, batch, draft), told in leaves(worst, 3)
    ]
    yield Table.of("Worst case", ["drafted over undrafted, random weights", "acceptance", "first text", "second text"], rows)


def wave_tables(wave: Mapping[str, Any]) -> Iterator[Table]:
    columns = [f"{wave['loops']} loops, loop {wave['early']} drafts", "over greedy", "over rounds", "acceptance"]
    columns += ["ticks a token", "by the formula", "near ties", "texts as undrafted"]
    rows = []
    for (kind, draft), told in leaves({kind: told for kind, told in wave.items() if isinstance(told, Mapping)}, 2):
        ticks = [f"{told[name]:.1f}" if name in told else "" for name in ("ticks_a_token", "ticks_expected")]
        same = f"{told['identical_texts']} of {told['texts']}"
        if kind == "refusing":  # nothing is in flight most of the time, and such loops blow rounding errors up
            ticks, same = ["", ""], ""
        ratios = [spread(told["over greedy"]), spread(told.get("over rounds"))]
        rows.append([f"{kind}, {draft}", *ratios, percent(told["acceptance"]), *ticks, str(told["near_ties"]), same])
    yield Table.of("Waves", columns, rows)


def foretold_tables(foretold: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["LoopCD drafted, of the drafts so many right", "over greedy", "over LoopCD", "expected", "drafts"]
    columns += ["tokens until one was wrong", "contested", "texts as undrafted"]
    rows = []
    for (model, _, kind), told in leaves(foretold, 3):
        ratios = [spread(told["over greedy"]), spread(told["over loopcd"]), f"{told['expected']:.2f}"]
        shape = f"{kind}, {told['draft_length']} tokens by loop {told['draft_loops']}"
        same = f"{told['identical_texts']} of {told['texts']}"
        did = [shape, f"{told['accepted_length']:.2f}", percent(told["contested"]), same]
        rows.append([f"{model}, {percent(told['right'])}", *ratios, *did])
    yield Table.of("Foretold drafts", columns, rows)


def evaluation_tables(evaluation: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["over greedy in step; each text at its own loop, or in step too", "throughput", "loops", "texts as in step"]
    rows = [
        [
            f"{what}: {name}",
            spread(told["over in step"]),
            f"{told['loops_per_token']:.1f}",
            f"{told['as_in_step']} of {told['texts']}",
        ]
        for (what, name), told in leaves(evaluation, 2)
    ]
    yield Table.of("Evaluation", columns, rows)


def device_tables(devices: Mapping[str, Any]) -> Iterator[Table]:
    models = list(devices)
    names = list(dict.fromkeys(name for told in devices.values() for name in told["cost"]))
    rows = [["a step takes", *(f"{devices[m]['step_seconds'] * 1e3:.2f} ms" for m in models)]]
    rows += [["operators called in a step", *(f"{devices[m]['operators']['calls_per_step']:.0f}" for m in models)]]
    rows += [[name, *(percent(devices[m]["cost"][name]["median"]) for m in models)] for name in names]
    yield Table.of("What each device costs, as a share of a step", ["device", *models], rows)
    stages = [[f"stage: {key}", *(percent(devices[m]["stages"][key]) for m in models)] for key in devices[models[0]]["stages"]]
    kinds = devices[models[0]]["operators"]["share"]
    stages += [[f"operators: {key}", *(percent(devices[m]["operators"]["share"][key]) for m in models)] for key in kinds]
    yield Table.of("Where the time of a step goes", ["share of the time", *models], stages)


def compile_tables(compiled: Mapping[str, Any]) -> Iterator[Table]:
    rows = []
    for (model, batch), told in leaves(compiled, 2):
        found = [told.get("failed", ""), ""]
        if "failed" not in told:
            found = [spread(told["compiled/plain"]), f"{told['start_up_seconds']:.0f} s"]
        rows.append([f"{model}, batch {batch}", *found])
    yield Table.of("Compiling", ["layers compiled by torch.compile", "compiled over plain", "longer at the first passes"], rows)


def memory_tables(memory: Mapping[str, Any]) -> Iterator[Table]:
    columns = ["peak of a process that generates", "plain", "drafted", "drafted over plain", "beyond the loaded model"]
    columns += ["cache, drafted over plain"]
    rows = []
    for (model, case, name), told in leaves(memory, 3):
        sizes = [f"{told[key]['peak_bytes'] / 1e6:.0f} MB" for key in ("plain", "drafted")]
        less, more = ((told[key]["peak_bytes"] - told[key]["loaded_bytes"]) / 1e6 for key in ("plain", "drafted"))
        found = [f"{told['drafted_over_plain']:.3f}", f"{less:.1f} and {more:.1f} MB"]
        rows.append([f"{model}, {case}, {name}", *sizes, *found, f"{told['cache_over_plain']:.3f}"])
    yield Table.of("Memory of drafting", columns, rows)


def load_tables(load: Mapping[str, Any]) -> Iterator[Table]:
    rows = [["checkpoint", f"{load['checkpoint_bytes'] / 1e9:.3f} GB"]]
    if load["peak_bytes"] is not None:
        rows += [["peak of resident memory beyond the imports", f"{load['peak_bytes'] / 1e9:.3f} GB"]]
        rows += [["peak over checkpoint", f"{load['over_checkpoint']:.3f}"]]
    rows += [["time", f"{load['seconds']:.1f} s"]]
    yield Table.of("Loading", ["loading", "found"], rows)
