// Processes that share a card: what all of them hold together against its memory, and each beneath the other on one
// clock, with the hand-overs between them. Turns and hand-overs are the program's; the curves are of the records.
import * as format from "./format.js";
import {lastBefore} from "./axis.js";
import {kMargin} from "./chart.js";
import {Clock} from "./clock.js";
import {element, oncePerFrame, pickable, prepared, show, swatch, table, tip} from "./dom.js";
import {Levels, ReservedCurve} from "./levels.js";
import {colour} from "./theme.js";

const kColours = 4;
/** The room for the axis below the last strip, and for the band of turns above each. */
const kBottom = 24;
const kTop = 14;

export class Cards {
  constructor(state) {
    this.state = state;
    this.cards = [];
    this.draw = oncePerFrame(() => this.drawNow());
    for (const what of ["event", "rank", "theme"]) state.when(what, () => this.draw());
    state.when("print", () => this.drawNow());
    window.addEventListener("resize", () => this.draw());
  }

  /** Unpacks the records of all of them, which other views do one by one. */
  async open() {
    const {state} = this;
    const reports = state.data.explanation.cards ?? [];
    for (const report of reports) {
      const ranks = report.processes.map((p) => state.ranks.findIndex((r) => r.file === p.file && r.device === report.device));
      await Promise.all(ranks.map((rank) => state.own.unpack(rank)));
      const histories = ranks.map((rank) => state.own.unpacked.get(state.own.runOf(rank)?.history));
      this.cards.push(new Card(state, report, ranks, histories, this.cards.length));
    }
    show("processes", ...this.cards.flatMap((card) => card.views()));
    this.drawNow();
  }

  drawNow() {
    for (const card of this.cards) card.drawNow();
  }
}

/** One process: its record on the card's clock. */
class Process {
  constructor(name, index, rank, history, began) {
    Object.assign(this, {name, index, rank, history, began});
    this.levels = new Levels(history, () => 0, 1);
    this.reserved = new ReservedCurve(history);
  }

  get colour() {
    return colour(`process_${this.index % kColours}`);
  }

  /** The event that is in force at a time since the card's beginning; -1 before the first. */
  eventAt(time) {
    return time + this.began < this.history.times[0] ? -1 : lastBefore(this.history.times, time + this.began);
  }

  timeOf(event) {
    return this.history.times[event] - this.began;
  }

  /** The most that it has in a stretch of time. */
  highestIn(from, to) {
    const [first, last] = [this.eventAt(from), this.eventAt(to)];
    const allocated = last < 0 ? 0 : this.levels.highestIn(Math.max(0, first), last + 1).total;
    return {allocated, reserved: Math.max(allocated, this.reserved.highestIn(first, last + 1))};
  }
}

class Card {
  constructor(state, report, ranks, histories, index) {
    this.state = state;
    this.index = index;
    this.report = report;
    this.began = report.began_us;
    // Without one of them the others are not the sum.
    this.complete = histories.every((history) => history?.events > 0);
    this.processes = this.complete ? report.processes.map((p, i) => new Process(p.name, i, ranks[i], histories[i], this.began)) : [];
    this.transform = d3.zoomIdentity;
    if (!this.complete) return;
    const times = new Float64Array(this.processes.reduce((sum, p) => sum + p.history.events, 0));
    this.processes.reduce((at, p) => {
      times.set(p.history.times.map((time) => time - this.began), at);
      return at + p.history.events;
    }, 0);
    this.clock = new Clock(times, times.reduce((most, time) => Math.max(most, time), 0));
    this.sums = sumsOf(this.processes);
    this.most = this.sums.reduce((most, sum) => Math.max(most, sum.total), 1);
  }

  get room() {
    return this.report.capacity ?? this.report.room;
  }

  views() {
    const {report} = this;
    const names = report.processes.map((p) => p.name);
    const heading = [element("h2", {}, `Device ${report.device}, shared by ${names.join(" and ")}`), element("p", {}, this.sentence())];
    const tables = [...this.handOvers(), ...this.turns(), element("p", {class: "hint"}, `One card: ${report.known_by}.`)];
    if (!this.complete) {
      return [...heading, element("p", {class: "hint"}, "The records of some were left out to keep the page small, so that the sum cannot be drawn."), ...tables];
    }
    return [...heading, this.tools(), this.charts(), element("p", {class: "hint"},
        "Full: in tensors; pale: held from the driver. The band above a curve is when that process was at work. Lines through all are hand-overs, ",
        "red where something was not given back. Click a curve to look at that process at that moment below."), ...tables];
  }

