// Rates from counters that only grow, over a window of the last looks.

/** What a counter grew by; one that is smaller than before began anew, as when a router restarts. */
export function growth(before, after) {
  return after >= before ? after - before : after;
}

/** The counters of named things, looked at from time to time. */
export class Rates {
  constructor(windowSeconds) {
    this.windowSeconds = windowSeconds;
    this.looks = [];
  }

  /** Adds a look: `counters` is a Map from a name to an object of numbers. */
  add(at, counters) {
    const last = this.looks.at(-1);
    if (last && at <= last.at) return;
    this.looks.push({ at, counters });
    while (this.looks.length > 2 && at - this.looks[1].at >= this.windowSeconds) this.looks.shift();
  }

  /** The seconds that the window spans; 0 before there are two looks. */
  get seconds() {
    return this.looks.length < 2 ? 0 : this.looks.at(-1).at - this.looks[0].at;
  }

  /** What a field of a thing grew by within the window; `null` while that is not known. */
  grown(name, field) {
    if (this.seconds === 0) return null;
    const [first, last] = [this.looks[0].counters.get(name), this.looks.at(-1).counters.get(name)];
    if (!last) return null;
    // A thing that was not there at first began with nothing.
    return growth(first ? first[field] : 0, last[field]);
  }

  /** The same in a second. */
  perSecond(name, field) {
    const grown = this.grown(name, field);
    return grown === null ? null : grown / this.seconds;
  }

  /** The mean of a field for each unit of another one, as microseconds for each call; `null` if there was none. */
  mean(name, field, of) {
    const [sum, number] = [this.grown(name, field), this.grown(name, of)];
    return number ? sum / number : null;
  }
}
