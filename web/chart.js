// One run's memory over time, stacked. Every column of pixels shows the highest instant of its events,
// found exactly (levels.js); the caption says how many events that is.
import * as format from "./format.js";
import {Axis} from "./axis.js";
import {prepared, tip} from "./dom.js";
import {grouping} from "./groups.js";
import {phaseText} from "./history.js";
import {Levels, ReservedCurve} from "./levels.js";
import {blockText, pin} from "./pinned.js";
import {colour} from "./theme.js";

export const kMargin = {left: 74, right: 10, top: 34, bottom: 24};
export const kPhaseColours = {forward: "activations", backward: "gradients", optimizer: "optimizer_state"};
/** Where the bands of steps and of phases lie above the curve. */
const kStepBand = {from: 2, size: 15};
const kPhaseBand = {from: 20, size: 8};

export class Chart {
  /** `timeline` holds what charts share: grouping, scales, zoom. */
  constructor(timeline, side, canvas) {
    this.timeline = timeline;
    this.side = side;
    this.canvas = canvas;
    this.reserved = new ReservedCurve(this.history);
    canvas.addEventListener("mousemove", (event) => this.hover(event));
    canvas.addEventListener("mouseleave", () => tip(null));
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  get history() { return this.side.history; }
  get state() { return this.timeline.state; }

  regroup() {
    this.groups = grouping(this.history, this.timeline.how);
    this.levels = new Levels(this.history, this.groups.groupOf, this.groups.names.length,
        this.state.selection ? this.state.selects(this.history) : undefined);
  }

  /** The most that it has to show: of a selection that alone, else what was reserved too. */
  get highest() {
    if (this.state.selection) return Math.max(1, this.levels.peak.total);
    return Math.max(this.reserved.highest, this.history.peak.allocated, 1);
  }

  /** `most` is the top of the scale, `length` that of the axis; `limit` null where none is drawn. */
  draw({most, length, limit}) {
    const {context, width, height} = prepared(this.canvas);
    this.width = width;
    this.axis = new Axis(this.history, this.timeline.byTime, length, kMargin.left, width - kMargin.right);
    this.axis.zoom(this.timeline.transform);
    this.y = d3.scaleLinear([0, 1.04 * most], [height - kMargin.bottom, kMargin.top]);
    this.columns = this.findColumns();
    this.drawColumns(context);
    this.drawAxes(context, width, height);
    this.drawMarks(context);
    this.drawOoms(context, height);
    if (limit !== null) this.drawLimit(context, limit);
    this.drawInstant(context, height);
    // What a reader of the page by program, and a test, can hold against another chart.
    Object.assign(this.canvas.dataset, {most, length});
  }

  /** For each column of pixels its highest instant; none where the run is over. */
  findColumns() {
    const columns = [];
    let last = null;
    for (let x = kMargin.left; x < this.width - kMargin.right; ++x) {
      if (this.axis.isOver(x)) break;
      const first = this.axis.eventAt(x);
      const isLast = x + 1 >= this.width - kMargin.right || this.axis.isOver(x + 1);
      const end = isLast && this.axis.eventAt(x + 1) === this.history.events - 1 ? this.history.events :
          Math.max(first + 1, this.axis.eventAt(x + 1));
      if (last === null || last.first !== first || last.end !== end) {
        last = {first, end, ...this.levels.highestIn(first, end)};
        // Where the record states it, it may do so late.
        last.reserved = Math.max(last.total, this.reserved.highestIn(first, end));
      }
      columns.push(last);
    }
    return columns;
  }

  drawColumns(context) {
    const colours = this.groups.colours();
    const zero = this.y(0);
    this.columns.forEach((column, i) => {
      const x = kMargin.left + i;
      let below = 0;
      for (let g = 0; g < colours.length; ++g) {
        const value = column.values[g];
        if (value <= 0) continue;
        context.fillStyle = colours[g];
        const top = this.y(below + value);
        context.fillRect(x, top, 1, Math.min(zero, this.y(below)) - top);
        below += value;
      }
    });
    if (this.reserved.empty || this.state.selection) return;
    context.strokeStyle = colour("ink");
    context.lineWidth = 1.2;
    context.beginPath();
    this.columns.forEach((column, i) => context.lineTo(kMargin.left + i + 0.5, this.y(column.reserved)));
    context.stroke();
  }

  drawAxes(context, width, height) {
    context.fillStyle = colour("quiet");
    context.strokeStyle = colour("line");
    context.font = "12px system-ui, sans-serif";
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of format.roundSizes(this.y.domain()[1])) {
      const y = Math.round(this.y(value)) + 0.5;
      context.fillText(format.bytes(value), kMargin.left - 6, y);
      context.globalAlpha = 0.5;
      line(context, kMargin.left, y, width - kMargin.right, y);
      context.globalAlpha = 1;
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const value of this.axis.ticks(Math.max(2, Math.floor(width / 120)))) {
      if (!this.axis.byTime && value % 1 !== 0) continue;
      const text = this.axis.byTime ? format.duration(value) : format.count(value);
      context.fillText(text, this.axis.scale(value), height - kMargin.bottom + 6);
    }
  }