  sentence() {
    const {capacity, room, at_once: atOnce} = this.report;
    const of = capacity === null ? "" : ` of ${format.bytes(capacity)}`;
    return `At most ${format.bytes(this.report.peak_reserved)}${of} together, after ${this.seconds(this.report.peak_us)}` +
        `${room === null ? "" : `; there are ${format.bytes(room)} for all of them`}.${atOnce ? " They work at the same time." : ""}`;
  }

  /** "19.66 s" since the first event of all. */
  seconds(time) {
    return `${((time - this.began) / 1e6).toFixed(2)} s`;
  }

  tools() {
    const button = (text, action, name) => element("button", {type: "button", "aria-label": name ?? null, onclick: action}, text);
    return element("div", {class: "tools"},
        button("+", () => d3.select(this.frame).call(this.zoom.scaleBy, 2), "Zoom in"),
        button("−", () => d3.select(this.frame).call(this.zoom.scaleBy, 0.5), "Zoom out"),
        button("All of it", () => this.showAll()),
        this.clock.pauses.length === 0 ? null : element("label", {}, element("input", {type: "checkbox", class: "shorten", checked: this.clock.shortened,
          onchange: (event) => {
            this.clock.shortened = event.target.checked;
            this.showAll();
          }}), " shorten pauses in which none of them does anything"));
  }

  showAll() {
    d3.select(this.frame).call(this.zoom.transform, d3.zoomIdentity);
  }

  /** Brings a stretch of time into sight. */
  zoomTo(from, to) {
    const [left, right] = [kMargin.left, this.sum.clientWidth - kMargin.right];
    const [a, b] = [from, to].map((time) => this.base(this.clock.shown(Math.max(0, Math.min(time, this.clock.length)))));
    const k = Math.max(1, Math.min((right - left) / Math.max(b - a, 1e-9), 2000));
    const x = Math.max(right - right * k, Math.min(left - left * k, (left + right) / 2 - (a + b) / 2 * k));
    d3.select(this.frame).call(this.zoom.transform, d3.zoomIdentity.translate(x, 0).scale(k));
  }

  charts() {
    const canvas = (name, text) => element("canvas", {class: name, role: "img", tabindex: 0, "aria-label": text});
    this.sum = canvas("sum", `${this.sentence()} The tables below have it by turns and hand-overs. Plus and minus zoom, left and right move.`);
    this.strips = this.processes.map((p, i) => canvas(i + 1 === this.processes.length ? "last" : "", `What ${p.name} held over time.`));
    this.names = this.processes.map((p) => element("p", {class: "run-name"}, swatch(p.name, p.colour)));
    this.frame = element("div", {class: "strips", "data-most": this.most}, element("p", {class: "run-name"}, "Together"), this.sum,
        ...this.strips.flatMap((strip, i) => [this.names[i], strip]));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.sum.addEventListener("mousemove", (event) => this.hoverSum(event));
    this.strips.forEach((strip, i) => {
      strip.addEventListener("mousemove", (event) => this.hover(event, i));
      strip.addEventListener("click", (event) => this.lookAt(i, this.timeAt(event, strip)));
    });
    for (const each of [this.sum, ...this.strips]) each.addEventListener("mouseleave", () => tip(null));
    this.zoom = d3.zoom().scaleExtent([1, 2000]).filter((event) => this.wantsZoom(event ?? d3.event)).on("zoom", (event) => {
      this.transform = (event ?? d3.event).transform;
      this.drawNow();
    });
    d3.select(this.frame).call(this.zoom).on("dblclick.zoom", null);
    return this.frame;
  }

  /** What the buttons do, for whoever has a curve in focus; elsewhere these keys are the timeline's. */
  key(event) {
    const zoom = (how, ...by) => () => d3.select(this.frame).call(how, ...by);
    const far = this.sum.clientWidth / 8 / this.transform.k;
    const actions = {"+": zoom(this.zoom.scaleBy, 2), "-": zoom(this.zoom.scaleBy, 0.5), 0: () => this.showAll(),
      ArrowLeft: zoom(this.zoom.translateBy, far, 0), ArrowRight: zoom(this.zoom.translateBy, -far, 0)};
    if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    actions[event.key]();
  }

  /** As in the timeline: the wheel scrolls the page until a curve has been clicked on. */
  wantsZoom(event) {
    return event.type === "wheel" ? event.ctrlKey || this.frame.contains(document.activeElement) : !event.button;
  }

