// The same job under other settings of the allocator, replayed; beside the recorded one.
import * as format from "./format.js";
import {element, shape, show} from "./dom.js";
import {colour} from "./theme.js";

const kMostRows = 14;
const kRow = 26;
const kLabel = 380;
const kWidth = 1000;

export function showWhatIf(state) {
  const what = state.run?.what_if;
  if (!what) return show("what-if");
  const recorded = {settings: `recorded: ${what.recorded.settings || "defaults"}`, peak_reserved: what.recorded.peak_reserved, fits: what.results[0].fits, isRecorded: true};
  const others = what.results.filter((r, i) => i > 0 && r.fault === null);
  const rows = [recorded, ...others.slice(0, kMostRows)];
  const most = Math.max(...rows.map((r) => r.peak_reserved), what.lower_bound, what.limit ?? 0);
  const x = d3.scaleLinear([0, most], [kLabel, kWidth - 150]);
  const height = rows.length * kRow + 30;
  const chart = shape("svg", {class: "chart", viewBox: `0 0 ${kWidth} ${height}`, role: "img", "aria-label": "Peak of reserved memory by setting"},
      ...rows.map((row, i) => bar(row, i, x, what)),
      ...verticalLine(x(what.lower_bound), height, "good", `no allocator can do with less: ${format.bytes(what.lower_bound)}`),
      ...(what.limit === null ? [] : verticalLine(x(what.limit), height, "bad", `limit ${format.bytes(what.limit)}`)));
  const left = others.length - (rows.length - 1);
  show("what-if", element("h2", {}, "What if: the peak of reserved memory under other allocator settings"),
      element("p", {class: "hint"}, "Each was replayed event by event through the allocator model.",
          left > 0 ? ` ${left} that do worse are not shown; plimsoll tune lists them.` : ""),
      chart, element("p", {class: "hint good"}, `Lower bound: ${format.bytes(what.lower_bound)}, the most bytes alive at once.`),
      ...what.caveats.map((text) => element("p", {class: "hint"}, text)));
}

function bar(row, index, x, what) {
  const y = index * kRow + 4;
  // Where the recorded run ran out, whatever fits is better.
  const better = row.fits && (!what.results[0].fits || row.peak_reserved < what.recorded.peak_reserved);
  const rect = shape("rect", {x: kLabel, y, width: Math.max(1, x(row.peak_reserved) - kLabel), height: kRow - 8});
  rect.style.fill = row.isRecorded ? colour("unattributed") : !row.fits ? colour("fragmented") : colour(better ? "activations" : "temporaries");
  const text = shape("text", {x: kLabel - 8, y: y + 13, "text-anchor": "end"}, short(row.settings || "defaults"));
  const end = shape("text", {x: kWidth - 4, y: y + 13, "text-anchor": "end"}, `${format.bytes(row.peak_reserved)}${row.fits ? "" : ", runs out"}`);
  return shape("g", {"data-settings": row.settings, "data-bytes": row.peak_reserved}, shape("title", {}, row.settings), rect, text, end);
}

function verticalLine(x, height, name, title) {
  const line = shape("line", {x1: x, x2: x, y1: 0, y2: height - 24, "stroke-dasharray": "5 4", "stroke-width": 1.5}, shape("title", {}, title));
  line.style.stroke = colour(name);
  const isBound = name === "good";
  const text = shape("text", {x: isBound ? x - 3 : x + 3, y: height - 8, "text-anchor": isBound ? "end" : "start"}, isBound ? "lower bound" : "limit");
  text.style.fill = colour(name);
  return [line, text];
}

function short(text) {
  return text.length > 56 ? `${text.slice(0, 55)}…` : text;
}
