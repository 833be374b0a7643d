// Predictions: memory against time, a point for each way to run the job, the frontier drawn.
import * as format from "./format.js";
import {element, shape, show, swatch} from "./dom.js";
import {colour} from "./theme.js";

const kHeight = 440;
const kMargin = {left: 100, right: 80, top: 16, bottom: 50};
/** Labels closer than this would overlap. */
const kLabelRoom = {x: 60, y: 14};

export function showTradeOffs(state) {
  const points = state.data.trade_offs;
  if (!points || points.length === 0) return show("trade-offs");
  // Drawn as wide as it is shown, so that the letters keep their size.
  const width = Math.max(320, Math.min(1000, document.body.clientWidth - 40));
  const room = state.data.prediction?.memory ?? null;
  const slowest = 1.05 * Math.max(d3.max(points, perSample), 1);
  const x = d3.scaleLinear([0.95 * d3.min(points, perSample), slowest], [kMargin.left, width - kMargin.right]);
  const y = d3.scaleLinear([0, 1.05 * Math.max(d3.max(points, (p) => p.high), 1)], [kHeight - kMargin.bottom, kMargin.top]);
  const frontier = points.filter((p) => p.on_frontier).sort((a, b) => perSample(a) - perSample(b));
  const path = d3.line().x((p) => x(perSample(p))).y((p) => y(p.high));
  const chart = shape("svg", {class: "chart", viewBox: `0 0 ${width} ${kHeight}`, role: "img", "aria-label": "Memory against time per sample"},
      ...axes(x, y, width),
      ...(room && room < y.domain()[1] ? cardLine(room, y, width) : []),
      styled("path", {d: path(frontier) ?? "", fill: "none", "stroke-width": 2}, {stroke: colour("good")}),
      ...[...points].sort((a, b) => a.chosen - b.chosen).map((p) => dot(p, x(perSample(p)), y(p.high))),
      ...labels(points, x, y));
  show("trade-offs", element("h2", {}, "Memory against time"),
      element("p", {class: "hint"}, "Each point is a prediction for one precision, batch size and allocator setting; hover over it for its figures."),
      chart, legend(points, room));
}

function perSample(p) {
  return p.step_us / p.batch;
}

function dot(p, x, y) {
  const text = `${format.words(p.precision)}, batch ${p.batch}${p.settings ? `, ${p.settings}` : ""}\n` +
      `${format.bytes(p.device)} (at most ${format.bytes(p.high)})\n` +
      `${format.duration(p.step_us)} per step, ${format.duration(perSample(p))} per sample${p.fits ? "" : "\ndoes not fit"}`;
  const fill = p.settings ? colour("paper") : colour(p.precision);
  const circle = styled("circle", {cx: x, cy: y, r: p.chosen ? 8 : 5, "data-batch": p.batch, "stroke-width": p.chosen ? 3 : 2},
      {fill, stroke: p.chosen ? colour("ink") : colour(p.precision), opacity: p.fits ? 1 : 0.3});
  circle.append(shape("title", {}, text));
  return circle;
}

/** The batch size of each point that has room for it, those on the frontier first. */
function labels(points, x, y) {
  const placed = [];
  const first = [...points].sort((a, b) => (b.chosen - a.chosen) || (b.on_frontier - a.on_frontier) || (a.high - b.high));
  for (const p of first) {
    const at = {x: x(perSample(p)) + 9, y: y(p.high) - 9, batch: p.batch};
    const taken = placed.some((other) => Math.abs(other.x - at.x) < kLabelRoom.x && Math.abs(other.y - at.y) < kLabelRoom.y);
    if (!taken) placed.push(at);
  }
  return placed.map((at) => shape("text", {x: at.x, y: at.y, class: "point-label"}, `batch ${at.batch}`));
}

function legend(points, room) {
  const item = (name, fill, kind = "") => {
    const mark = swatch(name, fill);
    mark.firstChild.className = `swatch ${kind}`;
    return element("li", {}, mark);
  };
  const precisions = [...new Set(points.map((p) => p.precision))];
  const settings = [...new Set(points.map((p) => p.settings).filter(Boolean))];
  return element("ul", {class: "legend", id: "trade-offs-legend"},
      ...precisions.map((name) => item(format.words(name), colour(name), "round")),
      ...settings.map((name) => item(`hollow: ${name}`, colour("paper"), "round")),
      points.some((p) => p.chosen) ? item("large: what this page shows", colour("ink"), "round") : null,
      points.every((p) => p.fits) ? null : item("pale: does not fit", colour("line"), "round"),
      item("frontier: nothing else is both faster and smaller", colour("good")),
      room ? item(`memory of the card: ${format.bytes(room)}`, colour("bad")) : null);
}

function cardLine(room, y, width) {
  const text = shape("text", {x: width - kMargin.right, y: y(room) - 5, "text-anchor": "end"}, `memory of the card: ${format.bytes(room)}`);
  text.style.fill = colour("bad");
  return [styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(room), y2: y(room)}, "bad"), text];
}

function axes(x, y, width) {
  const marks = [];
  for (const value of format.roundSizes(y.domain()[1])) {
    marks.push(styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(value), y2: y(value)}, "line"),
        shape("text", {x: kMargin.left - 8, y: y(value) + 4, "text-anchor": "end"}, format.bytes(value)));
  }
  for (const value of x.ticks(Math.floor(width / 120))) {
    marks.push(shape("text", {x: x(value), y: kHeight - kMargin.bottom + 18, "text-anchor": "middle"}, format.duration(value)));
  }
  const middle = (kMargin.top + kHeight - kMargin.bottom) / 2;
  const title = (text, transform) => shape("text", {class: "axis-title", transform, "text-anchor": "middle"}, text);
  marks.push(title("time per sample", `translate(${(kMargin.left + width - kMargin.right) / 2} ${kHeight - 8})`),
      title("GPU memory, at most", `translate(14 ${middle}) rotate(-90)`));
  return marks;
}

function styledLine(attributes, name) {
  return styled("line", attributes, {stroke: colour(name)});
}

function styled(tag, attributes, style) {
  const node = shape(tag, attributes);
  Object.assign(node.style, style);
  return node;
}
