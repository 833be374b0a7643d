// Under a chart: which stage of the job's life each stretch of it is, on the chart's own axis; and below that, of a
// prediction, what the host has in each stage. Of the host nothing is known between stages, so there is no curve.
import * as format from "./format.js";
import {byId, element, tip} from "./dom.js";
import {Levels} from "./levels.js";
import {stageColour} from "./theme.js";

/** Deeper ones would take more room than the curve. */
const kMostRows = 3;
/** Below this width a stretch has no room for a word. */
const kLeastForText = 26;

export class Lanes {
  /** `margin` is that of the chart; `stages` are the rows of a prediction's stages, or nothing. */
  constructor(chart, margin, stages) {
    this.chart = chart;
    this.margin = margin;
    this.stages = stages ?? [];
    this.stretches = joined(chart.history.stretches.map((s) => ({...s, row: this.rowOf(s)})));
    const deepest = this.stretches.reduce((most, s) => Math.max(most, s.depth), -1);
    this.rows = Array.from({length: Math.min(kMostRows, deepest + 1)}, (_, depth) => this.makeRow(depth));
    this.buttons = new Map();
    this.host = this.stages.some((row) => row.host !== null) ? element("div", {class: "lane host", role: "img", "aria-label": this.hostText()},
        element("span", {class: "lane-name"}, "host, by stage")) : null;
    this.element = element("div", {class: "lanes", role: "group", "aria-label": "Stages. Left and right go from one to the next, Enter to its peak.",
      onkeydown: (event) => this.key(event)}, ...this.rows, this.host);
    this.element.hidden = this.rows.length === 0;
  }

  /** The row of the prediction's table that a stretch belongs to. */
  rowOf(stretch) {
    return stretch.part === null ? null : this.stages.find((row) => row.parts.includes(stretch.part)) ?? null;
  }

  makeRow(depth) {
    const {history, side} = this.chart;
    const name = depth > 0 ? "within" : history.stretches.some((s) => s.part !== null) ? "stages" : side.report.marks ? "marks" : "steps";
    return element("div", {class: "lane", "data-depth": depth}, element("span", {class: "lane-name"}, name));
  }

  hostText() {
    const known = this.stages.filter((row) => row.host !== null);
    return `Resident memory of the process on the host, known by stage: ${known.map((row) => `${row.name} ${format.bytes(row.host)}`).join(", ")}`;
  }

  /** The highest instant of a stretch, what it begins with included, and the most that is reserved in it. */
  peakOf(stretch) {
    const {history, reserved, state} = this.chart;
    // With a selection the chart counts that alone.
    const levels = state.selection ? this.all ??= new Levels(history, () => 0, 1) : this.chart.levels;
    const first = Math.max(0, stretch.first - 1);
    const {event, total} = levels.highestIn(first, stretch.last + 1);
    return {event, allocated: total, reserved: Math.max(total, reserved.highestIn(first, stretch.last + 1))};
  }

  textOf(stretch) {
    const {allocated, reserved} = this.peakOf(stretch);
    const figures = `${stretch.name}: at most ${format.bytes(allocated)} allocated, ${format.bytes(reserved)} reserved`;
    const {row} = stretch;
    return row ? `${figures}; the stage as a whole ${format.bytes(row.device)} on the device` +
        `${row.host === null ? "" : `, ${format.bytes(row.host)} on the host`}` : figures;
  }

  buttonOf(stretch) {
    if (!this.buttons.has(stretch)) {
      const text = this.textOf(stretch);
      this.buttons.set(stretch, element("button", {type: "button", class: "stretch", tabindex: -1, "aria-label": `${text}. Go to its peak.`,
        "data-first": stretch.first, "data-last": stretch.last, "data-stage": stretch.stage,
        onmousemove: (event) => tip(`${text}\nclick to go to its peak`, event), onmouseleave: () => tip(null),
        onblur: () => tip(null), onclick: () => this.choose(stretch)}));
    }
    return this.buttons.get(stretch);
  }

