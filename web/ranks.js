// One row a rank, the outlier marked.
import * as format from "./format.js";
import {byId, element, show, table} from "./dom.js";

export function showRanks(state) {
  if (state.ranks.length < 2) return show("ranks");
  const most = Math.max(1, ...state.ranks.map((r) => r.peak_reserved ?? r.peak_allocated ?? 0));
  const rows = state.ranks.map((rank, index) => row(state, rank, index, most));
  const scrolled = byId("ranks").querySelector(".scroll")?.scrollTop ?? 0;
  const focused = byId("ranks").contains(document.activeElement) ? document.activeElement.dataset.rank : null;
  // Those that share a card are no ranks.
  const what = state.ranks.every((rank) => rank.process) ? "process" : "rank";
  show("ranks", element("h2", {}, `${what === "rank" ? "Ranks" : "The processes by themselves"} (${state.ranks.length})`),
      element("p", {class: "hint"}, `Choose a row to look at that ${what}.`),
      element("div", {class: "scroll"}, table([{name: what}, {name: "file"}, {name: "peak allocated", number: true, wide: true},
        {name: "peak reserved", number: true}, {name: "", wide: true}, {name: ""}], rows)));
  // Choosing a row must not move the list away from under the reader.
  byId("ranks").querySelector(".scroll").scrollTop = scrolled;
  if (focused) rows[focused].focus({preventScroll: true});
}

function row(state, rank, index, most) {
  const name = rank.process ?? rank.rank ?? index;
  const died = rank.ooms.some((oom) => oom.fatal);
  const isOdd = state.isOdd(rank);
  const remarks = [died ? "ran out" : "", isOdd ? "outlier" : ""].filter(Boolean).join(", ");
  const bar = element("meter", {min: 0, max: most, value: rank.peak_reserved ?? rank.peak_allocated ?? 0});
  const choose = () => state.chooseRank(index);
  return element("tr", {
    class: `row${index === state.rank ? " chosen" : ""}`, tabindex: 0, "data-rank": index, onclick: choose,
    onkeydown: (event) => { if (event.key === "Enter") choose(); },
  },
  element("td", {class: isOdd ? "odd" : null}, String(name), rank.device === null ? "" : ` (cuda:${rank.device})`),
  element("td", {class: "mono"}, format.baseName(rank.file)),
  element("td", {class: "number wide"}, rank.peak_allocated === null ? "" : format.bytes(rank.peak_allocated)),
  element("td", {class: "number"}, rank.peak_reserved === null ? "" : format.bytes(rank.peak_reserved)),
  element("td", {class: "wide"}, bar),
  element("td", {class: "odd"}, remarks));
}
