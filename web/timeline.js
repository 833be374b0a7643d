// Memory over time, stacked. Every column of pixels shows the highest instant of its events, found
// exactly (levels.js); the caption says how many events that is.
import * as format from "./format.js";
import {Axis} from "./axis.js";
import {byId, element, oncePerFrame, prepared, show, swatch, tip} from "./dom.js";
import {grouping, kGroupings} from "./groups.js";
import {kNotYet} from "./history.js";
import {Levels, ReservedCurve} from "./levels.js";
import {colour} from "./theme.js";

const kMargin = {left: 74, right: 10, top: 34, bottom: 24};
const kPhaseColours = {forward: "activations", backward: "gradients", optimizer: "optimizer_state"};
/** A limit further away than this many times the peak would flatten the curve. */
const kFarLimit = 1.6;

export class Timeline {
  constructor(state) {
    this.state = state;
    this.how = "category";
    this.byTime = false;
    this.draw = oncePerFrame(() => this.drawNow());
    // d3 before its sixth release keeps the event in a place of its own.
    this.zoom = d3.zoom().filter((event) => this.wantsZoom(event ?? d3.event)).on("zoom", (event) => {
      this.transform = (event ?? d3.event).transform;
      this.draw();
    });
    this.transform = d3.zoomIdentity;
    state.when("rank", () => this.open());
    state.when("event", () => this.draw());
    state.when("theme", () => this.draw());
    state.when("print", () => this.drawNow());
    window.addEventListener("resize", () => this.draw());
  }

  /** The wheel scrolls the page until the chart has been clicked on, or with Ctrl. */
  wantsZoom(event) {
    if (event.type === "wheel") return event.ctrlKey || document.activeElement === this.canvas;
    return !event.button;
  }

