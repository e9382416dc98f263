// A trace as the page holds it: one record a token, with what every loop said. Formulas and names are the paper's.

export const HARD = 1.5; // a token is hard where its margin has dropped by at least this much from its peak

const TYPES = { f4: Float32Array, i4: Int32Array, i2: Int16Array };

/** An array {type, shape, data in base64, little-endian} as a typed array. */
function decoded({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new TYPES[type](bytes.buffer);
}

/** The index of the largest value; of equal ones the first. */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** What all loops say of one token of the text: arrays over loops, index i − 1 is the model stopped after loop i. */
class Token {
  constructor(fields, loops) {
    Object.assign(this, fields); // id, piece, exitLoop, winner, logit, runnerUp, logNorm, entropy, change, topIds, topLogits,
    this.loops = loops; //          plausibleIds, plausibleLogits [set × loops], plausibleCount, unconstrained
    this.margin = this.logit.map((value, i) => value - this.runnerUp[i]);
    this.peak = argmax(this.margin);
    this.drop = this.margin[this.peak] - this.margin[loops - 1];
    this.hard = this.drop >= HARD;
    this.finalEntropy = this.entropy[loops - 1];
    this.contested = this.plausibleCount > 1;
  }

  get width() {
    return this.topIds.length / this.loops; // top tokens kept of each loop
  }

  /** Log-probability of the plausible token number k after loop i (from 1). */
  logP(k, loop) {
    return this.plausibleLogits[k * this.loops + loop - 1] - this.logNorm[loop - 1];
  }

  /** Scores s(v) = log p_e(v) − λ log p_a(v) of the plausible tokens. */
  scores(amateurLoop, strength) {
    return Array.from(this.plausibleIds, (_, k) => this.logP(k, this.loops) - strength * this.logP(k, amateurLoop));
  }

  /** LoopCD's choice: the plausible token with the highest z_e − λ z_a, in single precision as the package computes it. */
  choice(amateurLoop, strength) {
    if (this.plausibleIds.length === 1) return this.plausibleIds[0];
    const single = Math.fround(strength);
    let best = -Infinity;
    let chosen = -1;
    for (let k = 0; k < this.plausibleIds.length; k++) {
      const row = k * this.loops;
      const amateur = Math.fround(single * this.plausibleLogits[row + amateurLoop - 1]);
      const score = Math.fround(this.plausibleLogits[row + this.loops - 1] - amateur);
      const id = this.plausibleIds[k];
      if (score > best || (score === best && id < chosen)) [best, chosen] = [score, id];
    }
    return chosen;
  }

  /** The logit of any token after a loop, where the trace holds it, else null. */
  logitOf(id, loop) {
    const k = this.plausibleIds.indexOf(id);
    if (k >= 0) return this.plausibleLogits[k * this.loops + loop - 1];
    const from = (loop - 1) * this.width;
    for (let j = from; j < from + this.width; j++) if (this.topIds[j] === id) return this.topLogits[j];
    return id === this.winner ? this.logit[loop - 1] : null;
  }

  /** The best token of each loop. */
  get leaders() {
    return Array.from({ length: this.loops }, (_, i) => this.topIds[i * this.width]);
  }

  /** Whether y* was behind at least once in the latter half of the loops. */
  get lateFlip() {
    return this.margin.subarray(Math.floor(this.loops / 2)).some((margin) => margin < 0);
  }
}

export class Trace {
  constructor(header) {
    this.prompt = header.prompt;
    this.text = header.text ?? "";
    this.model = header.model;
    this.method = header.method;
    this.loops = header.num_loops;
    this.amateurLoop = header.amateur_loop;
    this.strength = header.strength;
    this.plausibility = header.plausibility;
    this.extra = header.extra ?? {};
    this.texts = new Map(Object.entries(header.token_texts ?? {}).map(([id, text]) => [Number(id), text]));
    this.tokens = [];
  }

  /** A whole trace, as it stands in a page or comes from the server. */
  static from(payload) {
    const trace = new Trace(payload);
    const loops = trace.loops;
    const arrays = Object.fromEntries(Object.entries(payload.arrays).map(([name, array]) => [name, decoded(array)]));
    const count = payload.pieces.length;
    const width = count ? arrays.top_ids.length / count : 0; // loops × top tokens
    for (let t = 0; t < count; t++) {
      const row = (name, size = loops) => arrays[name].subarray(t * size, (t + 1) * size);
      const [from, to] = [arrays.plausible_start[t], arrays.plausible_start[t + 1]];
      const fields = {
        id: arrays.token_ids[t],
        piece: payload.pieces[t],
        exitLoop: arrays.exit_loop[t],
        winner: arrays.winner[t],
        logit: row("logit"),
        runnerUp: row("runner_up"),
        logNorm: row("log_norm"),
        entropy: row("entropy"),
        change: row("change"),
        topIds: row("top_ids", width),
        topLogits: row("top_logits", width),
        plausibleIds: arrays.plausible_ids.subarray(from, to),
        plausibleLogits: arrays.plausible_logits.subarray(from * loops, to * loops),
        plausibleCount: arrays.plausible_count[t],
        unconstrained: arrays.unconstrained[t],
      };
      trace.tokens.push(new Token(fields, loops));
    }
    return trace;
  }

  /** One more token of a text that is being written: a payload of one token. */
  append(payload) {
    const more = Trace.from({ ...payload, num_loops: this.loops });
    for (const [id, text] of more.texts) this.texts.set(id, text);
    this.tokens.push(...more.tokens);
  }

  get length() {
    return this.tokens.length;
  }

  textOf(id) {
    return this.texts.get(id) ?? `#${id}`;
  }

  /** Figures of the whole answer. */
  summary(amateurLoop = this.amateurLoop, strength = this.strength) {
    const mean = (value) => (this.length ? this.tokens.reduce((sum, token) => sum + value(token), 0) / this.length : 0);
    return {
      tokens: this.length,
      hard: mean((token) => (token.hard ? 1 : 0)),
      entropy: mean((token) => token.finalEntropy), // the trace entropy
      loops: mean((token) => token.exitLoop),
      contested: mean((token) => (token.contested ? 1 : 0)),
      changed: this.tokens.filter((token) => token.choice(amateurLoop, strength) !== token.winner).length,
    };
  }

  /** Positions whose next choice would not be the token that stands in the text: {position, from, to}. */
  changes(amateurLoop, strength) {
    const found = [];
    this.tokens.forEach((token, position) => {
      const to = token.choice(amateurLoop, strength);
      if (to !== token.id) found.push({ position, from: token.id, to });
    });
    return found;
  }
}