  /** Looks at a process at a time since the beginning. */
  async lookAt(index, time) {
    const {rank} = this.processes[index];
    if (rank !== this.state.rank && !await this.state.chooseRank(rank)) return;
    this.state.chooseEvent(this.processes[index].eventAt(time));
  }

  timeAt(event, canvas) {
    const box = canvas.getBoundingClientRect();
    return this.at(event.clientX - box.left - canvas.clientLeft);
  }

  /** The stretch of time that the column under the pointer shows. */
  under(event, canvas) {
    const x = Math.floor(event.clientX - canvas.getBoundingClientRect().left - canvas.clientLeft);
    return [Math.max(0, this.at(x)), this.at(x + 1)];
  }

  hover(event, index) {
    const [time, until] = this.under(event, this.strips[index]);
    const {allocated, reserved} = this.processes[index].highestIn(time, until);
    tip(`${this.processes[index].name} after ${this.seconds(time + this.began)}\n${format.bytes(reserved)} held, ${format.bytes(allocated)} of it in tensors`, event);
  }

  hoverSum(event) {
    const [time, until] = this.under(event, this.sum);
    const sum = highestSum(this.sums, time, until);
    const each = this.processes.map((p, i) => `${p.name} ${format.bytes(sum.held[i])}`).join("\n");
    tip(`after ${this.seconds(time + this.began)}: ${format.bytes(sum.total)} together\n${each}`, event);
  }

  drawNow() {
    if (!this.complete || !this.frame.isConnected) return;
    const width = this.sum.clientWidth;
    const [left, right] = [kMargin.left, width - kMargin.right];
    const extent = [[left, 0], [right, this.frame.clientHeight]];
    this.zoom.extent(extent).translateExtent(extent);
    this.base = d3.scaleLinear([0, this.clock.whole], [left, right]);
    this.scale = this.transform.rescaleX(this.base);
    this.drawSum();
    this.strips.forEach((strip, i) => {
      this.drawStrip(strip, this.processes[i]);
      this.names[i].querySelector(".swatch").style.background = this.processes[i].colour;
    });
  }

  /** The pixel of a time since the beginning, and back. */
  x(time) {
    return this.scale(this.clock.shown(time));
  }

  at(x) {
    return this.clock.time(this.scale.invert(x));
  }

  /** Calls `draw` for each column of pixels with its stretch of time. */
  columns(width, draw) {
    for (let x = kMargin.left; x < width - kMargin.right; ++x) draw(x, this.at(x), this.at(x + 1));
  }

  /** Pauses that are shown short, as gaps in the clock. */
  drawPauses(context, bottom, width) {
    if (!this.clock.shortened) return;
    for (const {from, to} of this.clock.pauses) {
      const [a, b] = [Math.max(kMargin.left, this.x(from)), Math.min(width - kMargin.right, this.x(to))];
      if (b <= a) continue;
      context.fillStyle = colour("paper");
      context.globalAlpha = 0.75;
      context.fillRect(a, kTop, b - a, bottom - kTop);
      context.globalAlpha = 1;
      context.strokeStyle = colour("quiet");
      context.lineWidth = 1;
      context.setLineDash([2, 3]);
      line(context, a, kTop, a, bottom);
      line(context, b, kTop, b, bottom);
      context.setLineDash([]);
    }
  }

  drawSum() {
    const {context, width, height} = prepared(this.sum);
    const top = Math.max(this.most, this.room ?? 0);
    const y = d3.scaleLinear([0, 1.12 * top], [height - 6, kTop]);
    this.columns(width, (x, from, to) => {
      const {held} = highestSum(this.sums, from, to);
      held.reduce((below, bytes, i) => {
        context.fillStyle = this.processes[i].colour;
        context.fillRect(x, y(below + bytes), 1, y(below) - y(below + bytes));
        return below + bytes;
      }, 0);
    });
    this.drawPauses(context, height - 6, width);
    this.drawScale(context, y, width);
    if (this.room) this.drawRoom(context, y, width);
    this.drawHandOvers(context, height - 6, true);
  }

  drawRoom(context, y, width) {
    context.strokeStyle = context.fillStyle = colour("bad");
    context.setLineDash([6, 4]);
    line(context, kMargin.left, y(this.room), width - kMargin.right, y(this.room));
    context.setLineDash([]);
    context.textAlign = "left";
    context.textBaseline = "bottom";
    context.fillText(`${this.report.capacity === null ? "for all of them" : "the card"} ${format.bytes(this.room)}`, kMargin.left + 4, y(this.room) - 2);
  }

