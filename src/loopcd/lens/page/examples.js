// Stepping through examples, and showing only some of them.

import { firstDifference } from "./answer.js";
import { methodName, set, state, watch } from "./state.js";
import { element, isolated, shown } from "./text.js";
import { Trace } from "./trace.js";

const OUTCOMES = { gained: "wrong → right", lost: "right → wrong", right: "right", wrong: "wrong" };
const graded = (outcome, texts) => (texts > 1 && ["right", "wrong"].includes(outcome) ? `both ${outcome}` : OUTCOMES[outcome]);
const FILTERS = {
  all: { title: "All", takes: () => true },
  gained: { title: "wrong → right", takes: (each) => each.outcome === "gained" },
  lost: { title: "right → wrong", takes: (each) => each.outcome === "lost" },
  wrong: { title: "", takes: (each) => each.outcome === "wrong" }, // one text, or both: see `titled`
  differ: { title: "texts differ", takes: (each) => each.differs },
};

/** A filter's name; an example that is wrong has one text, or is wrong in both. */
const titled = (each) => each.title || graded("wrong", Math.max(...state.examples.map(({ texts }) => texts ?? 1)));

let filter = "all";
let loading = 0; // counts requests, so that a late answer does not replace a newer one
const at = (id) => document.getElementById(id);

export function startExamples() {
  watch(["examples", "example", "hardOnly"], draw);
  watch(["example"], drawQuestion);
  at("previous").addEventListener("click", () => go(-1));
  at("next").addEventListener("click", () => go(1));
  at("example").addEventListener("change", (event) => open(event.target.value));
  at("side-left").addEventListener("change", pickSides);
  at("side-right").addEventListener("change", pickSides);
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "[") go(-1);
    if (event.key === "]") go(1);
  });
}

function wanted() {
  return state.examples.filter((each) => FILTERS[filter].takes(each) && (!state.hardOnly || each.hard > 0));
}

function draw() {
  const listed = wanted();
  const opened = state.example?.id;
  at("example-bar").hidden = state.examples.length === 0;
  at("filters").replaceChildren(
    ...Object.entries(FILTERS).map(([name, each]) => {
      const count = state.examples.filter(each.takes).length;
      const input = element("input", {
        type: "radio",
        name: "filter",
        value: name,
        checked: name === filter,
        disabled: !count && name !== filter,
        onchange: () => choose(name),
      });
      return element("label", {}, input, element("span", {}, titled(each), element("small", {}, ` ${count}`)));
    }),
  );
  at("example").replaceChildren(
    ...listed.map((each, i) =>
      element("option", { value: each.id, selected: each.id === opened }, `${i + 1}. ${shown(each.label)}`),
    ),
  );
  const place = listed.findIndex((each) => each.id === opened);
  at("place").textContent = listed.length ? `${place < 0 ? "–" : place + 1} of ${listed.length}` : "none";
  at("previous").disabled = place <= 0;
  at("next").disabled = listed.length === 0 || place === listed.length - 1;
  drawOutcome();
}

function drawOutcome() {
  const listed = state.examples.find((each) => each.id === state.example?.id);
  const outcome = listed?.outcome;
  at("outcome").textContent = graded(outcome, listed?.texts) ?? "";
  at("outcome").className = `outcome ${outcome ?? ""}`;
}

/** What stands above the answers: the question, and the right answer where it is known. */
function drawQuestion() {
  const example = state.example;
  const prompt = at("prompt-text");
  prompt.replaceChildren(isolated(example?.prompt.trim() ?? ""));
  const model = example?.traces?.[0].model ?? ""; // where the page's head does not say it
  const known = at("model").textContent.split(", ")[0] === model;
  at("of-model").replaceChildren(...(known || !model ? [] : ["of ", isolated(model)]));
  const gold = example?.gold;
  document
    .getElementById("gold")
    .replaceChildren(...(gold === undefined || gold === null ? [] : ["right answer ", isolated(String(gold))]));
}

function choose(name) {
  filter = name;
  const listed = wanted();
  draw();
  if (listed.length && !listed.some((each) => each.id === state.example?.id)) open(listed[0].id);
}

function go(direction) {
  const listed = wanted();
  const place = listed.findIndex((each) => each.id === state.example?.id);
  const next = place < 0 ? listed[0] : listed[place + direction];
  if (next) open(next.id);
}

/** Show an example; where it has to be fetched first, what was asked for last wins. */
export async function open(id) {
  const listed = state.examples.find((each) => each.id === id);
  if (!listed) return;
  const number = ++loading;
  try {
    const traces = listed.traces ?? (await listed.load()).map((payload) => Trace.from(payload));
    if (number !== loading) return;
    listed.traces = traces;
    show({ ...listed, traces });
  } catch (error) {
    say(`This example cannot be shown: ${error.message}`, true);
  }
}

/** Put an example's traces side by side: greedy first where it is there. */
export function show(example) {
  const { traces } = example;
  const first = Math.max(
    0,
    traces.findIndex((trace) => methodName(trace).name === "Greedy"),
  );
  const second = traces.findIndex((_, i) => i !== first);
  set({ example, hovered: null, selected: { side: "left", position: 0 } });
  drawSides(traces, first, second);
  set({ left: traces[first], right: traces[second] ?? null });
  set({ selected: firstDifference() ?? { side: "left", position: hardest(traces[first]) } });
}

function hardest(trace) {
  return trace.tokens.reduce((best, token, i) => (token.drop > trace.tokens[best].drop ? i : best), 0);
}

/** Where an example has more than two texts, which two stand side by side. */
function drawSides(traces, first, second) {
  at("sides").hidden = traces.length < 3;
  const options = (chosen) =>
    traces.map((trace, i) => element("option", { value: String(i), selected: i === chosen }, shown(trace.method)));
  at("side-left").replaceChildren(...options(first));
  at("side-right").replaceChildren(...options(second));
}

function pickSides() {
  const { traces } = state.example;
  set({
    hovered: null,
    selected: { side: "left", position: 0 },
    left: traces[Number(at("side-left").value)],
    right: traces[Number(at("side-right").value)],
  });
  set({ selected: firstDifference() ?? { side: "left", position: 0 } });
}

/** A message to the reader, spoken too. */
export function say(text, bad = false) {
  at("message").textContent = text;
  at("message").className = bad ? "bad" : "";
}
