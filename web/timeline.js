// Memory over time: a chart for the run, and one for the run that it is compared with, on common scales.
import * as format from "./format.js";
import {Axis} from "./axis.js";
import {Chart, kMargin, kPhaseColours} from "./chart.js";
import {byId, element, oncePerFrame, show, swatch} from "./dom.js";
import {kGroupings, selectionText} from "./groups.js";
import {Lanes} from "./lanes.js";
import {colour} from "./theme.js";

/** A limit further away than this many times the peak would flatten the curve. */
const kFarLimit = 1.6;

export class Timeline {
  constructor(state) {
    this.state = state;
    this.how = "category";
    this.byTime = false;
    this.charts = [];
    /** One for each chart. */
    this.lanes = [];
    this.draw = oncePerFrame(() => this.drawNow());
    // d3 before its sixth release keeps the event in a place of its own.
    this.zoom = d3.zoom().filter((event) => this.wantsZoom(event ?? d3.event)).on("zoom", (event) => {
      this.transform = (event ?? d3.event).transform;
      this.draw();
      this.zoomed();
    });
    this.transform = d3.zoomIdentity;
    /** Called when another stretch of the run comes into sight. */
    this.zoomed = () => {};
    state.when("rank", () => this.open());
    state.when("event", () => this.draw());
    state.when("selection", () => this.regroup());
    state.when("jump", () => this.show());
    state.when("theme", () => this.draw());
    state.when("print", () => this.drawNow());
    window.addEventListener("resize", () => this.draw());
  }

  /** The wheel scrolls the page until a chart has been clicked on, or with Ctrl. */
  wantsZoom(event) {
    if (event.type === "wheel") return event.ctrlKey || this.frame.contains(document.activeElement);
    return !event.button;
  }

  open() {
    this.charts = this.lanes = [];
    if (!this.state.history?.events) return show("timeline");
    const sides = this.state.sides.filter((side) => side.history.events > 0);
    this.byTime &&= sides.every((side) => side.history.hasTimes);
    const canvases = sides.map((side, i) => element("canvas", {tabindex: 0, role: "img", id: i === 0 ? "curve" : "base-curve",
      "aria-label": `Memory over time, ${side.title}. Arrow keys move the instant, plus and minus zoom, P goes to the peak.`}));
    const named = sides.length > 1 ? sides.map((side, i) => element("p", {class: "run-name"}, i === 0 ? "This run: " : "Baseline: ",
        element("span", {class: "mono"}, format.baseName(side.report.file)))) : [];
    this.charts = sides.map((side, i) => new Chart(this, side, canvases[i]));
    this.lanes = this.charts.map((chart, i) => new Lanes(chart, kMargin, i === 0 ? this.state.data.stages?.rows : null));
    this.frame = element("div", {id: "charts"}, ...canvases.flatMap((canvas, i) => [named[i], canvas, this.lanes[i].element].filter(Boolean)));
    const {process} = this.state.report;
    show("timeline", element("h2", {}, `Memory over time${process ? `: ${process}` : ""}`), this.tools(sides), element("div", {id: "selection", hidden: true}),
        this.frame, element("p", {id: "stretch", class: "hint", role: "status", hidden: true}), element("p", {class: "hint", id: "drawn"}), element("ul", {class: "legend", id: "legend"}),
        element("ul", {class: "legend", id: "marks-legend"}), element("div", {id: "pinned", hidden: true}));
    const most = Math.max(2, ...sides.map((side) => side.history.events / 10));
    d3.select(this.frame).call(this.zoom.scaleExtent([1, most])).on("dblclick.zoom", null);
    this.regroup();
    this.setTransform(d3.zoomIdentity);
  }

