// Predictions: memory against time, a point for each way to run the job, the frontier drawn.
import * as format from "./format.js";
import {element, shape, show} from "./dom.js";
import {legendItem, scatter, styled} from "./scatter.js";
import {colour} from "./theme.js";

export function showTradeOffs(state) {
  const points = state.data.trade_offs;
  if (!points || points.length === 0) return show("trade-offs");
  const width = Math.max(320, Math.min(1000, document.body.clientWidth - 40));
  const room = state.data.prediction?.memory ?? null;
  const first = [...points].sort((a, b) => (b.chosen - a.chosen) || (b.on_frontier - a.on_frontier) || (a.high - b.high));
  const chart = scatter(first.map((p) => ({time: perSample(p), bytes: p.high, onFrontier: p.on_frontier, mark: dot(p), words: `batch ${p.batch}`})), {
    width, memory: "GPU memory, at most", role: "img", "aria-label": "Memory against time per sample",
    room: room && {bytes: room, words: `memory of the card: ${format.bytes(room)}`},
  });
  show("trade-offs", element("h2", {}, "Memory against time"),
      element("p", {class: "hint"}, "Each point is a prediction for one precision, batch size and allocator setting; hover over it for its figures."),
      chart, legend(points, room));
}

function perSample(p) {
  return p.step_us / p.batch;
}

function dot(p) {
  const text = `${format.words(p.precision)}, batch ${p.batch}${p.settings ? `, ${p.settings}` : ""}\n` +
      `${format.bytes(p.device)} (at most ${format.bytes(p.high)})\n` +
      `${format.duration(p.step_us)} per step, ${format.duration(perSample(p))} per sample${p.fits ? "" : "\ndoes not fit"}`;
  const fill = p.settings ? colour("paper") : colour(p.precision);
  const circle = styled("circle", {r: p.chosen ? 8 : 5, "data-batch": p.batch, "stroke-width": p.chosen ? 3 : 2},
      {fill, stroke: p.chosen ? colour("ink") : colour(p.precision), opacity: p.fits ? 1 : 0.3});
  circle.append(shape("title", {}, text));
  return circle;
}

function legend(points, room) {
  const precisions = [...new Set(points.map((p) => p.precision))];
  const settings = [...new Set(points.map((p) => p.settings).filter(Boolean))];
  return element("ul", {class: "legend", id: "trade-offs-legend"},
      ...precisions.map((name) => legendItem(format.words(name), colour(name), "round")),
      ...settings.map((name) => legendItem(`hollow: ${name}`, colour("paper"), "round")),
      points.some((p) => p.chosen) ? legendItem("large: what this page shows", colour("ink"), "round") : null,
      points.every((p) => p.fits) ? null : legendItem("pale: does not fit", colour("line"), "round"),
      legendItem("frontier: nothing else is both faster and smaller", colour("good")),
      room ? legendItem(`memory of the card: ${format.bytes(room)}`, colour("bad")) : null);
}
