// Where the texts part: a line from each place to its counterpart.

import { state } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";

/** The drawing that lies over the lines. */
export function joins() {
  const made = document.createElementNS(SVG, "svg");
  made.id = "joins";
  made.setAttribute("aria-hidden", "true");
  return made;
}

/** Draw all joins, as the text lies now; that of the difference number `chosen` stands out. */
export function joinDifferences(lines, chosen) {
  const drawing = document.getElementById("joins");
  if (!drawing) return;
  if (!state.right) return drawing.replaceChildren();
  const origin = lines.getBoundingClientRect();
  const stacked = getComputedStyle(lines.querySelector(".row")).gridTemplateColumns.split(" ").length < 2;
  const others = new Map([...lines.querySelectorAll(".right .differs")].map((right) => [right.dataset.difference, right]));
  const paths = [...lines.querySelectorAll(".left .differs")].flatMap((left) => {
    const right = others.get(left.dataset.difference);
    if (!right) return [];
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", stacked ? downwards(left, right, origin) : across(left, right, origin));
    path.setAttribute("class", "join");
    path.dataset.difference = left.dataset.difference;
    return [path];
  });
  drawing.replaceChildren(...paths);
  markJoin(chosen);
}

/** Let one join stand out; 0 for none. */
export function markJoin(chosen) {
  const drawing = document.getElementById("joins");
  drawing?.querySelector(".chosen")?.classList.remove("chosen");
  if (chosen) drawing?.querySelector(`[data-difference="${chosen}"]`)?.classList.add("chosen");
}

/** Along the foot of the line to the gap between the columns, and on to the counterpart. */
function across(left, right, origin) {
  const from = [...left.getClientRects()].at(-1);
  const to = right.getClientRects()[0];
  const [edge, other] = [
    left.closest(".cell").getBoundingClientRect().right,
    right.closest(".cell").getBoundingClientRect().left,
  ];
  const [x0, y0, x1, y1] = [from.right - origin.left, from.bottom - origin.top, to.left - origin.left, to.bottom - origin.top];
  const [a, b] = [Math.max(x0, edge - origin.left), other - origin.left];
  const half = (a + b) / 2;
  return `M${x0} ${y0}H${a}C${half} ${y0} ${half} ${y1} ${b} ${y1}H${x1}`;
}

function downwards(left, right, origin) {
  const from = [...left.getClientRects()].at(-1);
  const to = right.getClientRects()[0];
  const [x0, y0] = [from.left + from.width / 2 - origin.left, from.bottom - origin.top];
  const [x1, y1] = [to.left + to.width / 2 - origin.left, to.top - origin.top];
  return `M${x0} ${y0}C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`;
}
