// The same job under other settings of the allocator, replayed; beside the recorded one.
import * as format from "./format.js";
import {element, show, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

const kMostRows = 14;

export function showWhatIf(state) {
  const what = state.run?.what_if;
  if (!what) return show("what-if");
  const [first, ...replayed] = what.results;
  const recorded = {...first, settings: `recorded: ${what.recorded.settings || "defaults"}`, peak_reserved: what.recorded.peak_reserved};
  const others = replayed.filter((row) => row.fault === null);
  const rows = [recorded, ...others.slice(0, kMostRows)];
  const most = 1.02 * Math.max(...rows.map((row) => row.peak_reserved), what.lower_bound, what.limit ?? 0);
  // Where the recorded run ran out, whatever fits is better.
  const better = (row) => row.fits && (!first.fits || row.peak_reserved < what.recorded.peak_reserved);
  const fill = (row) => row === recorded ? "unattributed" : !row.fits ? "fragmented" : better(row) ? "activations" : "temporaries";
  const left = others.length - (rows.length - 1);
  show("what-if", element("h2", {}, "What if: the peak of reserved memory under other allocator settings"),
      element("p", {class: "hint"}, "Each was replayed event by event through the allocator model.",
          left > 0 ? ` ${left} that do worse are not shown; plimsoll tune lists them.` : ""),
      table([{name: "settings"}, {name: ""}, {name: "reserved", number: true}], rows.map((row) => line(row, colour(fill(row)), most, what))),
      element("p", {class: "hint", id: "bound", "data-bytes": what.lower_bound},
          swatch(`lower bound: ${format.bytes(what.lower_bound)} were alive at once, and no allocator can do with less`, colour("good"))),
      what.limit === null ? null : element("p", {class: "hint"}, swatch(`limit: ${format.bytes(what.limit)}`, colour("bad"))),
      ...what.caveats.map((text) => element("p", {class: "hint"}, text)));
}

/** The bar, with the lower bound and the limit as marks across it. */
function line(row, fill, most, what) {
  const bar = element("div", {class: "track"}, part("fill", row.peak_reserved / most, fill),
      part("mark", what.lower_bound / most, colour("good")),
      what.limit === null ? null : part("mark", what.limit / most, colour("bad")));
  return element("tr", {"data-settings": row.settings, "data-bytes": row.peak_reserved},
      element("td", {class: "mono"}, row.settings || "defaults"),
      element("td", {class: "bars"}, bar),
      element("td", {class: "number"}, format.bytes(row.peak_reserved), row.fits ? "" : element("span", {class: "bad"}, " runs out")));
}

function part(kind, share, fill) {
  const box = element("div", {class: kind});
  box.style[kind === "fill" ? "width" : "left"] = `${100 * share}%`;
  box.style.background = fill;
  return box;
}
