// The answers as text: tokens coloured by a quantity, two methods side by side, differences marked and joined.

import { align, rows } from "./align.js";
import { QUANTITIES, tint } from "./colour.js";
import { joinDifferences, joins, markJoin } from "./joins.js";
import { methodName, set, sideName, state, watch } from "./state.js";
import { element, parts, percent, shown } from "./text.js";

const tokens = { left: [], right: [] }; // the elements, by side and position
let runs = []; // of the alignment

const box = () => document.getElementById("answers");
const lines = () => document.getElementById("lines");

export function startAnswer() {
  watch(["left", "right", "grown"], draw);
  watch(["colour", "hardOnly", "setting"], colourTokens);
  watch(["colour"], drawLegend);
  watch(["theme"], join);
  watch(["selected"], select);
  watch(["left", "right", "grown", "setting"], drawHeads);
  const area = lines();
  area.addEventListener("pointerover", (event) => set({ hovered: placeOf(event.target) }));
  area.addEventListener("pointerleave", () => set({ hovered: null }));
  area.addEventListener("click", (event) => pick(placeOf(event.target)));
  area.addEventListener("focusin", (event) => pick(placeOf(event.target), false));
  area.addEventListener("keydown", onKey);
  for (const [name, quantity] of Object.entries(QUANTITIES)) document.getElementById("colours").append(choice(name, quantity));
  document.getElementById("hard-only").addEventListener("change", (event) => set({ hardOnly: event.target.checked }));
  document.getElementById("next-difference").addEventListener("click", () => pick(step("difference", 1)));
  document.getElementById("next-hard").addEventListener("click", () => pick(step("hard", 1)));
  new ResizeObserver(join).observe(area);
}

function choice(name, quantity) {
  const input = element("input", {
    type: "radio",
    name: "colour",
    value: name,
    checked: name === state.colour,
    onchange: () => set({ colour: name }),
  });
  return element("label", {}, input, element("span", {}, quantity.title));
}

// Drawing

function draw() {
  const [left, right] = [state.left, state.right];
  tokens.left = [];
  tokens.right = [];
  box().classList.toggle("alone", !right);
  if (!left) return lines().replaceChildren();
  const ids = (trace) => trace.tokens.map((token) => token.id);
  runs = align(ids(left), ids(right ?? left));
  const made = rows(runs, (position) => left.tokens[position].piece.includes("\n"), state.writing);
  lines().replaceChildren(...made.map((row) => drawRow(row)), joins());
  colourTokens();
  drawLegend();
  select();
  join();
}

function join() {
  joinDifferences(lines(), differenceOf(state.selected));
}

function drawRow(row) {
  const cell = (side) =>
    element(
      "div",
      { class: `cell ${side}`, role: "presentation", "data-name": sideName(side) },
      row[side].map((segment) => drawSegment(side, segment)),
    );
  return element("div", { class: "row", role: "presentation" }, cell("left"), state.right && cell("right"));
}

function drawSegment(side, { difference, from, to }) {
  const made = state[side].tokens.slice(from, to).map((token, i) => drawToken(side, from + i, token, difference));
  if (!difference || !state.right) return made;
  const badge = element("span", { class: "badge", "aria-hidden": "true" }, String(difference));
  return element("span", { class: "differs", role: "presentation", data: { difference, side } }, badge, made);
}

function drawToken(side, position, token, difference) {
  const made = element("bdi", { class: "token", role: "option", tabindex: "-1", data: { side, position, difference } });
  const pieces = parts(token.piece);
  for (const part of pieces) made.append(part.mark ? element("span", { class: "mark" }, part.text) : part.text);
  if (!pieces.length) made.append(element("span", { class: "mark" }, "·")); // a part of a character
  tokens[side][position] = made;
  return made;
}

function colourTokens() {
  const quantity = QUANTITIES[state.colour];
  for (const side of ["left", "right"]) {
    const trace = state[side];
    if (!trace || tokens[side].length !== trace.length) continue;
    trace.tokens.forEach((token, position) => {
      const made = tokens[side][position];
      const asWritten = token.choice(state.setting.amateurLoop, state.setting.strength) === token.id;
      made.style.backgroundColor = tint(quantity.hue, quantity.share(token, state.setting));
      made.classList.toggle("hard", token.hard);
      made.classList.toggle("dim", state.hardOnly && !token.hard);
      made.classList.toggle("would-change", !asWritten);
      made.setAttribute("aria-label", label(side, position, token, quantity, asWritten));
    });
  }
}

function label(side, position, token, quantity, asWritten) {
  const trace = state[side];
  const facts = [
    `${sideName(side)}, token ${position + 1} of ${trace.length}: ${shown(token.piece)}`,
    quantity.value(token, state.setting),
    token.hard && "hard",
    tokens[side][position].dataset.difference !== "0" && state.right && "differs from the other text",
    !asWritten && `LoopCD would choose ${shown(trace.textOf(token.choice(state.setting.amateurLoop, state.setting.strength)))}`,
  ];
  return facts.filter(Boolean).join(", ");
}

