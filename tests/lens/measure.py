"""How long the page takes to show a token, in a real browser: `python tests/lens/measure.py [TOKENS] [LOOPS]`, as JSON.

Two texts of so many tokens side by side. Measured is what selecting a token and what one step of a slider cost the page's
thread until the frame is painted: its processor time, which other work on the machine does not change, and the time passed.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from lens.conftest import chromium
from loopcd.lens import examples_of, export
from loopcd.tracing import LoopTrace

SCRIPT = """async ([what, i, tokens]) => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const began = performance.now();
  if (what === "select") lens.pick({ side: i % 2 ? "left" : "right", position: (i * 37 + 11) % tokens });
  else lens.set({ setting: { amateurLoop: 1 + (i % 3), strength: ((i * 7) % 10) / 10 } });
  await frame();
  return performance.now() - began;
}"""


def random_trace(tokens: int, loops: int, method: str, seed: int, vocabulary: int = 400, top: int = 6) -> LoopTrace:
    """Logits drawn at random, a tenth of the tokens with many plausible ones."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(tokens, loops, vocabulary)).astype(np.float32) * 2
    z[:, :, 0] += np.where(draw.random(tokens) < 0.1, 1.0, 12.0)[:, None]
    order = np.argsort(-z[:, -1], axis=1, kind="stable")
    sizes = (z[:, -1] >= z[:, -1].max(axis=1, keepdims=True) + np.log(0.1)).sum(axis=1)
    kept = [order[t, : min(64, sizes[t])] for t in range(tokens)]
    winner = order[:, 0]
    rest = z.copy()
    rest[np.arange(tokens), :, winner] = -np.inf
    norm = np.log(np.exp(z).sum(axis=-1))
    tops = np.argsort(-z, axis=2, kind="stable")[:, :, :top]
    ids = np.where(draw.random(tokens) < 0.9, winner, draw.integers(0, vocabulary, tokens))
    texts = {v: f" w{v}" if v % 9 else f"w{v}\n" for v in range(vocabulary)}
    return LoopTrace(
        prompt="a long text",
        text="",
        prompt_ids=np.zeros(1, np.int32),
        token_ids=ids.astype(np.int32),
        pieces=tuple(texts[int(v)] for v in ids),
        exit_loop=np.full(tokens, loops, np.int16),
        winner=winner.astype(np.int32),
        logit=z[np.arange(tokens), :, winner],
        runner_up=rest.max(axis=2),
        log_norm=norm.astype(np.float32),
        entropy=(norm - (np.exp(z - norm[..., None]) * z).sum(axis=-1)).astype(np.float32),
        change=np.ones((tokens, loops), np.float32),
        top_ids=tops.astype(np.int32),
        top_logits=np.take_along_axis(z, tops, axis=2),
        plausible_count=sizes.astype(np.int32),
        plausible_ids=np.concatenate(kept).astype(np.int32),
        plausible_logits=np.concatenate([z[t][:, ids].T for t, ids in enumerate(kept)]),
        unconstrained=winner.astype(np.int32),
        amateur_loop=max(1, loops // 4),
        strength=0.3,
        plausibility=0.1,
        num_loops=loops,
        model="random",
        method=method,
        token_texts=texts,
    )


def main(tokens: int = 600, loops: int = 32, rounds: int = 30) -> None:
    traces = [random_trace(tokens, loops, method, seed) for seed, method in enumerate(("Greedy()", "LoopCD()"))]
    told: dict[str, Any] = {"tokens": tokens, "loops": loops}
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        told["page_kB"] = round(export(path, examples_of(traces)[0]) / 1000)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        meter = page.context.new_cdp_session(page)
        meter.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.as_uri())
        page.wait_for_selector(".token")
        told["opening_cpu_ms"] = round(spent(meter))
        for what in ("select", "slide"):
            costs, passed = [], []
            for i in range(rounds):
                before = spent(meter)
                passed.append(page.evaluate(SCRIPT, [what, i, tokens]))
                costs.append(spent(meter) - before)
            told[what] = {"cpu_ms": summary(costs), "passed_ms": summary(passed)}
        browser.close()
    sys.stdout.write(json.dumps(told) + "\n")


def spent(meter: Any) -> float:
    """Milliseconds of processor time that the page's thread has taken."""
    metrics = {each["name"]: each["value"] for each in meter.send("Performance.getMetrics")["metrics"]}
    return 1000 * metrics["TaskDuration"]


def summary(values: list[float]) -> dict[str, float]:
    return dict(zip(("median", "p95", "most"), np.quantile(values, [0.5, 0.95, 1.0]).round(1).tolist(), strict=True))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
