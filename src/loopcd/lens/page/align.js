// Two texts token by token: where they are the same, where they part, and rows of lines that stand side by side.

const LARGEST = 4_000_000; // cells of the table; beyond that only what both texts begin and end with is aligned

/** Runs {same, left: [from, to), right: [from, to)} that together cover both lists of ids. */
export function align(left, right) {
  const shorter = Math.min(left.length, right.length);
  let head = 0;
  while (head < shorter && left[head] === right[head]) head++;
  let tail = 0;
  while (tail < shorter - head && left.at(-1 - tail) === right.at(-1 - tail)) tail++;
  const pairs = middle(left.slice(head, left.length - tail), right.slice(head, right.length - tail));
  const same = [
    ...Array.from({ length: head }, (_, i) => [i, i]),
    ...pairs.map(([a, b]) => [a + head, b + head]),
    ...Array.from({ length: tail }, (_, i) => [left.length - tail + i, right.length - tail + i]),
  ];
  return runs(same, left.length, right.length);
}

/** Pairs of positions of a longest common subsequence. */
function middle(left, right) {
  const [rows, columns] = [left.length, right.length];
  if (rows * columns === 0 || rows * columns > LARGEST) return [];
  const stride = columns + 1;
  const longest = new Uint16Array((rows + 1) * stride); // of what is left from (a, b) on
  for (let a = rows - 1; a >= 0; a--)
    for (let b = columns - 1; b >= 0; b--)
      longest[a * stride + b] =
        left[a] === right[b]
          ? longest[(a + 1) * stride + b + 1] + 1
          : Math.max(longest[(a + 1) * stride + b], longest[a * stride + b + 1]);
  const pairs = [];
  for (let a = 0, b = 0; a < rows && b < columns;) {
    if (left[a] === right[b]) pairs.push([a++, b++]);
    else if (longest[(a + 1) * stride + b] >= longest[a * stride + b + 1]) a++;
    else b++;
  }
  return pairs;
}

function runs(pairs, leftLength, rightLength) {
  const found = [];
  let [a, b] = [0, 0];
  const part = (toA, toB) => {
    if (toA > a || toB > b) found.push({ same: false, left: [a, toA], right: [b, toB] });
  };
  for (const [i, j] of pairs) {
    part(i, j);
    const last = found.at(-1);
    if (last?.same && last.left[1] === i && last.right[1] === j) [last.left[1], last.right[1]] = [i + 1, j + 1];
    else found.push({ same: true, left: [i, i + 1], right: [j, j + 1] });
    [a, b] = [i + 1, j + 1];
  }
  part(leftLength, rightLength);
  return found;
}

/**
 * Rows of segments {difference, from, to} for both sides. A row ends where both texts break the line at the same place,
 * so that what follows stands side by side again. `difference` counts the places where the texts part, from 1; 0 is "same".
 * While the texts are being written, what one of them has beyond the other is no difference yet.
 */
export function rows(found, breaksLine, writing = false) {
  const made = [{ left: [], right: [] }];
  let difference = 0;
  const put = (side, number, [from, to]) => from < to && made.at(-1)[side].push({ difference: number, from, to });
  for (const run of found) {
    if (!run.same) {
      const ahead = writing && run === found.at(-1) && (run.left[0] === run.left[1] || run.right[0] === run.right[1]);
      if (!ahead) difference += 1;
      put("left", ahead ? 0 : difference, run.left);
      put("right", ahead ? 0 : difference, run.right);
      continue;
    }
    let from = 0;
    const length = run.left[1] - run.left[0];
    for (let i = 0; i < length; i++) {
      if (!breaksLine(run.left[0] + i) && i < length - 1) continue;
      put("left", 0, [run.left[0] + from, run.left[0] + i + 1]);
      put("right", 0, [run.right[0] + from, run.right[0] + i + 1]);
      if (breaksLine(run.left[0] + i)) made.push({ left: [], right: [] });
      from = i + 1;
    }
  }
  return made.filter((row) => row.left.length + row.right.length);
}