  tools(sides) {
    const choose = (label, options, chosen, change) => {
      const select = element("select", {onchange: (event) => change(event.target.value)},
          ...Object.entries(options).map(([value, text]) => element("option", {value, selected: value === chosen}, text)));
      return element("label", {}, `${label} `, select);
    };
    const button = (id, text, action) => element("button", {type: "button", id, onclick: action}, text);
    return element("div", {class: "tools"},
        button("to-peak", "Go to the peak (p)", () => this.goTo(this.state.history.peak.event)),
        this.oomEvents.length > 0 ? button("to-oom", "Out of memory (o)", () => this.goTo(this.nextOom())) : null,
        button("zoom-in", "+", () => this.zoomBy(2)),
        button("zoom-out", "−", () => this.zoomBy(0.5)),
        button("zoom-all", "Whole run (0)", () => this.showWhole()),
        choose("by", kGroupings, this.how, (how) => { this.how = how; this.regroup(); }),
        sides.every((side) => side.history.hasTimes) ? choose("against", {events: "events", time: "time"}, this.byTime ? "time" : "events",
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

  /** Counts the blocks anew: by another grouping, or another selection of them. */
  regroup() {
    for (const chart of this.charts) chart.regroup();
    this.showSelection();
    this.draw();
  }

  showSelection() {
    const box = byId("selection");
    if (!box) return;
    box.hidden = this.state.selection === null;
    if (box.hidden || this.charts.length === 0) return;
    const {levels} = this.charts[0];
    const {event, total} = levels.peak;
    box.replaceChildren(element("strong", {}, `Only ${selectionText(this.state.selection)}`),
        element("span", {}, ` at most ${format.bytes(total)}, at event ${format.count(event)} `),
        element("button", {type: "button", id: "selection-peak", onclick: () => this.goTo(event)}, "Go there"),
        element("button", {type: "button", id: "selection-clear", onclick: () => this.state.select(null)}, "Show all"));
  }

  setTransform(transform) {
    this.transform = transform;
    d3.select(this.frame).call(this.zoom.transform, transform);
    this.draw();
  }

  showWhole() {
    this.setTransform(d3.zoomIdentity);
  }

  zoomBy(factor) {
    const chart = this.charts[0];
    const x = chart.axis ? chart.axis.pixelOf(chart.side.event) : 0;
    d3.select(this.frame).call(this.zoom.scaleBy, factor, [chart.inSight(x) ? x : chart.width / 2, 0]);
  }

  /** Brings a stretch of events into sight, both ends included, as wide as it gets. */
  zoomTo(first, last, chart = this.charts[0]) {
    const {axis, width} = chart;
    const [left, right] = [kMargin.left, width - kMargin.right];
    const from = axis.pixelOf(first, axis.whole);
    const to = axis.pixelOf(last + (axis.byTime ? 0 : 1), axis.whole);
    const k = Math.max(1, Math.min((right - left) / Math.max(to - from, 1e-9), this.zoom.scaleExtent()[1]));
    const x = Math.max(right - right * k, Math.min(left - left * k, (left + right) / 2 - (from + to) / 2 * k));
    this.setTransform(d3.zoomIdentity.translate(x, 0).scale(k));
  }

  /** Zooms to a step and chooses its highest instant. */
  showStep(first, last) {
    const chart = this.charts[0];
    this.state.chooseEvent(chart.levels.highestIn(first, last + 1).event);
    this.zoomTo(first, last);
    byId("timeline").scrollIntoView();
  }

  hasStretch(wanted) {
    return this.lanes[0]?.stretches.some(wanted) ?? false;
  }

  /** Goes to the highest of the stretches that are wanted. */
  showStretch(wanted) {
    const highest = this.lanes[0]?.highestOf(wanted);
    if (!highest) return;
    this.lanes[0].choose(highest.stretch);
    byId("timeline").scrollIntoView();
  }

  /** As the address asks for, once the chart has been drawn. */
  showEvents(first, last) {
    if (this.charts.length === 0) return;
    this.drawNow();
    const end = this.charts[0].history.events - 1;
    const within = (event) => Math.max(0, Math.min(Math.round(event), end));
    if (within(first) <= within(last)) this.zoomTo(within(first), within(last));
  }

  /** The events in sight, or nothing where all are. */
  get inSight() {
    const {axis, width} = this.charts[0] ?? {};
    if (!axis || this.transform.k === 1) return null;
    axis.zoom(this.transform);
    // Not on the border itself, where rounding decides.
    return [axis.eventAt(kMargin.left + 1e-6), axis.eventAt(width - kMargin.right - 1e-6)];
  }

  /** Chooses an instant and brings it into sight. */
  goTo(event, chart = this.charts[0]) {
    this.state.chooseEvent(event, chart.side);
    if (!chart.axis) return;
    const x = chart.axis.pixelOf(chart.side.event);
    if (!chart.inSight(x)) d3.select(this.frame).call(this.zoom.translateBy, (chart.width / 2 - x) / this.transform.k, 0);
  }

  /** From elsewhere on the page. */
  show() {
    if (this.charts.length === 0) return;
    this.goTo(this.state.event);
    byId("timeline").scrollIntoView();
  }

  /** What the run may hold: the memory fraction, or the card. */
  get limit() {
    const {report, run} = this.state;
    return report.limit ?? run?.what_if?.limit ?? report.capacity ?? run?.what_if?.capacity ?? null;
  }

  drawNow() {
    if (this.charts.length === 0 || !this.frame.isConnected) return;
    const most = Math.max(...this.charts.map((chart) => chart.highest));
    const limit = this.state.selection ? null : this.limit;
    const near = limit !== null && limit < kFarLimit * most;
    const length = Math.max(...this.charts.map((chart) => Axis.lengthOf(chart.history, this.byTime)));
    const {clientWidth, clientHeight} = this.frame;
    const extent = [[kMargin.left, 0], [clientWidth - 2 - kMargin.right, clientHeight]];
    this.zoom.extent(extent).translateExtent(extent);
    for (const chart of this.charts) {
      chart.draw({most: Math.max(most, near ? limit : 0), length, limit: near ? limit : null});
    }
    for (const lanes of this.lanes) lanes.draw();
    this.caption(limit !== null && !near ? limit : null);
  }

  caption(farLimit) {
    const [chart] = this.charts;
    const most = Math.max(1, ...this.charts.map((c) => c.columns.reduce((a, column) => Math.max(a, column.end - column.first), 1)));
    const drawn = most === 1 ? "Every event is drawn." :
        `Each column of pixels shows the highest instant of its events, up to ${format.count(most)}.`;
    const {stretchesLeftOut} = chart.history;
    const cut = stretchesLeftOut > 0 ? ` ${format.count(stretchesLeftOut)} more marks are not in the lane.` : "";
    const far = farLimit === null ? "" : ` The limit, ${format.bytes(farLimit)}, is far above.`;
    byId("drawn").textContent = `${drawn}${far}${cut} Click a step or a phase to zoom to it, a colour below to see it alone. ` +
        "Drag to move; the wheel zooms after a click.";
    const now = Math.max(0, this.state.event);
    const totals = chart.levels.highestIn(now, now + 1).values;
    const colours = chart.groups.colours();
    const items = chart.groups.names.map((name, g) => this.legendItem(chart, g, name, totals[g], colours[g])).filter(Boolean);
    const old = byId("legend");
    const focused = old.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    old.replaceChildren(...items);
    if (focused !== null) old.querySelector(`button[data-key="${CSS.escape(focused)}"]`)?.focus({preventScroll: true});
    byId("marks-legend").replaceChildren(...this.marksLegend());
  }

  /** A group of the stack, which can be looked at alone. With a selection there are only those in it. */
  legendItem(chart, g, name, held, fill) {
    if (!chart.levels.group.includes(g)) return null;
    const text = `${name} ${format.bytes(held)}`;
    const key = chart.groups.keys[g];
    if (key === null) return element("li", {}, swatch(text, fill));
    const selection = {by: this.how, name: key};
    return element("li", {}, element("button", {type: "button", "data-key": key, title: "Show only this; again for all",
      "aria-pressed": String(this.state.isSelected(selection)), onclick: () => this.state.select(selection)}, swatch(text, fill)));
  }

  /** What the bands and lines are. */
  marksLegend() {
    const sides = this.charts.map((chart) => chart.side);
    const kinds = new Set(sides.flatMap((side) => side.history.marks.map((mark) => mark.kind)));
    const item = (kind, text, fill) => element("li", {"data-mark": kind}, swatch(text, fill));
    const items = Object.entries(kPhaseColours).filter(([kind]) => kinds.has(kind))
        .map(([kind, name]) => item(kind, kind, colour(name)));
    if (items.length > 0) items.unshift(element("li", {class: "hint"}, "Phases:"));
    if (!this.state.selection && this.charts.some((chart) => !chart.reserved.empty)) {
      items.push(item("reserved", "line: reserved memory", colour("ink")));
    }
    if (sides.some((side) => side.report.ooms.length > 0)) items.push(item("oom", "out of memory", colour("bad")));
    items.push(item("instant", "the chosen instant", colour("accent")));
    return items;
  }
}