  /** Goes to the peak of a stretch and says what it is. */
  choose(stretch) {
    const {timeline} = this.chart;
    const said = byId("stretch");
    said.replaceChildren(element("span", {}, `${this.textOf(stretch)}. `), element("button", {type: "button", id: "stretch-zoom",
      onclick: () => timeline.zoomTo(stretch.first, stretch.last, this.chart)}, "Zoom to it"));
    said.hidden = false;
    timeline.goTo(this.peakOf(stretch).event, this.chart);
  }

  key(event) {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!by || !event.target.matches(".stretch")) return;
    event.preventDefault();
    const all = [...this.element.querySelectorAll(".stretch")];
    const next = all[all.indexOf(event.target) + by];
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus({preventScroll: true});
  }

  /** With the chart: the axis has moved. */
  draw() {
    if (this.element.hidden) return;
    const focused = this.element.contains(document.activeElement) ? document.activeElement : null;
    this.rows.forEach((row, depth) => {
      const seen = this.inSight(depth);
      // Moving what is there already would take the focus from it.
      const buttons = seen.map(({stretch}) => this.buttonOf(stretch));
      const had = [...row.querySelectorAll(".stretch")];
      if (had.length !== buttons.length || had.some((button, i) => button !== buttons[i])) row.replaceChildren(row.firstChild, ...buttons);
      seen.forEach(({stretch, from, wide}, i) => {
        place(buttons[i], from, wide);
        buttons[i].textContent = wide < kLeastForText ? "" : stretch.name;
        buttons[i].style.background = stageColour(stretch.stage);
      });
      if (depth === 0) this.drawHost(seen);
    });
    const stops = [...this.element.querySelectorAll(".stretch")];
    if (!stops.some((button) => button.tabIndex === 0) && stops.length > 0) stops[0].tabIndex = 0;
    if (focused?.isConnected && focused !== document.activeElement) focused.focus({preventScroll: true});
  }

  /** The stretches of a row that are in sight; of those that share a pixel, the first. */
  inSight(depth) {
    const seen = [];
    let end = -Infinity;
    for (const stretch of this.stretches) {
      if (stretch.depth !== depth) continue;
      const extent = this.chart.extentOf(stretch);
      if (!extent || extent.from + extent.wide < end + 1) continue;
      end = extent.from + extent.wide;
      seen.push({stretch, ...extent});
    }
    return seen;
  }

  /** Bars on one scale, as high as what the stage has on the host. */
  drawHost(seen) {
    if (!this.host) return;
    const most = Math.max(1, ...this.stages.map((row) => row.host ?? 0));
    const bars = seen.filter(({stretch}) => stretch.row && stretch.row.host !== null).map(({stretch, from, wide}) => {
      const bar = element("span", {class: "host-bar", "data-host": stretch.row.host},
          element("span", {class: "fill"}), wide < 3 * kLeastForText ? null : element("span", {class: "host-text"}, format.bytes(stretch.row.host)));
      bar.firstChild.style.height = `${100 * stretch.row.host / most}%`;
      bar.addEventListener("mousemove", (event) => tip(`${stretch.name}: ${format.bytes(stretch.row.host)} resident on the host at most`, event));
      bar.addEventListener("mouseleave", () => tip(null));
      place(bar, from, wide);
      return bar;
    });
    this.host.replaceChildren(this.host.firstChild, ...bars);
  }

  /** The stretch of a stage that is highest; nothing where the stage asks for nothing. */
  highestOf(wanted) {
    const peaks = this.stretches.filter(wanted).map((stretch) => ({stretch, ...this.peakOf(stretch)}));
    return peaks.reduce((best, peak) => best && best.allocated >= peak.allocated ? best : peak, null);
  }
}

function place(node, from, wide) {
  node.style.left = `${from}px`;
  node.style.width = `${Math.max(1, wide)}px`;
}

/** An evaluation has several parts, one after the other: they are one stretch of one row. */
function joined(stretches) {
  const all = [];
  for (const stretch of stretches) {
    const before = all.at(-1);
    if (stretch.row && before?.row === stretch.row && before.last + 1 === stretch.first) before.last = stretch.last;
    else all.push({...stretch, name: stretch.row?.name ?? stretch.name});
  }
  return all;
}
