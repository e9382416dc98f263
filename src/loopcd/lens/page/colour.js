// All colours that carry a number. One hue a quantity, the same in text, charts and legends.

const HUES = {
  hard: [234, 88, 12],
  entropy: [13, 148, 136],
  loops: [79, 70, 229],
  changed: [192, 38, 211],
  expert: [37, 99, 235],
  amateur: [202, 138, 4],
  contrast: [192, 38, 211],
};

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** A tint behind text: transparent at 0, as strong at 1 as text on it stays readable. */
export function tint(name, share) {
  const [r, g, b] = HUES[name];
  const clipped = Math.max(0, Math.min(1, share));
  return clipped === 0 ? "transparent" : `rgb(${r} ${g} ${b} / ${(0.55 * clipped).toFixed(3)})`;
}

/** A line or a bar. Lighter on dark ground. */
export function line(name, alpha = 1) {
  const [r, g, b] = isDark() ? HUES[name].map((value) => Math.round(value + (255 - value) * 0.35)) : HUES[name];
  return `rgb(${r} ${g} ${b} / ${alpha})`;
}

const mix = (from, to, share) => from.map((value, i) => Math.round(value + (to[i] - value) * share));

/** The colours of margins, from a lost lead (orange) over none (the ground) to a clear one (blue): a function of −1 … 1. */
export function marginColours() {
  const dark = isDark();
  const ground = dark ? [38, 44, 56] : [244, 245, 248];
  const ends = dark ? { lost: [249, 130, 60], led: [96, 155, 255] } : { lost: [222, 84, 8], led: [29, 85, 210] };
  return (share) => {
    const clipped = Math.max(-1, Math.min(1, share));
    const bent = Math.abs(clipped) ** 0.7; // small margins are where things happen
    return mix(ground, clipped < 0 ? ends.lost : ends.led, bent);
  };
}

/** The colours of probabilities in the heat map, and of the text that can be read on them: a function of 0 … 1. */
export function probabilityColours() {
  const [ground, end] = isDark()
    ? [
        [30, 36, 48],
        [96, 155, 255],
      ]
    : [
        [248, 249, 251],
        [29, 85, 210],
      ];
  return (share) => {
    const fill = mix(ground, end, Math.max(0, Math.min(1, share)) ** 0.6);
    return { fill: `rgb(${fill.join(" ")})`, ink: luminance(fill) > 0.18 ? "#0b0d12" : "#fff" };
  };
}

/** The relative luminance of WCAG; above 0.18 black text has the better contrast. */
function luminance(colour) {
  const [r, g, b] = colour.map((value) => (value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// what the answer's tokens can be coloured by: the share of the scale's end, and what the legend says
export const QUANTITIES = {
  hardness: {
    hue: "hard",
    title: "Hardness",
    share: (token) => Math.max(0, token.drop) / 4,
    ends: () => ["0", "drop in margin ≥ 4"],
    value: (token) => `drop ${token.drop.toFixed(2)}`,
  },
  entropy: {
    hue: "entropy",
    title: "Entropy",
    share: (token) => token.finalEntropy / 1.5,
    ends: () => ["0", "≥ 1.5 nats"],
    value: (token) => `entropy ${token.finalEntropy.toFixed(2)}`,
  },
  loops: {
    hue: "loops",
    title: "Loops used",
    share: (token) => token.exitLoop / token.loops,
    ends: (trace) => ["1", `${trace.loops} loops`],
    value: (token) => `${token.exitLoop} loops`,
  },
  changed: {
    hue: "changed",
    title: "Changed",
    share: (token, setting) => (token.choice(setting.amateurLoop, setting.strength) !== token.winner ? 1 : 0),
    ends: () => ["same", "LoopCD’s choice is not greedy’s"],
    value: (token, setting) =>
      token.choice(setting.amateurLoop, setting.strength) !== token.winner ? "changed by LoopCD" : "not changed by LoopCD",
  },
};
