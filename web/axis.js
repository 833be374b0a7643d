// From pixels to events and back, by number of the event or by the clock.

export class Axis {
  /** `byTime` needs a history with times. */
  constructor(history, byTime, left, right) {
    this.history = history;
    this.byTime = byTime && history.hasTimes;
    this.start = this.byTime ? history.times[0] : 0;
    const end = this.byTime ? history.times[history.events - 1] - this.start : history.events;
    this.whole = d3.scaleLinear([0, Math.max(1, end)], [left, right]);
    this.scale = this.whole;
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

  pixelOf(event) {
    return this.scale(this.byTime ? this.history.times[Math.max(0, event)] - this.start : event);
  }

  /** The last event at or before a time. */
  lastBefore(time) {
    let low = 0;
    let high = this.history.events;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.history.times[middle] <= time) low = middle;
      else high = middle;
    }
    return low;
  }

  ticks(count) {
    return this.scale.ticks(count);
  }
}
