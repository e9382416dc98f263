// Margin and entropy of one token by loop: a line chart, and the same as a table.

import { line } from "./colour.js";
import { element, number, percent, shown, table } from "./text.js";

let chart = null;
let marked = 0; // the amateur's loop

/** The chart that stands now, for whoever wants to read its numbers. */
export function chartData() {
  return chart?.data ?? null;
}

export function drawChart(box, token, amateurLoop) {
  const loops = Array.from({ length: token.loops }, (_, i) => i + 1);
  const data = [loops, Array.from(token.margin), Array.from(token.entropy)];
  const width = Math.max(260, Math.floor(box.clientWidth));
  const look = `${width} ${token.loops} ${line("expert")}`;
  marked = amateurLoop;
  if (!chart || chart.look !== look || chart.root.parentNode !== box) {
    chart?.destroy();
    chart = new uPlot(options(width, token.loops), data, box);
    chart.look = look;
  } else chart.setData(data);
  drawKey(data, token.loops - 1);
  box.setAttribute("aria-label", spoken(token, amateurLoop));
}

function options(width, loops) {
  const ink = getComputedStyle(document.body).color;
  const grid = { stroke: "rgb(128 136 150 / 0.22)", width: 1 };
  const axis = (more) => ({
    stroke: ink,
    grid,
    ticks: { ...grid, size: 4 },
    font: "11px system-ui",
    labelFont: "11px system-ui",
    ...more,
  });
  const whole = (_, from, to) =>
    Array.from({ length: to - from + 1 }, (_, i) => from + i).filter((loop) => loops <= 16 || loop === 1 || loop % 4 === 0);
  return {
    width,
    height: 190,
    padding: [18, 4, 0, 0],
    scales: {
      x: { time: false, range: [1, loops] },
      margin: { range: (_, low, high) => padded(Math.min(low, 0), Math.max(high, 1)) },
      entropy: { range: (_, low, high) => [0, Math.max(high * 1.08, 0.5)] },
    },
    axes: [
      axis({
        splits: (_, __, low, high) => whole(_, Math.ceil(low), Math.floor(high)),
        values: (_, all) => all.map(String),
        size: 34,
        label: "loop",
        labelSize: 14,
        labelGap: -2,
      }),
      axis({
        scale: "margin",
        size: 42,
        stroke: line("expert"),
        values: (_, all) => all.map((value) => number(value, decimals(all))),
      }),
      axis({
        scale: "entropy",
        side: 1,
        size: 42,
        stroke: line("entropy"),
        grid: { show: false },
        values: (_, all) => all.map((value) => number(value, decimals(all))),
      }),
    ],
    series: [
      {},
      { scale: "margin", stroke: line("expert"), width: 2, points: { size: 5, fill: line("expert") } },
      { scale: "entropy", stroke: line("entropy"), width: 2, dash: [5, 4], points: { size: 5, fill: line("entropy") } },
    ],
    cursor: { drag: { x: false, y: false }, points: { size: 8 } },
    legend: { show: false },
    hooks: { drawClear: [drawMarks], setCursor: [(plot) => drawKey(plot.data, plot.cursor.idx ?? loops - 1)] },
  };
}

const padded = (low, high) => [low - (high - low) * 0.06, high + (high - low) * 0.08];
/** Digits that tell an axis's values apart. */
function decimals(values) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : 1;
  return [0, 1, 2].find((digits) => Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6) ?? 3;
}

/** Which line is which, with its value at the loop under the pointer, else at the last. */
function drawKey([loops, margins, entropies], at) {
  const key = (name, hue, value) =>
    element("span", { style: { color: line(hue) } }, `${name} `, element("b", {}, number(value)));
  document
    .getElementById("chart-key")
    .replaceChildren(
      key("━ margin", "expert", margins[at]),
      key("╍ entropy", "entropy", entropies[at]),
      `after loop ${loops[at]}`,
    );
}

/** The amateur's loop as a band, and the line below which another token leads. */
function drawMarks(plot) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  const x = plot.valToPos(marked, "x", true);
  ctx.fillStyle = line("amateur", 0.28);
  ctx.fillRect(x - 5 * ratio, bbox.top, 10 * ratio, bbox.height);
  ctx.fillStyle = line("amateur");
  ctx.font = `${11 * ratio}px system-ui`;
  ctx.textAlign = "center";
  const half = 26 * ratio; // of the word's width, which stays within the chart
  ctx.fillText(
    "amateur",
    Math.max(bbox.left + half - 12 * ratio, Math.min(bbox.left + bbox.width - half + 12 * ratio, x)),
    bbox.top - 5 * ratio,
  );
  const zero = plot.valToPos(0, "margin", true);
  ctx.strokeStyle = line("expert", 0.6);
  ctx.lineWidth = ratio;
  ctx.beginPath();
  ctx.moveTo(bbox.left, zero);
  ctx.lineTo(bbox.left + bbox.width, zero);
  ctx.stroke();
  ctx.restore();
}

function spoken(token, amateurLoop) {
  const last = token.loops - 1;
  return (
    `Margin and entropy by loop. Margin ${number(token.margin[0])} after loop 1, highest ${number(token.margin[token.peak])} after loop ` +
    `${token.peak + 1}, ${number(token.margin[last])} after the last. Entropy ${number(token.entropy[0])} after loop 1, ` +
    `${number(token.entropy[last])} after the last. The amateur is loop ${amateurLoop}. All numbers are in the table below.`
  );
}

/** All numbers of a token, one row a loop. */
export function numbersTable(trace, token) {
  const head = ["loop", "best token", "margin", "entropy", "probability of the final choice", "change of state"];
  const rows = token.leaders.map((id, i) => [
    String(i + 1),
    element("bdi", {}, shown(trace.textOf(id))),
    number(token.margin[i], 3),
    number(token.entropy[i], 3),
    percent(Math.exp(token.logit[i] - token.logNorm[i]), 1),
    number(token.change[i], 3),
  ]);
  const heads = head.map((text) => element("th", { scope: "col" }, text));
  const cells = (row) => row.map((cell, i) => element(i ? "td" : "th", { scope: i ? null : "row" }, cell));
  return table(
    "numbers",
    heads,
    rows.map((row) => element("tr", {}, cells(row))),
  );
}
