// Text of models and files is only ever put in as text, each piece isolated from its neighbours' writing direction,
// and characters that would act on the display instead of being seen are replaced by marks.

// controls, soft hyphen, zero-width and direction marks, line and paragraph separators, fillers, tags, lone surrogates
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;
const COMBINING = /^\p{M}/u;

/** The name of a character that cannot be seen: ␀ for a control, [U+202E] for others. */
function mark(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
}

/** The text as a reader can see it: spaces at its ends as ␣, newlines as ↵. For labels, and tokens by themselves. */
export function shown(text) {
  if (text === "") return "∅";
  const visible = text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(UNSEEN, mark);
  const spaced = visible.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  return COMBINING.test(spaced) ? "\u25cc" + spaced : spaced;
}

/** Parts {text, mark} of a text as it is read: marks stand for what cannot be seen, newlines are kept after their mark. */
export function parts(text) {
  const found = [];
  let at = 0;
  const put = (part, isMark) => part && found.push({ text: part, mark: isMark });
  const special = new RegExp(`${UNSEEN.source}|\\n|\\t`, "gu");
  for (const match of text.matchAll(special)) {
    put(text.slice(at, match.index), false);
    if (match[0] === "\n") (put("↵", true), put("\n", false));
    else put(match[0] === "\t" ? "⇥" : mark(match[0]), true);
    at = match.index + match[0].length;
  }
  put(text.slice(at), false);
  if (found.length && COMBINING.test(found[0].text)) found.unshift({ text: "\u25cc", mark: true });
  return found;
}

/** An element with attributes, properties and children; children that are strings become text, never markup. */
export function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "style") for (const [property, each] of Object.entries(value)) made.style.setProperty(property, each);
    else if (key === "data") Object.assign(made.dataset, value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(6).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A table of a row of heads and rows of cells. */
export function table(kind, heads, rows) {
  return element("table", { class: kind }, element("thead", {}, element("tr", {}, heads)), element("tbody", {}, rows));
}

/** A text of a model or a file, isolated, with its marks. */
export function isolated(text, options = {}) {
  const made = element("bdi", options);
  for (const part of parts(text)) made.append(part.mark ? element("span", { class: "mark" }, part.text) : part.text);
  return made;
}

const LONGEST = 40;

/** A token by itself, as in tables and sentences; the middle of a long one is left out. */
export function chip(text, options = {}) {
  const all = [...shown(text)];
  const told = all.length > LONGEST ? [...all.slice(0, LONGEST - 11), "…", ...all.slice(-10)].join("") : all.join("");
  return element("bdi", { ...options, class: `chip ${options.class ?? ""}` }, told);
}

export function percent(share, digits = 0) {
  if (share > 0 && share < 0.5 * 10 ** (-2 - digits)) return `< ${digits ? (10 ** -digits).toFixed(digits) : 1} %`;
  return `${(100 * share).toFixed(digits)} %`;
}

/** A number with a real minus sign. */
export function number(value, digits = 2) {
  return value.toFixed(digits).replace("-", "−");
}

export function plural(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}