function drawLegend() {
  const quantity = QUANTITIES[state.colour];
  const trace = state.right ?? state.left;
  if (!trace) return;
  const [low, high] = quantity.ends(trace);
  const steps = state.colour === "changed" ? [0, 1] : [0, 0.2, 0.4, 0.6, 0.8, 1];
  const swatches = steps.map((share) => element("i", { style: { "background-color": tint(quantity.hue, share) } }));
  const keys = [
    element("span", { class: "key" }, low, element("span", { class: "swatches" }, swatches), high),
    element("span", { class: "key" }, element("b", { class: "sample hard" }, "7"), "hard token"),
    state.right && element("span", { class: "key" }, element("b", { class: "sample differs" }, "7"), "texts differ"),
    element("span", { class: "key" }, element("b", { class: "sample would-change" }, "7"), "LoopCD would choose another"),
  ];
  document.getElementById("legend").replaceChildren(...keys.filter(Boolean));
}

function drawHeads() {
  for (const side of ["left", "right"]) {
    const trace = state[side];
    const head = document.getElementById(`head-${side}`);
    head.hidden = !trace;
    if (trace) head.replaceChildren(...headOf(trace));
  }
}

function headOf(trace) {
  const right = trace.extra.correct;
  const figures = trace.summary(state.setting.amateurLoop, state.setting.strength);
  const judged =
    typeof right === "boolean" && element("span", { class: right ? "right" : "wrong" }, right ? "✓ right" : "✗ wrong");
  const { name, settings } = methodName(trace);
  const setting =
    name === "LoopCD" ? `amateur loop ${trace.amateurLoop}, strength ${Number(trace.strength.toFixed(3))}` : settings;
  const figure = (name, value, title) => element("div", { title }, element("dt", {}, name), element("dd", {}, value));
  return [
    element("h3", {}, element("bdi", {}, name), judged, setting && element("small", {}, element("bdi", {}, setting))),
    element(
      "dl",
      {},
      figure("hard", percent(figures.hard, 1), "Share of hard tokens: margin dropped by 1.5 or more from its peak"),
      figure("trace entropy", figures.entropy.toFixed(3), "Mean entropy of the last loop, in nats"),
      figure("loops", figures.loops.toFixed(1), "Mean number of loops run for a token"),
      figure("changed", String(figures.changed), "Positions of this text where LoopCD’s choice is not greedy’s"),
    ),
  ];
}

// Moving through the tokens

function placeOf(node) {
  const found = node.closest?.(".token");
  return found ? { side: found.dataset.side, position: Number(found.dataset.position) } : null;
}

function differenceOf({ side, position }) {
  return Number(tokens[side]?.[position]?.dataset.difference ?? 0);
}

/** Select a token, and put the keyboard's focus on it. */
export function pick(place, focus = true) {
  if (!place || !state[place.side]?.tokens[place.position]) return;
  const { side, position } = state.selected;
  if (side !== place.side || position !== place.position) set({ selected: place });
  if (focus) tokens[place.side][place.position]?.focus({ preventScroll: false });
}

function select() {
  const before = lines().querySelector('.token[aria-selected="true"]');
  before?.setAttribute("aria-selected", "false");
  if (before) before.tabIndex = -1;
  const { side, position } = state.selected;
  const made = tokens[side][position];
  made?.setAttribute("aria-selected", "true");
  if (made) made.tabIndex = 0; // one stop in the page's order of focus, wherever the selection is
  markJoin(differenceOf(state.selected));
}

/** The next place of a kind on a side: any token, a hard one, or the beginning of a difference; null at the end. */
export function step(kind, direction, { side, position } = state.selected) {
  const all = state[side].tokens;
  for (let at = position + direction; at >= 0 && at < all.length; at += direction) {
    const begins =
      differenceOf({ side, position: at }) && differenceOf({ side, position: at - 1 }) !== differenceOf({ side, position: at });
    if (kind === "any" || (kind === "hard" && all[at].hard) || (kind === "difference" && begins)) return { side, position: at };
  }
  return null;
}

/** Where the texts part for the first time: on the right side, whose method changed something. */
export function firstDifference() {
  const run = runs.find((each) => !each.same);
  if (!run || !state.right) return null;
  return run.right[0] < run.right[1] ? { side: "right", position: run.right[0] } : { side: "left", position: run.left[0] };
}

/** The same place in the other text. */
function counterpart({ side, position }) {
  if (!state.right) return null;
  const other = side === "left" ? "right" : "left";
  const run = runs.find((each) => position >= each[side][0] && position < each[side][1]);
  if (!run) return null;
  const inside = run.same ? position - run[side][0] : 0;
  return { side: other, position: Math.min(run[other][0] + inside, state[other].length - 1) };
}

/** The token above or below. */
function vertical({ side, position }, direction) {
  const here = tokens[side][position].getBoundingClientRect();
  const middle = here.left + here.width / 2;
  let best = null;
  tokens[side].forEach((made, at) => {
    const box = made.getClientRects()[0];
    const down = (box.top - here.top) * direction;
    if (down < here.height / 2) return;
    const distance = down * 1000 + Math.abs(box.left + box.width / 2 - middle);
    if (!best || distance < best.distance) best = { distance, at };
  });
  return best && { side, position: best.at };
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.left) return;
  const kind = state.hardOnly ? "hard" : "any";
  const { side } = state.selected;
  const moves = {
    ArrowRight: () => step(kind, 1),
    ArrowLeft: () => step(kind, -1),
    ArrowDown: () => vertical(state.selected, 1),
    ArrowUp: () => vertical(state.selected, -1),
    Home: () => ({ side, position: 0 }),
    End: () => ({ side, position: state[side].length - 1 }),
    n: () => step("difference", 1),
    p: () => step("difference", -1),
    h: () => step("hard", 1),
    s: () => counterpart(state.selected),
  };
  const move = moves[event.key];
  if (!move) return;
  event.preventDefault();
  set({ hovered: null });
  pick(move());
}
