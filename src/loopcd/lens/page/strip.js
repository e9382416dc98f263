// The whole answer at a glance: the margin of every token after every loop, as a picture that is drawn once a text.

import { marginColours } from "./colour.js";
import { pick } from "./answer.js";
import { current, set, sideName, state, watch } from "./state.js";
import { element, number, percent } from "./text.js";

let drawn = null; // {trace, cell: [width, height]} of the picture that stands

const at = (id) => document.getElementById(id);

export function startStrip() {
  watch(["left", "right", "grown", "theme"], drawAll);
  watch(["selected", "hovered", "setting"], mark);
  const canvas = at("strip");
  canvas.addEventListener("pointermove", (event) => set({ hovered: placeAt(event) }));
  canvas.addEventListener("pointerleave", () => set({ hovered: null }));
  canvas.addEventListener("click", (event) => pick(placeAt(event)));
}

function placeAt(event) {
  const box = at("strip").getBoundingClientRect();
  const position = Math.floor((event.clientX - box.left) / drawn.cell[0]);
  return { side: drawn.side, position: Math.max(0, Math.min(drawn.trace.length - 1, position)) };
}

function drawAll() {
  drawn = null;
  mark();
}

/** The side that is looked at: its picture, and in it the token and the amateur's loop. */
function mark() {
  const looked = current();
  at("strip-card").hidden = !looked;
  if (!looked) return;
  const { side, position, trace } = looked;
  if (drawn?.trace !== trace || drawn.length !== trace.length) draw(side, trace);
  const [width, height] = drawn.cell;
  const column = at("strip-column").style;
  column.left = `${position * width}px`;
  column.width = `${width}px`;
  const row = at("strip-amateur").style;
  row.top = `${(trace.loops - state.setting.amateurLoop) * height}px`;
  row.height = `${height}px`;
  const apart = (loops) => (loops * height < 12 ? "hidden" : "visible"); // labels that would stand on each other
  at("strip-top").style.visibility = apart(trace.loops - state.setting.amateurLoop);
  at("strip-bottom").style.visibility = apart(state.setting.amateurLoop - 1);
  at("strip-amateur-label").style.top = `${(trace.loops - state.setting.amateurLoop + 0.5) * height - 4}px`;
  row.width = `${width * trace.length}px`;
  const view = at("strip-scroll");
  const x = position * width;
  if (!state.hovered && (x < view.scrollLeft || x + width > view.scrollLeft + view.clientWidth))
    view.scrollLeft = x - view.clientWidth / 2;
}

function draw(side, trace) {
  const room = at("strip-scroll").clientWidth || 600;
  const width = Math.max(4, Math.min(56, Math.floor((room - 4) / trace.length)));
  const height = Math.max(5, Math.min(14, Math.floor(170 / trace.loops)));
  drawn = { trace, side, length: trace.length, cell: [width, height] };
  const scale = scaleOf(trace);
  const canvas = at("strip");
  canvas.width = trace.length; // one pixel a cell; the style makes it larger, with hard edges
  canvas.height = trace.loops;
  canvas.style.width = `${trace.length * width}px`;
  canvas.style.height = `${trace.loops * height}px`;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(trace.length, trace.loops);
  const colour = marginColours();
  trace.tokens.forEach((token, t) => {
    for (let i = 0; i < trace.loops; i++) {
      const [r, g, b] = colour(token.margin[i] / scale);
      picture.data.set([r, g, b, 255], 4 * ((trace.loops - 1 - i) * trace.length + t));
    }
  });
  context.putImageData(picture, 0, 0);
  const grid = at("strip-grid").style; // lines between the cells, where these are large enough
  grid.display = width > 6 ? "block" : "none";
  grid.backgroundSize = `${width}px ${height}px`;
  at("strip-title").replaceChildren(element("bdi", {}, sideName(side)));
  at("strip-top").textContent = `loop ${trace.loops}`;
  at("strip-bottom").textContent = "loop 1";
  canvas.setAttribute("aria-label", spoken(side, trace));
  drawScale(scale);
}

/** The end of the colour scale: what 95 of 100 margins stay within. */
function scaleOf(trace) {
  const sizes = new Float32Array(trace.length * trace.loops);
  trace.tokens.forEach((token, t) => sizes.set(token.margin.map(Math.abs), t * trace.loops));
  return Math.max(1, sizes.sort()[Math.floor(sizes.length * 0.95)] ?? 1);
}

function spoken(side, trace) {
  const { hard, tokens } = trace.summary();
  const behind = trace.tokens.filter((token) => token.margin.some((margin) => margin < 0)).length;
  return (
    `Margins of ${sideName(side)}’s ${tokens} tokens after each of ${trace.loops} loops. ${percent(hard, 1)} of the tokens are hard; ` +
    `at ${behind} another token led after some loop. The arrow keys in the text go from token to token.`
  );
}

function drawScale(scale) {
  const colour = marginColours();
  const swatches = [-1, -0.5, -0.15, 0, 0.15, 0.5, 1].map((share) =>
    element("i", { style: { "background-color": `rgb(${colour(share).join(" ")})` } }),
  );
  at("strip-legend").replaceChildren(
    `margin −${number(scale, 1)} (another token leads)`,
    element("span", { class: "swatches" }, swatches),
    `+${number(scale, 1)} (clear lead)`,
  );
}
