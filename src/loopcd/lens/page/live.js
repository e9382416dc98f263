// With a server behind the page: a prompt, two methods, and their texts token by token; trace files; and the search for
// problems on which the methods differ. The server answers with one JSON object a line.

import { open, say, show } from "./examples.js";
import { set, state } from "./state.js";
import { element, plural } from "./text.js";
import { Trace } from "./trace.js";

const at = (id) => document.getElementById(id);
const secret = new URLSearchParams(location.search).get("token") ?? "";
let running = null; // the AbortController of what is being made
let made = 0; // texts made here

export function startLive(served) {
  at("run").hidden = false;
  at("run-prompt").value = served.prompt || served.suggestion || "";
  at("max-tokens").max = String(served.longest);
  at("max-tokens").value = String(served.max_new_tokens);
  drawMethods(served.methods, served.chosen);
  at("run").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  at("stop").addEventListener("click", () => running?.abort());
  at("search").hidden = !served.searchable;
  at("search").addEventListener("click", search);
  at("files").addEventListener("change", (event) => readFiles([...event.target.files]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    readFiles([...event.dataTransfer.files]);
  });
  if (served.prompt) generate();
  else if (served.examples.length) addExamples(served.examples);
  else if (served.searchable) search();
}

// Methods and their settings

function drawMethods(methods, chosen) {
  for (const side of ["left", "right"]) {
    const names = side === "left" ? methods : [...methods, { name: "", title: "nothing", settings: [] }];
    const menu = element(
      "select",
      { id: `method-${side}` },
      names.map(({ name, title }) => element("option", { value: name, selected: name === chosen[side].name }, title)),
    );
    const fields = element("div", { class: "fields" });
    const draw = (values) => {
      const settings = names.find(({ name }) => name === menu.value).settings;
      const made = (rare) =>
        settings.filter((each) => Boolean(each.rare) === rare).map((each) => drawSetting(side, each, values));
      const more = made(true).length
        ? element(
            "details",
            { class: "more" },
            element("summary", {}, "early exit"),
            element("div", { class: "fields" }, made(true)),
          )
        : null;
      fields.replaceChildren(...made(false), ...(more ? [more] : []));
    };
    menu.addEventListener("change", () => draw({}));
    at(`methods-${side}`).replaceChildren(
      element("label", { class: "method" }, element("span", {}, side === "left" ? "Method" : "beside it"), menu),
      fields,
    );
    draw(chosen[side].settings);
  }
}

function drawSetting(side, { name, title, type, value, low, high, step }, values) {
  const field = element("input", {
    id: `${side}-${name}`,
    data: { setting: name },
    type,
    value: values[name] ?? value ?? "",
    min: low,
    max: high,
    step: step ?? "any",
    placeholder: value === null ? "off" : null,
  });
  return element("label", {}, element("span", {}, title), field);
}

/** The method on a side with its settings; null where there is none. */
function chosenMethod(side) {
  const name = at(`method-${side}`).value;
  const settings = {};
  for (const field of at(`methods-${side}`).querySelectorAll("[data-setting]")) {
    if (field.value !== "") settings[field.dataset.setting] = field.type === "number" ? Number(field.value) : field.value;
  }
  return name ? { name, settings } : null;
}

// Generating

