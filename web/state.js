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
    this.listeners = {rank: [], event: [], theme: []};
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
    // A file can have several of one device: processes of an nsys export, paths that differ in what is no UTF-8.
    const isSame = (r) => r.file === this.report.file && r.device === this.report.device;
    return this.data.runs.filter(isSame)[this.ranks.slice(0, this.rank).filter(isSame).length] ?? null;
  }

  /** The instant that explains the run: where it ran out, else its peak. */
  get ownInstant() {
    return this.report.instant.event ?? this.history?.peak.event ?? -1;
  }

  async chooseRank(index) {
    const wanted = this.rank = Math.max(0, Math.min(Math.trunc(index), this.ranks.length - 1));
    const id = this.run?.history;
    if (id && !this.unpacked.has(id)) this.unpacked.set(id, await History.unpack(byId(id).textContent));
    // Another may have been chosen meanwhile.
    if (this.rank !== wanted) return;
    this.history = id ? this.unpacked.get(id) : null;
    this.event = this.ownInstant;
    this.tell("rank");
    this.chooseEvent(this.event);
  }

  chooseEvent(event) {
    if (!this.history) return;
    this.event = Math.max(-1, Math.min(Math.round(event), this.history.events - 1));
    this.tell("event");
  }
}
