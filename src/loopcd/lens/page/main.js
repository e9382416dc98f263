// Puts the page together.

import { pick, startAnswer, step } from "./answer.js";
import { chartData } from "./chart.js";
import { open, say, startExamples } from "./examples.js";
import { startLive } from "./live.js";
import { current, set, state } from "./state.js";
import { startStrip } from "./strip.js";
import { element } from "./text.js";
import { startToken } from "./token.js";
import { startWhatIf } from "./whatif.js";

function startTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const redraw = () => set({ theme: state.theme + 1 });
  const order = ["", "light", "dark"];
  const name = () => ({ "": "system", light: "light", dark: "dark" })[root.dataset.theme ?? ""];
  const label = () => button.replaceChildren("◐ ", element("span", {}, "Theme: "), name());
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    label();
    redraw();
  });
  dark.addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraw();
    width = innerWidth;
  });
  label();
}

function startHelp() {
  const help = document.getElementById("help");
  document.getElementById("open-help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !event.target.closest("input, textarea")) help.showModal();
  });
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  startTheme();
  startHelp();
  startWhatIf();
  startAnswer();
  startStrip();
  startToken();
  startExamples();
  document.getElementById("model").replaceChildren(element("bdi", {}, data.title ?? ""));
  document.getElementById("note").textContent = data.note ?? "";
  if (data.served) return startLive(data.served);
  if (!data.examples.length) return say("This page holds no traces: loopcd lens --export FILE writes one that does.");
  set({ examples: data.examples.map((each) => ({ ...each, traces: undefined, load: async () => each.traces })) });
  return open(data.examples[0].id);
}

// for tests and for the browser's console
window.lens = { state, current, pick, step, chartData, set };
start();
