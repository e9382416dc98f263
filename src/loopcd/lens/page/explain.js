// Why LoopCD chose what it chose at one token, in sentences.

import { chip, element, number, percent, plural } from "./text.js";
import { HARD } from "./trace.js";

const quoted = (text, kind = "") => chip(text, { class: kind });

/** Paragraphs about a token at a setting; `sharedPast` says whether both texts are the same up to here. */
export function explain(trace, token, { amateurLoop, strength }, sharedPast) {
  const said = [
    token.contested ? contested(trace, token, amateurLoop, strength) : uncontested(trace, token),
    minds(trace, token),
    token.hard && [
      `Hard: the margin peaked at ${number(token.margin[token.peak])} after loop ${token.peak + 1} and fell to `,
      `${number(token.margin[token.loops - 1])}, a drop of ${number(token.drop)} (hard from ${HARD} on).`,
    ],
    !sharedPast && ["The two texts part before this token: each method sees a past of its own here."],
  ];
  return said.filter(Boolean).map((sentence) => element("p", {}, sentence));
}

function uncontested(trace, token) {
  return [
    quoted(trace.textOf(token.winner), "expert"),
    ` is the only plausible token: the expert (loop ${token.loops}) gives it ${percent(Math.exp(token.logP(0, token.loops)), 1)}, `,
    `and no other token reaches ${percent(trace.plausibility)} of that. LoopCD has nothing to decide.`,
    written(trace, token, [token.winner]),
  ];
}

function contested(trace, token, amateurLoop, strength) {
  const scores = token.scores(amateurLoop, strength);
  const chosen = token.plausibleIds.indexOf(token.choice(amateurLoop, strength));
  // the rival of the expert’s favourite (number 0): what LoopCD chooses, or what comes nearest to being chosen
  const rival = chosen || scores.reduce((best, score, k) => (k && (!best || score > scores[best]) ? k : best), 0);
  const name = (k, kind) => quoted(trace.textOf(token.plausibleIds[k]), kind);
  const p = (k, loop) => percent(Math.exp(token.logP(k, loop)), 1);
  const lead = number(Math.abs(scores[rival] - scores[0]));
  const said = [
    `The expert (loop ${token.loops}) gives `,
    [name(0, "expert"), ` ${p(0, token.loops)} and `, name(rival), ` ${p(rival, token.loops)}`],
    token.plausibleCount === 2 ? "" : `, of ${plural(token.plausibleCount, "plausible token")}`,
    `. The amateur (loop ${amateurLoop}) `,
  ];
  if (chosen)
    said.push(
      `already preferred the first, ${p(0, amateurLoop)} to ${p(rival, amateurLoop)}. `,
      `Taking away ${strength} × the amateur’s log-probability puts the second ahead by ${lead}, so LoopCD chooses `,
      [name(rival, "contrast"), " where greedy takes ", name(0, "expert"), "."],
    );
  else
    said.push(
      `gave them ${p(0, amateurLoop)} and ${p(rival, amateurLoop)}. `,
      `Taking away ${strength} × the amateur’s log-probability leaves the first ahead by ${lead}: LoopCD keeps `,
      [name(0, "contrast"), "."],
    );
  return [...said, written(trace, token, [token.winner, token.plausibleIds[rival]])];
}

function written(trace, token, known) {
  return known.includes(token.id) ? "" : [" The text has ", quoted(trace.textOf(token.id)), " here."];
}

/** Which token led when. */
function minds(trace, token) {
  const spans = [];
  token.leaders.forEach((id, i) => {
    if (spans.at(-1)?.id === id) spans.at(-1).to = i + 1;
    else spans.push({ id, from: i + 1, to: i + 1 });
  });
  if (spans.length === 1) return ["From the first loop to the last, ", quoted(trace.textOf(spans[0].id)), " is ahead."];
  const listed = spans.length > 6 ? [...spans.slice(0, 3), null, ...spans.slice(-2)] : spans;
  const told = ({ id, from, to }) => [quoted(trace.textOf(id)), from === to ? ` (loop ${from})` : ` (loops ${from}–${to})`];
  const times = spans.length === 2 ? "once" : `${spans.length - 1} times`;
  return [
    `The model changed its mind ${times}: `,
    listed.map((each, i) => [i ? " → " : "", each ? told(each) : "…"]),
    ".",
  ].flat(4);
}
