// From pixels to events and back, by number of the event or by the clock. Runs that are compared share
// one length, so that the same pixel is the same distance from the start of either.

/** The last of some times that is at or before one; the first where none is. */
export function lastBefore(times, time) {
  let low = 0;
  let high = times.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] <= time) low = middle;
    else high = middle;
  }
  return low;
}

export class Axis {
  /** `byTime` needs a history with times; `length` is in events or microseconds. */
  constructor(history, byTime, length, left, right) {
    this.history = history;
    this.byTime = byTime;
    this.start = this.byTime ? history.times[0] : 0;
    this.whole = d3.scaleLinear([0, Math.max(1, length)], [left, right]);
    this.scale = this.whole;
  }

  static lengthOf(history, byTime) {
    return byTime ? history.times[history.events - 1] - history.times[0] : history.events;
  }

  zoom(transform) {
    this.scale = transform.rescaleX(this.whole);
  }

  /** The event that is in force at a pixel. */
  eventAt(x) {
    const value = this.scale.invert(x);
    const event = this.byTime ? this.lastBefore(value + this.start) : Math.floor(value);
    return Math.max(0, Math.min(event, this.history.events - 1));
  }

  /** Whether a run that is shorter than the axis has ended before a pixel. */
  isOver(x) {
    const value = this.scale.invert(x);
    return this.byTime ? value + this.start > this.history.times[this.history.events - 1] : value >= this.history.events;
  }

  pixelOf(event, scale = this.scale) {
    return scale(this.byTime ? this.history.times[Math.max(0, Math.min(event, this.history.events - 1))] - this.start : event);
  }

  lastBefore(time) {
    return lastBefore(this.history.times, time);
  }

  ticks(count) {
    return this.scale.ticks(count);
  }
}