  open() {
    const h = this.state.history;
    if (!h || h.events === 0) return show("timeline");
    this.reserved = new ReservedCurve(h);
    this.regroup();
    this.canvas = element("canvas", {tabindex: 0, role: "img", id: "curve",
      "aria-label": "Memory over time. Arrow keys move the instant, plus and minus zoom, P goes to the peak."});
    show("timeline", element("h2", {}, "Memory over time"), this.tools(), this.canvas,
        element("p", {class: "hint", id: "drawn"}), element("ul", {class: "legend", id: "legend"}),
        element("div", {id: "pinned", hidden: true}));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tip(null));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    const most = Math.max(2, h.events / 10);
    d3.select(this.canvas).call(this.zoom.scaleExtent([1, most]));
    this.setTransform(d3.zoomIdentity);
  }

  tools() {
    const choose = (label, options, chosen, change) => {
      const select = element("select", {onchange: (event) => change(event.target.value)},
          ...Object.entries(options).map(([value, text]) => element("option", {value, selected: value === chosen}, text)));
      return element("label", {}, `${label} `, select);
    };
    const button = (id, text, action) => element("button", {type: "button", id, onclick: action}, text);
    const oom = this.oomEvents.length > 0;
    return element("div", {class: "tools"},
        button("to-peak", "Go to the peak (p)", () => this.goTo(this.state.history.peak.event)),
        oom ? button("to-oom", "Out of memory (o)", () => this.goTo(this.nextOom())) : null,
        button("zoom-in", "+", () => this.zoomBy(2)),
        button("zoom-out", "−", () => this.zoomBy(0.5)),
        button("zoom-all", "Whole run (0)", () => this.showWhole()),
        choose("by", kGroupings, this.how, (how) => { this.how = how; this.regroup(); this.draw(); }),
        this.state.history.hasTimes ? choose("against", {events: "events", time: "time"}, this.byTime ? "time" : "events",
            (axis) => { this.byTime = axis === "time"; this.setTransform(d3.zoomIdentity); }) : null);
  }

  /** Those that stopped something first. */
  get oomEvents() {
    const ooms = this.state.report.ooms.filter((oom) => oom.event !== null);
    const stopped = ooms.filter((oom) => oom.fatal || oom.caught);
    return (stopped.length > 0 ? stopped : ooms).map((oom) => oom.event);
  }

  nextOom() {
    return this.oomEvents.find((event) => event > this.state.event) ?? this.oomEvents[0];
  }

  regroup() {
    this.groups = grouping(this.state.history, this.how);
    this.levels = new Levels(this.state.history, this.groups.groupOf, this.groups.names.length);
  }

  setTransform(transform) {
    this.transform = transform;
    d3.select(this.canvas).call(this.zoom.transform, transform);
    this.draw();
  }

  showWhole() {
    this.setTransform(d3.zoomIdentity);
  }

  zoomBy(factor) {
    const x = this.axis ? this.axis.pixelOf(this.state.event) : 0;
    const inside = x >= kMargin.left && x <= this.width - kMargin.right;
    d3.select(this.canvas).call(this.zoom.scaleBy, factor, [inside ? x : this.width / 2, 0]);
  }

  /** Chooses an instant and brings it into sight. */
  goTo(event) {
    this.state.chooseEvent(event);
    if (!this.axis) return;
    const x = this.axis.pixelOf(this.state.event);
    if (x < kMargin.left || x > this.width - kMargin.right) {
      d3.select(this.canvas).call(this.zoom.translateBy, (this.width / 2 - x) / this.transform.k, 0);
    }
  }

  /** What the run may hold: the memory fraction, or the card. */
  get limit() {
    const {report, run} = this.state;
    return report.limit ?? run?.what_if?.limit ?? report.capacity ?? run?.what_if?.capacity ?? null;
  }

  drawNow() {
    const h = this.state.history;
    if (!h || !this.canvas?.isConnected || h.events === 0) return;
    const {context, width, height} = prepared(this.canvas);
    this.width = width;
    this.axis = new Axis(h, this.byTime, kMargin.left, width - kMargin.right);
    this.zoom.extent([[kMargin.left, 0], [width - kMargin.right, height]])
        .translateExtent([[kMargin.left, 0], [width - kMargin.right, height]]);
    this.axis.zoom(this.transform);
    const most = Math.max(this.reserved.highest, h.peak.allocated, 1);
    const limit = this.limit;
    const near = limit !== null && limit < kFarLimit * most;
    this.y = d3.scaleLinear([0, 1.04 * Math.max(most, near ? limit : 0)], [height - kMargin.bottom, kMargin.top]);
    this.columns = this.findColumns();
    this.drawColumns(context);
    this.drawAxes(context, width, height);
    this.drawMarks(context, height);
    if (near) this.drawLimit(context, limit);
    this.drawInstant(context, height);
    this.caption(limit !== null && !near ? limit : null);
  }

  /** For each column of pixels its highest instant. */
  findColumns() {
    const columns = [];
    let last = null;
    for (let x = kMargin.left; x < this.width - kMargin.right; ++x) {
      const first = this.axis.eventAt(x);
      const isLast = x + 1 >= this.width - kMargin.right;
      const end = isLast && this.axis.eventAt(x + 1) === this.state.history.events - 1 ? this.state.history.events :
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
    if (this.reserved.empty) return;
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
      if (!this.byTime && value % 1 !== 0) continue;
      const text = this.axis.byTime ? format.duration(value) : format.count(value);
      context.fillText(text, this.axis.scale(value), height - kMargin.bottom + 6);
    }
  }

  /** Steps above, their phases below them, out-of-memory events as lines through all. */
  drawMarks(context, height) {
    const edge = {left: kMargin.left, right: this.width - kMargin.right};
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const mark of this.state.history.marks) {
      const from = Math.max(edge.left, this.axis.pixelOf(mark.first));
      const to = Math.min(edge.right, this.axis.pixelOf(mark.last + (this.axis.byTime ? 0 : 1)));
      if (to < edge.left || from > edge.right) continue;
      const wide = Math.max(1, to - from);
      const isStep = mark.kind === "step";
      context.fillStyle = isStep ? colour(mark.step % 2 ? "cached" : "rounding") : colour(kPhaseColours[mark.kind]);
      context.fillRect(from, isStep ? 2 : 20, wide, isStep ? 15 : 8);
      if (!isStep || wide < 22) continue;
      context.fillStyle = colour("ink");
      context.fillText(wide > 60 ? `step ${mark.step}` : String(mark.step), from + wide / 2, 10);
    }
    context.strokeStyle = colour("bad");
    for (const oom of this.state.report.ooms) {
      const x = oom.event === null ? -1 : this.axis.pixelOf(oom.event);
      if (x < edge.left || x > edge.right) continue;
      // One that a library survived is a tick; one that stopped something goes through all.
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
    if (this.state.event < 0) return;
    const x = this.axis.pixelOf(this.state.event) + (this.axis.byTime ? 0 : 0.5);
    if (x < kMargin.left || x > this.width - kMargin.right) return;
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    line(context, x, kMargin.top - 6, x, height - kMargin.bottom);
  }

  caption(farLimit) {
    const most = this.columns.reduce((a, column) => Math.max(a, column.end - column.first), 1);
    const drawn = most === 1 ? "Every event is drawn." :
        `Each column of pixels shows the highest instant of its events, up to ${format.count(most)}.`;
    const far = farLimit === null ? "" : ` The limit, ${format.bytes(farLimit)}, is far above.`;
    byId("drawn").textContent = `${drawn}${far} The line is reserved memory. Drag to move; the wheel zooms after a click.`;
    const colours = this.groups.colours();
    const totals = this.levels.highestIn(Math.max(0, this.state.event), Math.max(0, this.state.event) + 1).values;
    const items = this.groups.names.map((name, g) => this.levels.group.includes(g) ?
        element("li", {}, swatch(`${name} ${format.bytes(totals[g])}`, colours[g])) : null).filter(Boolean);
    byId("legend").replaceChildren(...items);
  }

  /** What lies under the pointer: the column, and the block in it, if it is one. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = this.columns?.[Math.floor(event.clientX - box.left - this.canvas.clientLeft - kMargin.left)];
    if (!column) return null;
    const height = this.y.invert(event.clientY - box.top - this.canvas.clientTop);
    let below = 0;
    for (let g = 0; g < column.values.length; ++g) {
      if (height >= below && height < below + column.values[g]) {
        return {column, block: this.blockAt(column.event, g, height - below)};
      }
      below += column.values[g];
    }
    return {column, block: -1};
  }

  /** Inside a group, blocks lie in the order in which they were made. */
  blockAt(event, group, height) {
    for (const block of this.state.history.heldAt(event)) {
      if (this.levels.group[block] !== group) continue;
      height -= this.state.history.size[block];
      if (height < 0) return block;
    }
    return -1;
  }

  hover(event) {
    const found = this.under(event);
    if (!found) return tip(null);
    const {column, block} = found;
    const instant = `event ${format.count(column.event)}: ${format.bytes(column.total)} allocated`;
    tip(block < 0 ? `${instant}, ${format.bytes(column.reserved)} reserved` : `${blockText(this.state.history, block)}\n${instant}`, event);
  }

  click(event) {
    const found = this.under(event);
    if (!found) return;
    this.canvas.focus();
    this.state.chooseEvent(found.column.event);
    pin(this.state.history, found.block);
  }

  key(event) {
    const far = event.shiftKey ? 100 : 1;
    const actions = {
      ArrowLeft: () => this.goTo(this.state.event - far),
      ArrowRight: () => this.goTo(this.state.event + far),
      Escape: () => pin(this.state.history, -1),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

export function blockText(history, block) {
  const life = history.released[block] === kNotYet ? "to the end" : `to event ${format.count(history.released[block])}`;
  const made = history.made[block] < 0 ? "before the record" : `event ${format.count(history.made[block])}`;
  return `${history.names[history.place[block]]}\n${format.words(history.categories[history.category[block]])}, ` +
      `${format.bytes(history.requested[block])}, from ${made} ${life}`;
}

/** Keeps a block's stack on the page. */
export function pin(history, block) {
  const panel = byId("pinned");
  panel.hidden = block < 0;
  if (block < 0) return;
  const frames = history.stackOf(history.node[block]);
  panel.replaceChildren(
      element("strong", {}, blockText(history, block)),
      element("p", {class: "hint"}, `at ${history.address(history.offset[block])}, ${format.bytes(history.size[block])} with rounding`),
      frames.length === 0 ? element("p", {class: "hint"}, "No stack was recorded.") :
          element("ol", {}, ...frames.map((f) => element("li", {class: "mono"}, `${f.function} (${f.file}:${f.line})`))));
}
