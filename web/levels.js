// Memory over time by group, at any zoom. Events are gathered into buckets, buckets into larger
// ones, each knowing its highest instant; a question for a stretch of events is answered exactly
// from few of them, however long it is.

/** Events in a bucket: replaying one takes less than a column of pixels is worth. */
const kBucket = 64;
/** The group of blocks that are not counted. */
export const kLeftOut = 255;

export class Levels {
  /** `groupOf` gives the group of a block, from 0 to `groups` - 1; `counts` says whether it is counted at all. */
  constructor(history, groupOf, groups, counts = () => true) {
    this.history = history;
    this.group = new Uint8Array(history.blocks);
    for (let i = 0; i < history.blocks; ++i) this.group[i] = counts(i) ? groupOf(i) : kLeftOut;
    this.groups = groups;
    const buckets = Math.max(1, Math.ceil(history.events / kBucket));
    this.begins = new Float64Array(buckets * groups);
    this.nextMade = new Int32Array(buckets);
    this.nextReleased = new Int32Array(buckets);
    this.highest = new Float64Array(buckets);
    this.build(buckets);
    this.gather();
  }

  /** One pass over the events: the state at the beginning of each bucket and its highest total. */
  build(buckets) {
    const now = this.start();
    for (let bucket = 0; bucket < buckets; ++bucket) {
      this.begins.set(now.values, bucket * this.groups);
      this.nextMade[bucket] = now.made;
      this.nextReleased[bucket] = now.released;
      let highest = 0;
      const end = Math.min((bucket + 1) * kBucket, this.history.events);
      for (let event = bucket * kBucket; event < end; ++event) {
        this.advance(now, event);
        highest = Math.max(highest, now.total);
      }
      this.highest[bucket] = highest;
    }
  }

  /** Each level has half as many entries: the bucket that is highest among two of the level below. */
  gather() {
    this.levels = [Int32Array.from(this.highest, (_, i) => i)];
    for (let below = this.levels[0]; below.length > 1; below = this.levels.at(-1)) {
      const level = new Int32Array(Math.ceil(below.length / 2));
      for (let i = 0; i < level.length; ++i) level[i] = this.higher(below[2 * i], below[2 * i + 1] ?? below[2 * i]);
      this.levels.push(level);
    }
  }

  higher(a, b) {
    return this.highest[b] > this.highest[a] ? b : a;
  }

  start() {
    const now = {values: new Float64Array(this.groups), total: 0, made: 0, released: 0};
    this.advance(now, -1);
    return now;
  }

  advance(now, event) {
    const h = this.history;
    for (; now.made < h.blocks && h.made[now.made] <= event; ++now.made) {
      if (this.group[now.made] === kLeftOut) continue;
      now.values[this.group[now.made]] += h.size[now.made];
      now.total += h.size[now.made];
    }
    const releases = h.releases;
    for (; now.released < releases.length && h.released[releases[now.released]] <= event; ++now.released) {
      const block = releases[now.released];
      if (this.group[block] === kLeftOut) continue;
      now.values[this.group[block]] -= h.size[block];
      now.total -= h.size[block];
    }
  }

  /** The highest instant of [first, end): {event, total, values}. */
  highestIn(first, end) {
    const best = {event: first, total: -1, values: new Float64Array(this.groups)};
    const firstWhole = Math.ceil(first / kBucket);
    const endWhole = Math.floor(end / kBucket);
    if (endWhole > firstWhole) {
      const bucket = this.highestBucket(firstWhole, endWhole);
      this.replay(bucket, bucket * kBucket, (bucket + 1) * kBucket, best);
      this.replay(firstWhole - 1, first, firstWhole * kBucket, best);
      this.replay(endWhole, endWhole * kBucket, end, best);
    } else {
      for (let bucket = Math.floor(first / kBucket); bucket * kBucket < end; ++bucket) this.replay(bucket, first, end, best);
    }
    return best;
  }

  /** Goes through a bucket and keeps the highest instant that lies in [first, end). */
  replay(bucket, first, end, best) {
    const from = Math.max(first, bucket * kBucket);
    const to = Math.min(end, (bucket + 1) * kBucket, this.history.events);
    if (from >= to) return;
    const values = this.begins.slice(bucket * this.groups, (bucket + 1) * this.groups);
    const now = {values, total: values.reduce((a, b) => a + b, 0), made: this.nextMade[bucket], released: this.nextReleased[bucket]};
    for (let event = bucket * kBucket; event < to; ++event) {
      this.advance(now, event);
      if (event < from || now.total <= best.total) continue;
      best.event = event;
      best.total = now.total;
      best.values.set(now.values);
    }
  }

  /** The highest instant of all. */
  get peak() {
    return this.highestIn(0, this.history.events);
  }

  highestBucket(first, end) {
    let best = first;
    for (let level = 0; first < end; ++level, first >>= 1, end >>= 1) {
      if (first & 1) best = this.higher(best, this.levels[level][first++]);
      if (end & 1) best = this.higher(best, this.levels[level][--end]);
    }
    return best;
  }
}

/** Reserved memory as steps: what was held from each of `from` on. */
export class ReservedCurve {
  constructor(history) {
    const changes = new Map();
    const change = (event, by) => changes.set(event, (changes.get(event) ?? 0) + by);
    for (const span of history.spans) {
      change(span.from, span.size);
      change(span.to, -span.size);
    }
    this.from = [-1];
    this.bytes = [0];
    for (const event of [...changes.keys()].sort((a, b) => a - b)) {
      this.from.push(event);
      this.bytes.push(this.bytes.at(-1) + changes.get(event));
    }
    if (history.hasSpans) return;
    this.from = [-1, ...history.statedFrom];
    this.bytes = [0, ...history.stated];
  }

  get empty() {
    return this.from.length < 2;
  }

  /** The most that was held in [first, end). */
  highestIn(first, end) {
    let low = 0;
    let high = this.from.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.from[middle] <= first) low = middle;
      else high = middle;
    }
    let most = this.bytes[low];
    for (let i = low + 1; i < this.from.length && this.from[i] < end; ++i) most = Math.max(most, this.bytes[i]);
    return most;
  }

  get highest() {
    return this.bytes.reduce((a, b) => Math.max(a, b), 0);
  }
}