  /** The pixels of a mark that are in sight, or nothing. */
  extentOf(mark) {
    const [left, right] = [kMargin.left, this.width - kMargin.right];
    const from = Math.max(left, this.axis.pixelOf(mark.first));
    const to = Math.min(right, this.axis.pixelOf(mark.last + (this.axis.byTime ? 0 : 1)));
    return to < left || from > right ? null : {from, wide: Math.max(1, to - from)};
  }

  /** Steps above, their phases below them. */
  drawMarks(context) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const mark of this.history.marks) {
      const extent = this.extentOf(mark);
      if (!extent) continue;
      const {from, wide} = extent;
      const isStep = mark.kind === "step";
      const band = isStep ? kStepBand : kPhaseBand;
      context.fillStyle = isStep ? colour(mark.step % 2 ? "cached" : "rounding") : colour(kPhaseColours[mark.kind]);
      context.fillRect(from, band.from, wide, band.size);
      if (!isStep || wide < 22) continue;
      context.fillStyle = colour("ink");
      context.fillText(wide > 60 ? `step ${mark.step}` : String(mark.step), from + wide / 2, 10);
    }
  }

  /** Lines through all; one that a library survived is a tick. */
  drawOoms(context, height) {
    context.strokeStyle = colour("bad");
    for (const oom of this.side.report.ooms) {
      const x = oom.event === null ? -1 : this.axis.pixelOf(oom.event);
      if (x < kMargin.left || x > this.width - kMargin.right) continue;
      const stopped = oom.fatal || oom.caught;
      context.lineWidth = stopped ? 2 : 1;
      line(context, x, kMargin.top - 5, x, stopped ? height - kMargin.bottom : kMargin.top + 3);
    }
  }

  drawLimit(context, limit) {
    const y = this.y(limit);
    context.strokeStyle = colour("bad");
    context.setLineDash([6, 4]);
    line(context, kMargin.left, y, this.width - kMargin.right, y);
    context.setLineDash([]);
    context.fillStyle = colour("bad");
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText(`limit ${format.bytes(limit)}`, kMargin.left + 4, y - 2);
  }

  drawInstant(context, height) {
    if (this.side.event < 0) return;
    const x = this.axis.pixelOf(this.side.event) + (this.axis.byTime ? 0 : 0.5);
    if (x < kMargin.left || x > this.width - kMargin.right) return;
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    line(context, x, kMargin.top - 6, x, height - kMargin.bottom);
  }

  /** The pointer's place inside the canvas. */
  pointer(event) {
    const box = this.canvas.getBoundingClientRect();
    return {x: event.clientX - box.left - this.canvas.clientLeft, y: event.clientY - box.top - this.canvas.clientTop};
  }

  /** What lies under the pointer: the column, and the block in it, if it is one. */
  under(event) {
    const {x, y} = this.pointer(event);
    const column = this.columns?.[Math.floor(x - kMargin.left)];
    if (!column) return null;
    const height = this.y.invert(y);
    let below = 0;
    for (let g = 0; g < column.values.length; ++g) {
      if (height >= below && height < below + column.values[g]) {
        return {column, block: this.blockAt(column.event, g, height - below)};
      }
      below += column.values[g];
    }
    return {column, block: -1};
  }

  /** The step or phase whose band is under the pointer. */
  markUnder(event) {
    const {x, y} = this.pointer(event);
    if (!this.columns || y >= kPhaseBand.from + kPhaseBand.size) return null;
    const isStep = y < kPhaseBand.from - 1;
    return this.history.marks.find((mark) => {
      const extent = (mark.kind === "step") === isStep ? this.extentOf(mark) : null;
      return extent && x >= extent.from && x <= extent.from + extent.wide;
    }) ?? null;
  }

  /** Inside a group, blocks lie in the order in which they were made. */
  blockAt(event, group, height) {
    for (const block of this.history.heldAt(event)) {
      if (this.levels.group[block] !== group) continue;
      height -= this.history.size[block];
      if (height < 0) return block;
    }
    return -1;
  }

  hover(event) {
    const mark = this.markUnder(event);
    this.canvas.style.cursor = mark ? "zoom-in" : "";
    if (mark) return tip(`${mark.kind === "step" ? `step ${mark.step}` : phaseText(mark)}: click to zoom to it`, event);
    const found = this.under(event);
    if (!found) return tip(null);
    const {column, block} = found;
    const instant = `event ${format.count(column.event)}: ${format.bytes(column.total)} allocated`;
    const reserved = this.state.selection ? " by what is selected" : `, ${format.bytes(column.reserved)} reserved`;
    tip(block < 0 ? `${instant}${reserved}` : `${blockText(this.history, block)}\n${instant}`, event);
  }

  click(event) {
    this.canvas.focus();
    const mark = this.markUnder(event);
    if (mark) return this.timeline.zoomTo(mark.first, mark.last, this);
    const found = this.under(event);
    if (!found) return;
    this.state.chooseEvent(found.column.event, this.side);
    pin(this.state, this.history, found.block);
  }

  key(event) {
    const far = event.shiftKey ? 100 : 1;
    const actions = {
      ArrowLeft: () => this.timeline.goTo(this.side.event - far, this),
      ArrowRight: () => this.timeline.goTo(this.side.event + far, this),
      Escape: () => pin(this.state, this.history, -1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  inSight(x) {
    return x >= kMargin.left && x <= this.width - kMargin.right;
  }
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
