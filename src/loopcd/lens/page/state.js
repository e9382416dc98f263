// What is shown now. Views watch the keys they draw; `set` draws what watches a key that changed, at once.

export const state = {
  examples: [], // all that can be stepped through: {id, label, outcome, hard, load()}
  example: null, // the one that is open: {prompt, question, gold, traces}
  left: null, // traces side by side
  right: null, // null where there is only one
  writing: false, // the texts are still being written
  grown: 0, // counts the tokens that came while they were
  selected: { side: "left", position: 0 },
  hovered: null,
  colour: "hardness",
  hardOnly: false,
  setting: { amateurLoop: 1, strength: 0.3 },
  theme: 0, // counts changes of the theme and of the page's width
};

const views = [];

/** Call `draw` whenever one of the keys changes. */
export function watch(keys, draw) {
  views.push({ keys, draw });
}

export function set(changes) {
  const changed = Object.keys(changes).filter((key) => changes[key] !== state[key]);
  Object.assign(state, changes);
  for (const view of views) if (view.keys.some((key) => changed.includes(key))) view.draw();
}

/** The token that is looked at: under the pointer, else the selected one. */
export function current() {
  const { side, position } = state.hovered ?? state.selected;
  const trace = state[side];
  const token = trace?.tokens[position];
  return token ? { side, position, trace, token } : null;
}

const METHODS = {
  greedy: "Greedy",
  loopcd: "LoopCD",
  loopguidance: "LoopGuidance",
  noisecd: "NoiseCD",
  mti: "MTI",
  selfeval: "SelfEval",
};

/** What the page calls a trace's method, which is noted as in `LoopCD(strength=0.2)` or `loopcd:strength=0.2`. */
export function methodName(trace) {
  const [, name, rest] = /^(\w*)(.*)$/s.exec(trace.method);
  const settings = rest.replace(/^[(:]/, "").replace(/\)$/, "");
  return { name: METHODS[name.toLowerCase()] ?? trace.method, settings: METHODS[name.toLowerCase()] ? settings : "" };
}

export function sideName(side) {
  return methodName(state[side]).name;
}