async function generate() {
  const request = {
    prompt: at("run-prompt").value,
    left: chosenMethod("left"),
    right: chosenMethod("right"),
    max_new_tokens: Number(at("max-tokens").value),
  };
  const sides = {};
  const number = ++made;
  let drawing = 0;
  let newest = null; // the token that is followed, until the reader picks another
  const redraw = () => {
    drawing = 0;
    if (state.example?.id !== `own-${number}`) return;
    const follows = newest === null || state.selected === newest;
    set({ grown: state.grown + 1 });
    if (!follows) return;
    newest = { side: "left", position: sides.left.length - 1 };
    set({ selected: newest });
  };
  await follow("api/generate", request, "Generating …", (event) => {
    if (event.event === "start") sides[event.side] = new Trace(event.trace);
    if (event.event === "token") {
      sides[event.side].append(event.trace);
      const all = Object.values(sides);
      if (
        all.length === (request.right ? 2 : 1) &&
        all.every((trace) => trace.length === 1) &&
        state.example?.id !== `own-${number}`
      )
        set({
          writing: true,
          example: { id: `own-${number}`, prompt: request.prompt },
          left: sides.left,
          right: sides.right ?? null,
          selected: { side: "left", position: 0 },
          hovered: null,
        });
      drawing ||= requestAnimationFrame(redraw);
    }
    if (event.event === "end") sides[event.side] = Trace.from(event.trace);
  });
  cancelAnimationFrame(drawing);
  set({ writing: false });
  const traces = Object.values(sides).filter((trace) => trace.length);
  if (!traces.length) return;
  const listed = {
    id: `own-${number}`,
    label: `your prompt: ${request.prompt.trim().slice(0, 60)}`,
    prompt: request.prompt,
    outcome: null,
    differs:
      traces.length === 2 &&
      String(traces[0].tokens.map((token) => token.id)) !== String(traces[1].tokens.map((token) => token.id)),
    hard: Math.max(...traces.map((trace) => trace.tokens.filter((token) => token.hard).length)),
    traces,
  };
  set({ examples: [...state.examples, listed] });
  show(listed);
}

/** Problems on which the methods write different texts: each is added as it is found, and the first is shown. */
async function search() {
  let found = 0;
  await follow(
    "api/search",
    { left: chosenMethod("left"), right: chosenMethod("right") },
    "Looking for problems on which the methods differ …",
    (event) => {
      if (event.event === "progress")
        say(`Looked at ${plural(event.done, "problem")}, ${plural(event.differ, "pair of texts", "pairs of texts")} differ …`);
      if (event.event === "example") addExamples([event.example], ++found === 1);
      if (event.event === "done") at("note").textContent = event.note;
    },
  );
}

// Talking to the server

/** Send a request, and hand every line of the answer to `take`; one request at a time. */
async function follow(path, body, doing, take) {
  running?.abort();
  const controller = new AbortController();
  running = controller;
  busy(true);
  say(doing);
  let problem = "";
  try {
    const answer = await fetch(path, {
      method: "POST",
      body: JSON.stringify(body),
      headers: headers("application/json"),
      signal: controller.signal,
    });
    if (!answer.ok) throw new Error(await problemOf(answer));
    for await (const line of linesOf(answer.body)) {
      const event = JSON.parse(line);
      if (event.event === "error") throw new Error(event.message);
      take(event);
    }
  } catch (error) {
    problem = controller.signal.aborted ? "Stopped." : error.message;
  }
  if (running !== controller) return; // something newer runs
  running = null;
  busy(false);
  say(problem, problem !== "" && problem !== "Stopped.");
}

function busy(on) {
  at("stop").hidden = !on;
  document.body.classList.toggle("busy", on);
  at("lines").setAttribute("aria-busy", String(on));
}

const headers = (type) => ({ "Content-Type": type, "X-Lens-Token": secret });

async function problemOf(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const found = (rest + value).split("\n");
    rest = found.pop();
    yield* found.filter(Boolean);
  }
  if (rest) yield rest;
}

function addExamples(summaries, andOpen = true) {
  const listed = summaries.map((each) => ({ ...each, load: () => fetchTraces(each.id) }));
  set({ examples: [...state.examples, ...listed] });
  if (andOpen && listed.length) open(listed[0].id);
}

async function fetchTraces(id) {
  const answer = await fetch(`api/examples/${encodeURIComponent(id)}`, { headers: headers("application/json") });
  if (!answer.ok) throw new Error(await problemOf(answer));
  return (await answer.json()).traces;
}

async function readFiles(files) {
  for (const file of files) {
    say(`Reading ${file.name} …`);
    try {
      const answer = await fetch(`api/files?name=${encodeURIComponent(file.name)}`, {
        method: "POST",
        body: file,
        headers: headers("application/octet-stream"),
      });
      if (!answer.ok) throw new Error(await problemOf(answer));
      const { examples, note } = await answer.json();
      addExamples(examples);
      say(note);
    } catch (error) {
      say(`${file.name}: ${error.message}`, true);
    }
  }
  at("files").value = "";
}
