// The same job under other settings of the allocator, replayed.
import * as format from "./format.js";
import {copyButton} from "./copy.js";
import {element, show, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

export function showWhatIf(state) {
  const what = state.run?.what_if;
  if (!what) return show("what-if");
  const [first, ...replayed] = what.results;
  const recorded = {...first, settings: `recorded: ${what.recorded.settings || "defaults"}`, peak_reserved: what.recorded.peak_reserved};
  const rows = [recorded, ...replayed.filter((row) => row.fault === null)];
  const most = 1.02 * Math.max(...rows.map((row) => row.peak_reserved), what.lower_bound, what.limit ?? 0);
  // Where the recorded run ran out, whatever fits is better.
  const better = (row) => row.fits && (!first.fits || row.peak_reserved < what.recorded.peak_reserved);
  const fill = (row) => row === recorded ? "unattributed" : !row.fits ? "fragmented" : better(row) ? "activations" : "temporaries";
  // A record that ends before its first step is over does not show what the rest of the step needs.
  const past = !first.fits && !((state.report.complete_steps ?? state.report.steps) > 0) ? "gets past this request" : "it fits";
  const limited = what.limit !== null || what.capacity !== null;
  show("what-if", element("h2", {}, "What if: peak reserved memory under other allocator settings"),
      element("p", {class: "hint"}, "The settings that are advised most often, each replayed event by event through a model of PyTorch's allocator. ",
          element("code", {}, "plimsoll tune"), " tries many more."),
      table([{name: "PYTORCH_CUDA_ALLOC_CONF"}, {name: "", wide: true}, {name: "reserved", number: true},
        {name: limited ? "result" : ""}, {name: "", wide: true}],
          rows.map((row) => line(row, colour(fill(row)), most, what, [row.fits ? (limited ? past : "") : "runs out", row === recorded]))),
      element("p", {class: "hint", id: "bound", "data-bytes": what.lower_bound},
          swatch(`lower bound: ${format.bytes(what.lower_bound)} were alive at once; no allocator can hold less`, colour("good"))),
      what.limit === null ? null : element("p", {class: "hint"}, swatch(`limit: ${format.bytes(what.limit)}`, colour("bad"))),
      ...what.caveats.map((text) => element("p", {class: "hint"}, text)));
}

/** The bar, with the lower bound and the limit as marks across it. */
function line(row, fill, most, what, [result, isRecorded]) {
  const bar = element("div", {class: "track"}, part("fill", row.peak_reserved / most, fill),
      part("mark", what.lower_bound / most, colour("good")),
      what.limit === null ? null : part("mark", what.limit / most, colour("bad")));
  return element("tr", {"data-settings": row.settings, "data-bytes": row.peak_reserved},
      element("td", {class: "mono"}, row.settings || "defaults"),
      element("td", {class: "bars wide"}, bar),
      element("td", {class: "number"}, format.bytes(row.peak_reserved)),
      element("td", {class: row.fits ? "good" : "bad"}, result),
      element("td", {class: "number wide"}, isRecorded || !row.settings ? null : copyButton(`PYTORCH_CUDA_ALLOC_CONF=${row.settings}`)));
}

function part(kind, share, fill) {
  const box = element("div", {class: kind});
  box.style[kind === "fill" ? "width" : "left"] = `${100 * share}%`;
  box.style.background = fill;
  return box;
}
