// The panel of one token: what it is, why it was chosen, and its charts.

import { drawChart, numbersTable } from "./chart.js";
import { explain } from "./explain.js";
import { current, sideName, state, watch } from "./state.js";
import { heatMap, plausibleSet } from "./tables.js";
import { chip, element, plural } from "./text.js";

export function startToken() {
  watch(["left", "right", "selected", "hovered", "setting", "theme"], draw);
  document.getElementById("numbers").addEventListener("toggle", drawNumbers);
}

function draw() {
  const looked = current();
  document.getElementById("token").classList.toggle("empty", !looked);
  if (!looked) return;
  const { side, position, trace, token } = looked;
  const { setting } = state;
  put("token-head", ...heading(looked));
  put("why", ...explain(trace, token, setting, sharedPast(side, position)));
  drawChart(document.getElementById("chart"), token, setting.amateurLoop);
  put("heat", heatMap(trace, token, setting.amateurLoop));
  put("plausible", plausibleSet(trace, token, setting));
  document.getElementById("plausible-note").textContent = note(trace, token);
  drawNumbers();
}

const put = (id, ...nodes) => document.getElementById(id).replaceChildren(...nodes);

function heading({ side, position, trace, token }) {
  const changed = token.choice(state.setting.amateurLoop, state.setting.strength) !== token.winner;
  const badges = [
    token.hard && element("span", { class: "badge-hard" }, "hard"),
    changed && element("span", { class: "badge-changed" }, "changed by LoopCD"),
    token.lateFlip && element("span", {}, "late flip"),
    token.exitLoop < token.loops && element("span", {}, `left after loop ${token.exitLoop}`),
  ];
  return [
    chip(token.piece || trace.textOf(token.id), { class: "large" }),
    element("span", { class: "where" }, element("bdi", {}, sideName(side)), `, token ${position + 1} of ${trace.length}`),
    element("span", { class: "badges" }, badges),
  ];
}

/** Whether both texts are the same before this token, so that both methods saw the same there. */
function sharedPast(side, position) {
  if (!state.right) return true;
  const other = state[side === "left" ? "right" : "left"].tokens;
  return state[side].tokens.slice(0, position).every((token, i) => token.id === other[i]?.id);
}

function note(trace, token) {
  const kept = token.plausibleIds.length;
  const cut = token.plausibleCount > kept ? ` The trace holds the ${kept} best.` : "";
  const free = token.unconstrained;
  const constraint =
    state.setting.amateurLoop === trace.amateurLoop &&
    state.setting.strength === trace.strength &&
    !token.plausibleIds.includes(free)
      ? ` Without the plausibility constraint the contrast would pick an implausible token here.`
      : "";
  const rule = `${plural(token.plausibleCount, "token")} with at least ${trace.plausibility} × the best probability.`;
  return `${rule} ★ marks the best of each column; beside each share stands its logarithm or score.${cut}${constraint}`;
}

function drawNumbers() {
  const looked = current();
  if (looked && document.getElementById("numbers").open) put("numbers-table", numbersTable(looked.trace, looked.token));
}
