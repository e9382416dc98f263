// Sliders for the amateur's loop and the strength: what LoopCD would choose along these texts, from the trace alone.

import { pick } from "./answer.js";
import { set, sideName, state, watch } from "./state.js";
import { chip, element, plural } from "./text.js";

const MOST = 40; // places listed of a text
const at = (id) => document.getElementById(id);
let touched = false; // the reader moved a slider: other examples keep the setting

export function startWhatIf() {
  watch(["left", "right"], adopt);
  watch(["left", "right", "grown", "setting"], draw);
  at("amateur").addEventListener("input", (event) => move({ amateurLoop: Number(event.target.value) }));
  at("strength").addEventListener("input", (event) => move({ strength: Number(event.target.value) }));
  at("reset").addEventListener("click", () => {
    touched = false;
    adopt();
  });
}

function move(change) {
  touched = true;
  set({ setting: { ...state.setting, ...change } });
}

/** The setting that the trace was made for, unless the reader chose one that fits. */
function adopt() {
  const trace = state.right ?? state.left;
  if (!trace) return;
  const deepest = Math.max(1, trace.loops - 1);
  at("amateur").max = String(deepest);
  const own = { amateurLoop: Math.min(trace.amateurLoop, deepest), strength: trace.strength };
  if (!touched || state.setting.amateurLoop > deepest) {
    const { amateurLoop, strength } = state.setting;
    if (amateurLoop !== own.amateurLoop || strength !== own.strength) set({ setting: own });
  }
}

function draw() {
  const trace = state.right ?? state.left;
  if (!trace) return;
  const { amateurLoop, strength } = state.setting;
  at("amateur").value = String(amateurLoop);
  at("strength").value = String(strength);
  at("amateur-value").textContent = `loop ${amateurLoop} of ${trace.loops}`;
  at("strength-value").textContent = String(Number(strength.toFixed(3)));
  at("reset").disabled = amateurLoop === trace.amateurLoop && strength === trace.strength;
  at("changes").replaceChildren(...["left", "right"].filter((side) => state[side]).map(listOf));
}

function listOf(side) {
  const trace = state[side];
  const changes = trace.changes(state.setting.amateurLoop, state.setting.strength);
  const count = changes.length
    ? `${plural(changes.length, "choice")} would differ`
    : "no choice would differ: LoopCD would write this text";
  const buttons = changes
    .slice(0, MOST)
    .map(({ position, from, to }) =>
      element(
        "button",
        { type: "button", data: { side, position, to }, onclick: () => pick({ side, position }) },
        element("span", { class: "place" }, String(position + 1)),
        chip(trace.textOf(from)),
        element("span", { "aria-label": "becomes" }, "→"),
        chip(trace.textOf(to), { class: "contrast" }),
      ),
    );
  const more = changes.length > MOST ? element("span", { class: "more" }, `and ${changes.length - MOST} more`) : null;
  return element(
    "div",
    { class: "change-list", data: { side, count: changes.length } },
    element("h4", {}, "Along ", element("bdi", {}, sideName(side)), `’s text, ${count}`),
    element("div", {}, buttons, more),
  );
}
