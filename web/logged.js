// The memory that a log told: a chart for each figure, a line for each rank.
import * as format from "./format.js";
import {element, shape, show} from "./dom.js";
import {legendItem, styled, styledLine} from "./scatter.js";
import {colour} from "./theme.js";

const kHeight = 240;
const kMargin = {left: 100, right: 24, top: 16, bottom: 42};
const kMostCharts = 8;
/** More lines are drawn, but not named. */
const kMostNamed = 16;

export function showLogged(state) {
  const log = state.data.explanation.log;
  const kinds = log ? kindsOf(log) : [];
  if (kinds.length === 0) return show("logged");
  const width = Math.max(320, Math.min(1000, document.body.clientWidth - 40));
  show("logged", element("h2", {}, "Memory in the log"),
      element("p", {class: "hint"}, "As the job printed it, a line for each rank; hover over a point for its figure and the line of the log.",
          kinds.length > kMostCharts ? ` The first ${kMostCharts} of ${kinds.length} figures are drawn.` : ""),
      ...kinds.slice(0, kMostCharts).flatMap((kind) => drawn(kind, log, width)),
      ...log.notes.map((note) => element("p", {class: "hint"}, note)));
}

/** Series that only the rank, the card or the process tells apart; what grows comes first, then what is highest. */
function kindsOf(log) {
  const kinds = new Map();
  log.series.forEach((series, index) => {
    if (series.inferred || series.counts === "device_total" || series.points.length < 2) return;
    const key = JSON.stringify([series.program, series.field, series.phase, series.counts, series.of]);
    if (!kinds.has(key)) kinds.set(key, {series: [], first: false});
    const kind = kinds.get(key);
    kind.series.push(series);
    kind.first ||= log.growth.some((growth) => growth.series === index) || log.highest === index;
  });
  return [...kinds.values()].sort((a, b) => b.first - a.first);
}

const kCounts = new Set(["retries", "ooms", "kv_tokens", "batch", "length", "throughput"]);

function valueText(series, value) {
  if (series.counts === "device_share") return `${(value / 100).toFixed(2)} %`;
  return kCounts.has(series.counts) ? format.count(value) : format.bytes(value);
}

function nameOf(series) {
  return [series.rank === null ? "" : `rank ${series.rank}`, series.device === null ? "" : `GPU ${series.device}`, series.process].filter(Boolean).join(", ") || "the job";
}

function lineColour(index, name) {
  return index < 4 ? colour(`process_${index}`) : colour(name);
}

function drawn(kind, log, width) {
  const of = kind.series[0];
  const bytes = !kCounts.has(of.counts) && of.counts !== "device_share";
  // Without steps a figure has its place among the others.
  const stepped = kind.series.every((series) => series.points.every((point) => point[0] !== null));
  const at = (point, i) => (stepped ? point[0] : i + 1);
  const lines = kind.series.map((series) => series.points.map((point, i) => ({x: at(point, i), y: point[1], line: point[2]})));
  const all = lines.flat();
  const most = Math.max(1, d3.max(all, (p) => p.y));
  const card = bytes && log.capacity && log.capacity < 2 * most && of.counts !== "host" ? log.capacity : null;
  const x = d3.scaleLinear(d3.extent(all, (p) => p.x), [kMargin.left, width - kMargin.right]);
  const y = d3.scaleLinear([Math.min(0, d3.min(all, (p) => p.y)), 1.05 * Math.max(most, card ?? 0)], [kHeight - kMargin.bottom, kMargin.top]);
  const path = d3.line().x((p) => x(p.x)).y((p) => y(p.y));
  const marks = lines.map((points, i) => {
    const stroke = lineColour(i, nameOf(kind.series[i]));
    return [styled("path", {class: "logged-line", "data-rank": kind.series[i].rank ?? "", d: path(points), fill: "none", "stroke-width": 1.5}, {stroke}),
      ...points.length > 400 ? [] : points.map((p) => {
        const dot = styled("circle", {cx: x(p.x), cy: y(p.y), r: 2.5}, {fill: stroke});
        dot.append(shape("title", {}, `${nameOf(kind.series[i])}\n${stepped ? `step ${p.x}` : `figure ${p.x}`}: ${valueText(of, p.y)}\nline ${format.count(p.line)} of the log`));
        return dot;
      })];
  });
  const title = `${of.field} of ${of.program}${of.phase ? `, “${of.phase}”` : ""}`;
  return [element("h3", {}, title),
    shape("svg", {class: "chart", viewBox: `0 0 ${width} ${kHeight}`, role: "img", "aria-label": `${title} over ${stepped ? "steps" : "the log"}`},
        ...axes(x, y, width, of, stepped, bytes),
        card === null ? null : styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(card), y2: y(card)}, "bad"),
        ...marks.flat()),
    element("ul", {class: "legend"},
        ...kind.series.slice(0, kMostNamed).map((series, i) => legendItem(nameOf(series), lineColour(i, nameOf(series)))),
        kind.series.length > kMostNamed ? element("li", {}, `${kind.series.length - kMostNamed} more`) : null,
        card === null ? null : legendItem(`memory of the card: ${format.bytes(card)}`, colour("bad")))];
}

function axes(x, y, width, of, stepped, bytes) {
  const values = bytes ? format.roundSizes(y.domain()[1]) : y.ticks(4);
  const marks = values.flatMap((value) => [
    styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(value), y2: y(value)}, "line"),
    shape("text", {x: kMargin.left - 8, y: y(value) + 4, "text-anchor": "end"}, valueText(of, value))]);
  for (const value of x.ticks(Math.floor(width / 120)).filter(Number.isInteger)) {
    marks.push(shape("text", {x: x(value), y: kHeight - kMargin.bottom + 18, "text-anchor": "middle"}, format.count(value)));
  }
  marks.push(shape("text", {class: "axis-title", transform: `translate(${(kMargin.left + width - kMargin.right) / 2} ${kHeight - 6})`, "text-anchor": "middle"},
      stepped ? "step" : "figure of the log"));
  return marks;
}
