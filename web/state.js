// What the reader looks at: one rank, one instant of it, perhaps a selection of blocks; and the same
// of the run that it is compared with. Views ask to be told when it changes.
import {History} from "./history.js";
import {byId} from "./dom.js";
import {matcher} from "./groups.js";
import {plansOf} from "./plans.js";

/** One of the two jobs on the page, of which one rank is looked at. */
class Side {
  constructor(title, explanation, runs) {
    this.title = title;
    this.explanation = explanation;
    this.ranks = explanation.ranks;
    this.runs = runs;
    this.rank = explanation.shown ?? 0;
    this.history = null;
    this.event = -1;
    this.unpacked = new Map();
  }

  get report() {
    return this.ranks[this.rank];
  }

  /** What the page holds of the chosen rank beyond its account; nothing where it was left out. */
  get run() {
    return this.runOf(this.rank);
  }

  runOf(rank) {
    const report = this.ranks[rank];
    if (!report) return null;
    // A file can have several of one device: processes of an nsys export, paths that differ in what is no UTF-8.
    const isSame = (r) => r.file === report.file && r.device === report.device;
    return this.runs.filter(isSame)[this.ranks.slice(0, rank).filter(isSame).length] ?? null;
  }

  /** The instant that explains the run: where it ran out, else its peak. */
  get ownInstant() {
    return this.report?.instant.event ?? this.history?.peak.event ?? -1;
  }

  async unpack(rank) {
    const id = this.runOf(rank)?.history;
    if (id && !this.unpacked.has(id)) this.unpacked.set(id, await History.unpack(byId(id).textContent));
  }

  look(rank) {
    this.rank = rank;
    this.history = this.unpacked.get(this.run?.history) ?? null;
    this.event = this.ownInstant;
  }

  choose(event) {
    this.event = Math.max(-1, Math.min(Math.round(event), this.history.events - 1));
  }
}

export class State {
  constructor(data) {
    this.data = data;
    this.own = new Side(data.title, data.explanation, data.runs);
    this.own.rank = this.firstRank;
    this.base = data.baseline ? new Side(data.baseline.title, data.baseline.explanation, data.baseline.runs) : null;
    /** Only these blocks: {by, name}, by category, place, module or size; a place may name its category too. */
    this.selection = null;
    /** Of a plan: everything that is drawn, and the one that is looked at. */
    this.plans = data.plan ? plansOf(data.plan) : [];
    this.plan = 0;
    this.listeners = {rank: [], event: [], selection: [], jump: [], plan: [], theme: [], print: []};
  }

  when(what, listener) {
    this.listeners[what].push(listener);
  }

  tell(what) {
    for (const listener of this.listeners[what]) listener();
  }

  get ranks() { return this.own.ranks; }
  get rank() { return this.own.rank; }
  get report() { return this.own.report; }
  get run() { return this.own.run; }
  get history() { return this.own.history; }
  get event() { return this.own.event; }

  /** The run, and the one that it is compared with. */
  get sides() {
    return this.base?.history ? [this.own, this.base] : [this.own];
  }

  /** The rank to begin with: one that ran out of memory, else an outlier, else the first. */
  get firstRank() {
    const died = this.ranks.findIndex((rank) => rank.ooms.some((oom) => oom.fatal));
    const odd = this.ranks.findIndex((rank) => this.isOdd(rank));
    return Math.max(0, died >= 0 ? died : odd);
  }

  isOdd(rank) {
    return rank.rank !== null && this.data.explanation.findings.some((f) => f.id === "rank_imbalance" && f.rank === rank.rank);
  }

  /** False if another was chosen while this one was being unpacked. */
  async chooseRank(index) {
    const wanted = this.wanted = Math.max(0, Math.min(Math.trunc(index), this.ranks.length - 1));
    const partner = this.data.baseline?.pairs[wanted]?.rank ?? 0;
    await this.own.unpack(wanted);
    await this.base?.unpack(partner);
    if (this.wanted !== wanted) return false;
    this.own.look(wanted);
    this.base?.look(partner);
    this.selection = null;
    this.tell("rank");
    this.chooseEvent(this.event);
    return true;
  }

  chooseEvent(event, side = this.own) {
    if (!side.history) return;
    side.choose(event);
    this.tell("event");
  }

  choosePlan(index) {
    this.plan = Math.max(0, Math.min(Math.trunc(index), this.plans.length - 1));
    this.tell("plan");
  }

  /** Chooses an instant and asks the timeline to show it. */
  async jumpTo(rank, event) {
    if (rank !== this.rank && !await this.chooseRank(rank)) return;
    this.chooseEvent(event ?? this.own.ownInstant);
    this.tell("jump");
  }

  /** The same selection again clears it. What matches no block is no selection. */
  select(selection) {
    const known = selection && this.sides.some(({history}) => {
      const matches = history && matcher(history, selection);
      return matches && history.place.some((_, block) => matches(block));
    });
    this.selection = known && !this.isSelected(selection) ? selection : null;
    this.tell("selection");
  }

  isSelected(selection) {
    return this.selection !== null && ["by", "name", "category"].every((key) => this.selection[key] === selection[key]);
  }

  /** Whether a block of a run is among those selected. */
  selects(history) {
    if (!this.selection) return () => true;
    return matcher(history, this.selection) ?? (() => false);
  }
}
