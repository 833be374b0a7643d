// What the reader looks at: one rank, one instant. Views ask to be told when it changes.
import {History} from "./history.js";
import {byId} from "./dom.js";

export class State {
  constructor(data) {
    this.data = data;
    this.ranks = data.explanation.ranks;
    this.rank = this.firstRank;
    this.history = null;
    this.event = -1;
    this.listeners = {rank: [], event: [], theme: [], print: []};
    this.unpacked = new Map();
  }

  when(what, listener) {
    this.listeners[what].push(listener);
  }

  tell(what) {
    for (const listener of this.listeners[what]) listener();
  }

  get report() {
    return this.ranks[this.rank];
  }

  /** The rank to begin with: one that ran out of memory, else the odd one, else the first. */
  get firstRank() {
    const died = this.ranks.findIndex((rank) => rank.ooms.some((oom) => oom.fatal));
    const odd = this.ranks.findIndex((rank) => this.isOdd(rank));
    return Math.max(0, died >= 0 ? died : odd);
  }

  isOdd(rank) {
    return rank.rank !== null && this.data.explanation.findings.some((f) => f.id === "rank_imbalance" && f.rank === rank.rank);
  }

  /** What the page holds of the chosen rank beyond its account; nothing where it was left out. */
  get run() {
    return this.runOf(this.rank);
  }

  runOf(rank) {
    const report = this.ranks[rank];
    // A file can have several of one device: processes of an nsys export, paths that differ in what is no UTF-8.
    const isSame = (r) => r.file === report.file && r.device === report.device;
    return this.data.runs.filter(isSame)[this.ranks.slice(0, rank).filter(isSame).length] ?? null;
  }

  /** The instant that explains the run: where it ran out, else its peak. */
  get ownInstant() {
    return this.report.instant.event ?? this.history?.peak.event ?? -1;
  }

  /** False if another was chosen while this one was being unpacked. */
  async chooseRank(index) {
    const wanted = this.wanted = Math.max(0, Math.min(Math.trunc(index), this.ranks.length - 1));
    const id = this.runOf(wanted)?.history;
    if (id && !this.unpacked.has(id)) this.unpacked.set(id, await History.unpack(byId(id).textContent));
    if (this.wanted !== wanted) return false;
    this.rank = wanted;
    this.history = id ? this.unpacked.get(id) : null;
    this.event = this.ownInstant;
    this.tell("rank");
    this.chooseEvent(this.event);
    return true;
  }

  chooseEvent(event) {
    if (!this.history) return;
    this.event = Math.max(-1, Math.min(Math.round(event), this.history.events - 1));
    this.tell("event");
  }
}