  drawStrip(strip, process) {
    const {context, width, height} = prepared(strip);
    const isLast = strip.classList.contains("last");
    const bottom = height - (isLast ? kBottom : 4);
    // One scale for all, so that they can be held against each other.
    const most = Math.max(...this.processes.map((p) => p.reserved.highest), 1);
    const y = d3.scaleLinear([0, 1.04 * most], [bottom, kTop]);
    this.columns(width, (x, from, to) => {
      const {allocated, reserved} = process.highestIn(from, to);
      context.fillStyle = process.colour;
      context.globalAlpha = 0.35;
      context.fillRect(x, y(reserved), 1, y(allocated) - y(reserved));
      context.globalAlpha = 1;
      context.fillRect(x, y(allocated), 1, bottom - y(allocated));
    });
    this.drawPauses(context, bottom, width);
    this.drawScale(context, y, width);
    this.drawTurns(context, process, width);
    this.drawHandOvers(context, bottom, false);
    this.drawOoms(context, process, bottom);
    this.drawInstant(context, process, bottom);
    if (isLast) this.drawClock(context, width, height);
  }

  drawScale(context, y, width) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colour("quiet");
    context.strokeStyle = colour("line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const sizes = format.roundSizes(y.domain()[1]);
    // A low strip has room for few figures.
    const every = Math.ceil(sizes.length / Math.max(2, Math.floor((y(0) - y(y.domain()[1])) / 22)));
    sizes.filter((_, i) => i % every === 0).forEach((size) => {
      const at = Math.round(y(size)) + 0.5;
      context.fillText(format.bytes(size), kMargin.left - 6, Math.min(at, y(0) - 5));
      context.globalAlpha = 0.5;
      line(context, kMargin.left, at, width - kMargin.right, at);
      context.globalAlpha = 1;
    });
  }

  inSight(x) {
    return x >= kMargin.left && x <= this.sum.clientWidth - kMargin.right;
  }

