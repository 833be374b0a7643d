// Two runs: what their settings and peaks differ in. Timelines, accounts and lines of code are compared where each
// is shown.
import * as format from "./format.js";
import {element, show, table} from "./dom.js";

export function showComparison(state) {
  const {base, own} = state;
  if (!base) return show("compare");
  const rows = [...settings(own, base), ...peaks(own, base)].filter(([, is, was]) => is !== null || was !== null);
  const changed = rows.filter(([, is, was, isSetting]) => isSetting && is !== was);
  show("compare", element("h2", {}, "Compared with ", element("span", {class: "mono"}, base.title)),
      element("p", {id: "difference"}, state.data.baseline.pairs[state.rank]?.verdict ?? ""),
      element("p", {id: "changed-settings"}, changed.length === 0 ? "No setting that the records hold differs." :
          `Different settings: ${changed.map(([name]) => name).join(", ")}.`),
      table([{name: ""}, {name: "this run"}, {name: "baseline"}, {name: "change", number: true}], rows.map(row)),
      own.history && base.history ? null : element("p", {class: "hint"}, "One of the two has no timeline on this page."));
}

/** [name, value of this run, of the baseline, whether it is a setting] */
function settings(own, base) {
  const both = (name, of) => [name, of(own), of(base), true];
  return [
    both("PyTorch", (side) => side.report.torch),
    both("allocator settings", (side) => side.run ? side.run.settings || "defaults" : null),
    both("memory of the card", (side) => side.report.capacity ?? side.run?.what_if?.capacity ?? null),
    both("limit", (side) => side.report.limit ?? side.run?.what_if?.limit ?? null),
  ];
}

function peaks(own, base) {
  const both = (name, of) => [name, of(own.report), of(base.report), false];
  return [
    both("peak allocated", (r) => r.peak_allocated),
    both("peak reserved", (r) => r.peak_reserved),
    both("steps", (r) => r.steps === null ? null : format.count(r.steps)),
    both("events", (r) => format.count(r.events)),
    both("ran out of memory", (r) => r.ooms.some((oom) => oom.fatal) ? "yes" : "no"),
  ];
}

function row([name, is, was]) {
  const text = (value) => value === null ? "not recorded" : typeof value === "number" ? format.bytes(value) : value;
  const isSize = typeof is === "number" && typeof was === "number";
  const by = isSize ? is - was : 0;
  const change = isSize ? format.change(by) : is === was ? "same" : "differs";
  return element("tr", {"data-row": name}, element("td", {}, name),
      element("td", {class: "mono"}, text(is)), element("td", {class: "mono"}, text(was)),
      element("td", {class: `number ${by > 0 ? "bad" : by < 0 ? "good" : is === was ? "hint" : ""}`}, change));
}
