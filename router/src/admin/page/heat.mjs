// The traffic of Kinds over the last hour, as `/api/v1/heat` tells it.

/** The steps that are kept: an hour. */
export const KEPT = 360;

/** What can be shown of a cell, which is calls, failed, bytes, microseconds, messages. */
export const METRICS = {
  ops: { label: "calls", unit: 0.1, of: ([calls, , , , messages], seconds) => (calls + messages) / seconds },
  bytes: { label: "bytes", unit: 100, of: ([, , bytes], seconds) => bytes / seconds },
  latency: { label: "latency", unit: 0.0002, of: ([calls, , , micros]) => (calls ? micros / calls / 1e6 : 0) },
};

export class Heat {
  constructor() {
    this.stepSeconds = 10;
    this.steps = [];
  }

  /** The time of the last step, for the next question. */
  get last() {
    return this.steps.at(-1)?.at ?? 0;
  }

  /** Takes an answer; returns whether there is more to ask for. */
  add({ stepSeconds, kinds, steps, more }) {
    this.stepSeconds = stepSeconds;
    for (const { at, cells } of steps) {
      // The last step may come again: its time has more digits than a number has.
      if (at <= this.last + stepSeconds / 10) continue;
      this.steps.push({ at, cells: new Map(cells.map(([kind, ...cell]) => [kinds[kind], cell])) });
    }
    this.steps.splice(0, Math.max(0, this.steps.length - KEPT));
    return more && steps.length > 0;
  }

  /** A number of a Kind in a step. */
  value(kind, step, metric) {
    const cell = this.steps[step]?.cells.get(kind);
    return cell ? METRICS[metric].of(cell, this.stepSeconds) : 0;
  }

  /** The sum of the calls of each Kind, as a Map. */
  totals() {
    const totals = new Map();
    for (const { cells } of this.steps) {
      for (const [kind, [calls, , , , messages]] of cells) totals.set(kind, (totals.get(kind) ?? 0) + calls + messages);
    }
    return totals;
  }

  /** The most that any cell of these Kinds has. */
  most(kinds, metric) {
    let most = 0;
    for (let step = 0; step < this.steps.length; step += 1) {
      for (const kind of kinds) most = Math.max(most, this.value(kind, step, metric));
    }
    return most;
  }

  /** Lines for a chart: times, calls in a second, and their mean time in milliseconds, of one Kind or of all. */
  lines(kind) {
    const [times, ops, bytes, latency] = [[], [], [], []];
    for (const { at, cells } of this.steps) {
      const counted = kind === undefined ? [...cells.values()] : [cells.get(kind) ?? [0, 0, 0, 0, 0]];
      const sum = counted.reduce((sum, cell) => sum.map((part, at) => part + cell[at]), [0, 0, 0, 0, 0]);
      times.push(at);
      ops.push(sum[0] / this.stepSeconds);
      bytes.push(sum[2] / this.stepSeconds);
      latency.push(sum[0] ? sum[3] / sum[0] / 1e3 : null);
    }
    return { times, ops, bytes, latency };
  }
}
