// Predictions: memory against time, a point for each way to run the job, the frontier drawn.
import * as format from "./format.js";
import {element, shape, show} from "./dom.js";
import {colour} from "./theme.js";

const kHeight = 420;
const kMargin = {left: 90, right: 30, top: 16, bottom: 44};

export function showTradeOffs(state) {
  const points = state.data.trade_offs;
  if (!points || points.length === 0) return show("trade-offs");
  const perSample = (p) => p.step_us / p.batch;
  // Drawn as wide as it is shown, so that the letters keep their size.
  const width = Math.max(320, Math.min(1000, document.body.clientWidth - 40));
  const room = state.data.prediction?.memory ?? null;
  const x = d3.scaleLinear([0.95 * d3.min(points, perSample), 1.05 * Math.max(d3.max(points, perSample), 1)], [kMargin.left, width - kMargin.right]);
  const y = d3.scaleLinear([0, 1.05 * Math.max(d3.max(points, (p) => p.high), 1)], [kHeight - kMargin.bottom, kMargin.top]);
  const frontier = points.filter((p) => p.on_frontier).sort((a, b) => perSample(a) - perSample(b));
  const chart = shape("svg", {class: "chart", viewBox: `0 0 ${width} ${kHeight}`, role: "img", "aria-label": "Memory against time for a sample"},
      ...axes(x, y, width),
      ...(room && room < y.domain()[1] ? [styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(room), y2: y(room)}, "bad")] : []),
      styled("path", {d: d3.line().x((p) => x(perSample(p))).y((p) => y(p.high))(frontier) ?? "", fill: "none", "stroke-width": 2}, {stroke: colour("good")}),
      ...points.map((p) => dot(p, x(perSample(p)), y)));
  show("trade-offs", element("h2", {}, "Memory against time"),
      element("p", {class: "hint"}, "Each point is a prediction: precision, batch size, allocator setting. The line joins those that nothing beats; a ring marks the chosen one; pale ones do not fit."),
      chart);
}

function dot(p, x, y) {
  const text = `${p.precision}, batch ${p.batch}${p.settings ? `, ${p.settings}` : ""}\n${format.bytes(p.device)} (at most ${format.bytes(p.high)})\n` +
      `${format.duration(p.step_us)} a step, ${format.duration(p.step_us / p.batch)} a sample${p.fits ? "" : "\ndoes not fit"}`;
  const circle = styled("circle", {cx: x, cy: y(p.high), r: p.chosen ? 8 : 5, "data-batch": p.batch, "stroke-width": p.chosen ? 3 : 0},
      {fill: colour(p.precision), stroke: colour("ink"), opacity: p.fits ? 1 : 0.25});
  circle.append(shape("title", {}, text));
  return circle;
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
  marks.push(shape("text", {x: width / 2, y: kHeight - 6, "text-anchor": "middle"}, "time for a sample"));
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