  /** When it was at work, with what it did, as it calls it. */
  drawTurns(context, process, width) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const turn of this.report.turns) {
      if (turn.process !== process.name) continue;
      const from = Math.max(kMargin.left, this.x(turn.begin_us - this.began));
      const to = Math.min(width - kMargin.right, Math.max(from + 2, this.x(turn.end_us - this.began)));
      if (to <= from) continue;
      context.fillStyle = colour("stage_other");
      context.fillRect(from, 0, to - from, kTop - 1);
      const text = turn.marks.join(", ");
      if (context.measureText(text).width > to - from - 6) continue;
      context.fillStyle = colour("ink");
      context.fillText(text, (from + to) / 2, kTop / 2);
    }
  }

  drawHandOvers(context, bottom, labelled) {
    let end = -Infinity;
    for (const hand of this.report.hand_overs) {
      const x = this.x(hand.time_us - this.began);
      if (!this.inSight(x)) continue;
      const kept = hand.not_given_back > 0;
      context.strokeStyle = context.fillStyle = colour(kept ? "bad" : "quiet");
      context.lineWidth = kept ? 1.5 : 1;
      line(context, x, 0, x, bottom);
      if (!labelled || !kept) continue;
      const text = `${format.bytes(hand.not_given_back)} not given back`;
      const wide = context.measureText(text).width;
      const isRight = x + wide + 8 < this.sum.clientWidth - kMargin.right;
      const from = isRight ? x + 4 : x - 4 - wide;
      if (from < Math.max(end + 6, kMargin.left)) continue;
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText(text, from, 0);
      end = from + wide;
    }
  }

  drawOoms(context, process, bottom) {
    context.strokeStyle = colour("bad");
    context.lineWidth = 3;
    for (const oom of this.state.ranks[process.rank].ooms) {
      if (oom.event === null) continue;
      const x = this.x(process.timeOf(oom.event));
      if (this.inSight(x)) line(context, x, kTop, x, bottom);
    }
  }

  /** Where the rest of the page looks. */
  drawInstant(context, process, bottom) {
    if (this.state.rank !== process.rank || this.state.event < 0) return;
    const x = this.x(process.timeOf(this.state.event));
    if (!this.inSight(x)) return;
    context.strokeStyle = colour("accent");
    context.lineWidth = 2;
    line(context, x, kTop, x, bottom);
  }

  drawClock(context, width, height) {
    context.fillStyle = colour("quiet");
    context.textAlign = "center";
    context.textBaseline = "top";
    const count = Math.max(2, Math.floor(width / 120));
    for (const shown of this.scale.ticks(count)) {
      const time = this.clock.time(shown);
      // Inside a gap of the clock a figure would say nothing.
      if (this.clock.shortened && this.clock.pauses.some(({from, to}) => time > from && time < to)) continue;
      context.fillText(time === 0 ? "0" : format.duration(time), this.scale(shown), height - kBottom + 6);
    }
  }

  /** A row for each that waited, as `plimsoll explain` has it. */
  handOvers() {
    const {hand_overs: all, earlier_hand_overs: earlier} = this.report;
    if (all.length === 0) return [];
    const doing = (name, what) => what ? `${name} (${what})` : name;
    const rows = all.flatMap((hand) => hand.held.filter((h) => h.process !== hand.to && (h.reserved > 0 || h.process === hand.from))
        .map((h) => this.leading(element("tr", {"data-kept": h.not_given_back}, element("td", {class: "number"}, this.seconds(hand.time_us)),
            element("td", {}, h.process), bytes(h.reserved), bytes(h.allocated, "wide"), bytes(h.not_given_back, h.not_given_back > 0 ? "bad" : ""),
            element("td", {class: "text"}, `${doing(hand.from, hand.after)} → ${doing(hand.to, hand.before)}`)), h.process, hand.time_us)));
    const more = earlier > 0 ? ` ${format.count(earlier)} earlier ones are not listed.` : "";
    return [element("h3", {}, `Hand-overs (${format.count(all.length + earlier)})`),
      element("p", {class: "hint"}, `What those that wait held when another began. Choose a row to look at it then.${more}`),
      element("div", {class: "scroll", id: `hand-overs-${this.index}`}, table([{name: "at", number: true}, {name: "waits"}, {name: "held", number: true},
        {name: "in tensors", number: true, wide: true}, {name: "not given back", number: true}, {name: "from, to"}], rows))];
  }

  turns() {
    const {turns, processes} = this.report;
    if (turns.length === 0) return [];
    const rows = turns.map((turn) => this.leading(element("tr", {}, element("td", {class: "number"}, this.seconds(turn.begin_us)),
        element("td", {}, turn.process), ...turn.held.map((h) => bytes(h.reserved, "wide")), bytes(turn.peak_reserved),
        element("td", {class: "text"}, turn.marks.join(", "))), turn.process, turn.begin_us));
    return [element("h3", {}, `Turns (${format.count(turns.length)})`),
      element("div", {class: "scroll"}, table([{name: "from", number: true}, {name: "at work"},
        ...processes.map((p) => ({name: p.name, number: true, wide: true})), {name: "together", number: true}, {name: "marks"}], rows))];
  }

  /** The turn that begins at a time and the one before it, and a little around them. */
  around(time) {
    const {turns} = this.report;
    const now = Math.max(0, turns.findIndex((turn) => turn.begin_us >= time));
    const [first, last] = [turns[Math.max(0, now - 1)].begin_us, turns[now].end_us];
    const edge = (last - first) / 20;
    return [first - edge - this.began, last + edge - this.began];
  }

  /** A row that leads to a process at a time. */
  leading(row, name, time) {
    if (!this.complete) return row;
    const index = this.processes.findIndex((p) => p.name === name);
    return pickable(row, () => {
      this.zoomTo(...this.around(time));
      this.lookAt(index, time - this.began - 1);
    }, false, `Look at ${name} then`);
  }
}

function bytes(value, kind = "") {
  return element("td", {class: `number ${kind}`.trim(), "data-bytes": value}, format.bytes(value));
}

/** What all hold together, from each change on: {time, held, total}, in order of time. */
function sumsOf(processes) {
  const changes = processes.flatMap((p, i) => Array.from(p.reserved.from, (event, j) =>
    ({time: event < 0 ? -Infinity : p.timeOf(event), process: i, bytes: p.reserved.bytes[j]}))
      .filter(({time}) => !Number.isNaN(time))).sort((a, b) => a.time - b.time);
  const held = processes.map(() => 0);
  return changes.map(({time, process, bytes: now}) => {
    held[process] = now;
    return {time, held: [...held], total: held.reduce((a, b) => a + b, 0)};
  });
}

/** The highest sum of a stretch of time: the one that it begins with, or one of those in it. */
function highestSum(sums, from, to) {
  let low = 0;
  let high = sums.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sums[middle].time <= from) low = middle;
    else high = middle;
  }
  let best = sums[low];
  for (let i = low + 1; i < sums.length && sums[i].time < to; ++i) if (sums[i].total > best.total) best = sums[i];
  return best;
}

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}
