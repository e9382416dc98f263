// Two pictures of one token that are tables: candidates by loop as a heat map, and the plausible set with its scores as bars.

import { line, probabilityColours } from "./colour.js";
import { chip, element, number, percent, table } from "./text.js";

const MOST_ROWS = 10;
const SMALLEST = 0.005; // a candidate that no loop finds this probable is not shown
const MOST_PLAUSIBLE = 12;

/** Candidates by loop: how probable each loop finds the tokens that are near the top at any loop. */
export function heatMap(trace, token, amateurLoop) {
  const loops = Array.from({ length: token.loops }, (_, i) => i + 1);
  const leaders = token.leaders;
  const shares = (id) => loops.map((loop) => shareOf(token, id, loop));
  const ranked = candidates(token)
    .map((id) => ({ id, shares: shares(id) }))
    .filter(({ id, shares }) => id === token.id || token.plausibleIds.includes(id) || Math.max(...shares) >= SMALLEST)
    .sort((a, b) => best(b, token, leaders) - best(a, token, leaders))
    .slice(0, MOST_ROWS);
  const written = token.loops <= 16; // room for numbers in the cells
  const colour = probabilityColours();
  const head = loops.map((loop) =>
    element("th", { scope: "col", class: loop === amateurLoop ? "amateur" : null }, loopHead(loop, token.loops)),
  );
  const body = ranked.map(({ id, shares }) =>
    element(
      "tr",
      { data: { id } },
      element("th", { scope: "row" }, chip(trace.textOf(id), { class: id === token.winner ? "expert" : "" })),
      shares.map((share, i) => heatCell(share, leaders[i] === id, written, loops[i] === amateurLoop, colour)),
    ),
  );
  return table(written ? "heat" : "heat narrow", [corner(), head], body);
}

const corner = () => element("th", { scope: "col", class: "corner" }, "token");

const loopHead = (loop, loops) =>
  loops <= 16 || loop === 1 || loop % 4 === 0 ? String(loop) : element("span", { class: "sr" }, String(loop));

function heatCell(share, leads, written, amateur, colour) {
  const kind = [leads && "leads", amateur && "amateur"].filter(Boolean).join(" ");
  if (share === null)
    return element(
      "td",
      { class: kind, title: "not among the loop’s top tokens" },
      element("span", { class: "sr" }, "not among the top"),
    );
  const { fill, ink } = colour(share);
  const text = percent(share, 1) + (leads ? ", best" : "");
  const label = written ? element("span", { "aria-hidden": "true" }, short(share)) : null;
  return element(
    "td",
    { class: kind, title: text, style: { "background-color": fill, color: ink } },
    label,
    element("span", { class: "sr" }, text),
  );
}

const short = (share) => (share >= 0.995 ? "100" : share < 0.005 ? "0" : (100 * share).toFixed(0));

function shareOf(token, id, loop) {
  const logit = token.logitOf(id, loop);
  return logit === null ? null : Math.exp(logit - token.logNorm[loop - 1]);
}

function candidates(token) {
  return [...new Set([...token.plausibleIds.slice(0, MOST_ROWS), token.id, ...token.topIds])];
}

/** What decides which candidates are shown: plausible ones first, then those that ever led, then the most probable. */
function best({ id, shares }, token, leaders) {
  const place = token.plausibleIds.indexOf(id);
  const known = shares.filter((share) => share !== null);
  const bonus = place >= 0 ? 3 - place / 100 : id === token.id || leaders.includes(id) ? 1 : 0;
  return bonus + (place >= 0 ? 0 : Math.max(...known));
}

/** The plausible set: expert, amateur and contrast, each as a share with a bar; the winner of each is marked. */
export function plausibleSet(trace, token, { amateurLoop, strength }) {
  const scores = token.scores(amateurLoop, strength);
  const top = Math.max(...scores);
  const total = scores.reduce((sum, score) => sum + Math.exp(score - top), 0);
  const ids = Array.from(token.plausibleIds);
  const chosen = ids.indexOf(token.choice(amateurLoop, strength));
  const amateurs = ids.map((_, k) => token.logP(k, amateurLoop));
  const amateurBest = amateurs.indexOf(Math.max(...amateurs));
  const columns = [
    {
      name: `expert, loop ${token.loops}`,
      hue: "expert",
      log: (k) => token.logP(k, token.loops),
      share: (k) => Math.exp(token.logP(k, token.loops)),
      wins: 0,
    },
    {
      name: `amateur, loop ${amateurLoop}`,
      hue: "amateur",
      log: (k) => amateurs[k],
      share: (k) => Math.exp(amateurs[k]),
      wins: amateurBest,
    },
    {
      name: `contrast, λ = ${strength}`,
      hue: "contrast",
      log: (k) => scores[k],
      share: (k) => Math.exp(scores[k] - top) / total,
      wins: chosen,
    },
  ];
  const order = ids.map((_, k) => k).slice(0, MOST_PLAUSIBLE);
  if (!order.includes(chosen)) order.push(chosen);
  const head = columns.map((column) => element("th", { scope: "col", style: { color: line(column.hue) } }, column.name));
  const body = order.map((k) =>
    element(
      "tr",
      { data: { id: ids[k] } },
      element("th", { scope: "row" }, chip(trace.textOf(ids[k]), { class: ids[k] === token.id ? "written" : "" })),
      columns.map((column) => barCell(column, k)),
    ),
  );
  return table("bars", [corner(), head], body);
}

function barCell({ hue, log, share, wins }, k) {
  const won = wins === k;
  const bar = element("i", {
    "aria-hidden": "true",
    style: { width: `${(100 * share(k)).toFixed(2)}%`, "background-color": line(hue, won ? 1 : 0.5) },
  });
  return element(
    "td",
    { class: won ? "wins" : null, data: { share: share(k), log: log(k) } },
    element("span", { class: "bar" }, bar),
    element(
      "span",
      { class: "value" },
      won ? element("b", { title: "the best of this column" }, "★ ") : null,
      percent(share(k), 1),
    ),
    element("small", {}, number(log(k))),
  );
}
