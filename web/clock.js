// The clock of a card. Processes that take turns wait for most of it: pauses in which none of them does anything can be
// shortened, so that what happens between them can be seen.

/** A pause of this share of the whole clock is one. */
const kLeastPause = 1 / 40;
/** What is left of each, as a share of what is shown. */
const kShown = 1 / 50;

export class Clock {
  /** `times` are those of all events, in any order, from 0 to `length`. */
  constructor(times, length) {
    this.length = Math.max(1, length);
    this.pauses = [];
    times.sort();
    for (let i = 1; i < times.length; ++i) {
      if (times[i] - times[i - 1] > kLeastPause * this.length) this.pauses.push({from: times[i - 1], to: times[i]});
    }
    const paused = this.pauses.reduce((sum, {from, to}) => sum + to - from, 0);
    this.worthIt = paused > this.length / 2;
    /** How long each is when it is shortened: together with the rest they make up the whole. */
    this.short = kShown * (this.length - paused) / Math.max(0.1, 1 - kShown * this.pauses.length);
    this.shortened = this.worthIt;
  }

  /** From a time to its place on the axis. */
  shown(time) {
    return this.walk(time, (pause) => pause.to - pause.from, () => this.short, (pause) => pause.from);
  }

  /** And back. */
  time(shown) {
    let cut = 0;
    return this.walk(shown, () => this.short, (pause) => pause.to - pause.from, (pause) => {
      const from = pause.from - cut;
      cut += pause.to - pause.from - this.short;
      return from;
    });
  }

  /** Goes through the pauses before `at`, each `is` long on its side and `becomes` long on the other. */
  walk(at, is, becomes, begins) {
    let by = 0;
    for (const pause of this.shortened ? this.pauses : []) {
      const from = begins(pause);
      if (at <= from) break;
      const share = Math.min(1, (at - from) / is(pause));
      by += share * (becomes(pause) - is(pause));
    }
    return at + by;
  }

  get whole() {
    return this.shown(this.length);
  }
}
