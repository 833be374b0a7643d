// Of a job that was captured over a length too: the largest batch that fits at each, drawn as what fits for certain and
// what may, with the fastest point and the one that the page shows.
import * as format from "./format.js";
import {labels} from "./labels.js";
import {element, shape, show, table} from "./dom.js";
import {legendItem, styled, styledLine} from "./scatter.js";
import {colour} from "./theme.js";

const kHeight = 400;
const kMargin = {left: 64, right: 24, top: 16, bottom: 50};
/** Narrower than this there is no room for a sentence: it stands in the legend. */
const kWide = 640;
/** Ticks stand no closer than this. */
const kApart = {x: 52, y: 26};
/** Below a batch of 1 there is room to see that a line ends there. */
const kBelowOne = 0.7;

export function showLengths(state) {
  const prediction = state.data.prediction;
  const frontier = prediction?.frontier;
  if (!frontier || frontier.points.every((p) => p.max_batch === 0)) return show("lengths");
  const asked = prediction.length && {length: prediction.length.value, batch: prediction.batch, fits: prediction.fits};
  const {name} = frontier;
  const [shortest, longest] = d3.extent(frontier.points, (p) => p.length);
  show("lengths", element("h2", {}, `Batch and ${name}`),
      element("p", {class: "hint"}, `The largest batch that fits at each ${name}; hover over a point for its figures. ` +
          `Tried: ${shortest} to ${longest}, each twice the one before. Both axes are logarithmic.`),
      picture(frontier, asked), legend(frontier, asked), rows(frontier));
}

function chartWidth() {
  return Math.max(320, Math.min(1000, document.body.clientWidth - 40));
}

function picture(frontier, asked) {
  const {points, name} = frontier;
  const width = chartWidth();
  const edge = {left: kMargin.left, right: width - kMargin.right};
  const lengths = d3.extent([...points.map((p) => p.length), ...asked ? [asked.length] : []]);
  const largest = Math.max(...points.map((p) => p.max_batch), asked ? asked.batch : 1, 2);
  const x = d3.scaleLog([lengths[0] / 1.1, lengths[1] * 1.1], [edge.left, edge.right]);
  const y = d3.scaleLog([kBelowOne, 1.4 * largest], [kHeight - kMargin.bottom, kMargin.top]);
  const sure = outline(points, (p) => p.safe_max_batch, x, y);
  const most = outline(points, (p) => p.max_batch, x, y);
  const fastest = points.find((p) => p.fastest);
  const words = [];
  // The point that is asked about may be the fastest one.
  if (fastest) words.push({x: x(fastest.length), y: y(fastest.safe_max_batch), words: width < kWide ? "fastest" : fastestText(frontier, fastest)});
  if (asked && !isAt(asked, fastest)) words.push({x: x(asked.length), y: y(asked.batch), words: width < kWide ? "this page" : `this page: ${at(asked.batch, asked.length, name)}`});
  return shape("svg", {class: "chart", viewBox: `0 0 ${width} ${kHeight}`, role: "img", "aria-label": `The largest batch by ${name}`},
      ...axes(x, y, edge, frontier),
      styled("path", {class: "sure-area", d: areaBelow(sure.line)}, {fill: colour("good"), opacity: 0.16}),
      ...drawn(most, "may-line", 1.5, 0.5), ...drawn(sure, "sure-line", 2.5, 1),
      ...points.flatMap((p) => marks(p, frontier, x, y)),
      asked ? askedMark(asked, name, x, y) : null,
      ...labels(words, null, {...edge, width, avoided: [sure, most].flatMap(({line}) => boxesAlong(line))}));
}

/**
 * From length to length where a batch fits. `end` is from there to the first length where none does: the line ends
 * somewhere between.
 */
function outline(points, batchOf, x, y) {
  const line = points.filter((p) => batchOf(p) > 0).map((p) => [x(p.length), y(batchOf(p))]);
  const none = points.find((p) => batchOf(p) === 0);
  return {line, end: none && line.length > 0 ? [line.at(-1), [x(none.length), y(kBelowOne)]] : []};
}

/** Small boxes, so close that no words pass between them. */
function boxesAlong(line) {
  return d3.pairs(line).flatMap(([[x1, y1], [x2, y2]]) => d3.range(0, 1, 4 / Math.hypot(x2 - x1, y2 - y1)).map((t) => {
    const [x, y] = [x1 + t * (x2 - x1), y1 + t * (y2 - y1)];
    return {left: x - 2, right: x + 2, top: y - 2, bottom: y + 2};
  }));
}

function drawn({line, end}, kind, thick, opacity) {
  const path = (dots, dashes) => styled("path", {class: kind, d: d3.line()(dots) ?? "", fill: "none", "stroke-width": thick, "stroke-dasharray": dashes},
      {stroke: colour("good"), opacity});
  return [path(line, null), path(end, "3 5")];
}

function areaBelow(line) {
  return d3.area().x(([x]) => x).y0(kHeight - kMargin.bottom).y1(([, y]) => y)(line) ?? "";
}

function marks(p, frontier, x, y) {
  const dot = (batch, kind, radius, style) => {
    const circle = styled("circle", {class: kind, cx: x(p.length), cy: y(batch), r: radius, "stroke-width": 2, "data-length": p.length, "data-batch": batch}, style);
    circle.append(shape("title", {}, tipText(p, frontier)));
    return circle;
  };
  const good = colour("good");
  return [
    p.max_batch > p.safe_max_batch ? dot(p.max_batch, "may", 3, {fill: colour("paper"), stroke: good, opacity: 0.6}) : null,
    p.safe_max_batch > 0 ? dot(p.safe_max_batch, p.fastest ? "sure fastest" : "sure", p.fastest ? 7 : 4, {fill: good, stroke: good}) : null,
  ];
}

function askedMark(asked, name, x, y) {
  const ring = styled("circle", {class: "asked", cx: x(asked.length), cy: y(asked.batch), r: 9, "stroke-width": 3},
      {fill: "none", stroke: colour(asked.fits ? "ink" : "bad")});
  ring.append(shape("title", {}, `${at(asked.batch, asked.length, name)}: what this page shows${asked.fits ? "" : "\ndoes not fit"}`));
  return ring;
}

function axes(x, y, edge, {name, points}) {
  const bottom = kHeight - kMargin.bottom;
  const shown = [];
  for (const batch of spaced(doubled(1, y), y, kApart.y)) {
    shown.push(styledLine({x1: edge.left, x2: edge.right, y1: y(batch), y2: y(batch)}, "line"),
        shape("text", {x: edge.left - 8, y: y(batch) + 4, "text-anchor": "end"}, `${batch}`));
  }
  for (const length of spaced(doubled(points[0].length, x), x, kApart.x)) {
    shown.push(styledLine({x1: x(length), x2: x(length), y1: kMargin.top, y2: bottom}, "line"),
        shape("text", {x: x(length), y: bottom + 18, "text-anchor": "middle"}, `${length}`));
  }
  const title = (text, transform) => shape("text", {class: "axis-title", transform, "text-anchor": "middle"}, text);
  shown.push(title(name, `translate(${(edge.left + edge.right) / 2} ${kHeight - 8})`),
      title("batch", `translate(12 ${(kMargin.top + bottom) / 2}) rotate(-90)`));
  return shown;
}

/** A value, its halves and doubles, as far as they are whole and on the axis. */
function doubled(value, scale) {
  const [least, most] = scale.domain();
  let first = value;
  while (first % 2 === 0 && first / 2 >= least) first /= 2;
  const values = [];
  for (let v = first; v <= most; v *= 2) values.push(v);
  return values;
}

/** Every value, or every second, third, … as far as their words have room. */
function spaced(values, scale, apart) {
  if (values.length < 2) return values;
  const step = Math.ceil(apart / Math.abs(scale(values[1]) - scale(values[0])));
  return values.filter((_, i) => i % step === 0);
}

function isAt(asked, point) {
  return point !== undefined && point.length === asked.length && point.safe_max_batch === asked.batch;
}

/** "batch 107 at length 128" */
function at(batch, length, name) {
  return `batch ${batch} at ${name} ${length}`;
}

function fastestText({name, unit}, p) {
  return `fastest: ${at(p.safe_max_batch, p.length, name)}, ${format.count(p.per_second)} ${unit} a second`;
}

function tipText(p, {name, unit}) {
  if (p.safe_max_batch === 0) return `${name} ${p.length}\nno batch fits for certain; up to ${p.max_batch} may fit`;
  return `${at(p.safe_max_batch, p.length, name)} fits for certain; up to ${p.max_batch} may fit\n` +
      `${format.count(p.in_step)} ${unit} in ${format.duration(p.step_us)}, ${format.count(p.per_second)} a second`;
}

function legend(frontier, asked) {
  const {points} = frontier;
  const fastest = points.find((p) => p.fastest);
  const fading = (name, opacity) => {
    const item = legendItem(name, colour("good"));
    item.querySelector(".swatch").style.opacity = opacity;
    return item;
  };
  return element("ul", {class: "legend", id: "lengths-legend"}, fading("area: fits for certain", 0.4),
      points.some((p) => p.max_batch > p.safe_max_batch) ? fading("pale line: up to there it may fit", 0.6) : null,
      points.some((p) => p.safe_max_batch === 0) ? legendItem("dashed: ends somewhere here", colour("paper")) : null,
      fastest ? legendItem(chartWidth() < kWide ? `large: ${fastestText(frontier, fastest)}` : "large: fastest", colour("good"), "round") : null,
      asked ? legendItem("ring: what this page shows", colour(asked.fits ? "ink" : "bad"), "round") : null);
}

function rows({name, unit, squared, points}) {
  const number = (text, wide = "") => element("td", {class: `number ${wide}`.trim()}, text);
  const lines = points.map((p) => {
    const known = (text, wide) => number(p.safe_max_batch > 0 ? text : "", wide);
    const marked = [p.fastest ? "fastest" : "", p.most ? "most" : ""].filter(Boolean).join(", ");
    return element("tr", {"data-length": p.length}, number(`${p.length}`), number(p.safe_max_batch > 0 ? `${p.safe_max_batch}` : "none"),
        number(`${p.max_batch}`), known(format.count(p.in_step), "wide"), known(format.duration(p.step_us)), known(format.count(p.per_second)), element("td", {}, marked));
  });
  return element("div", {class: "scroll"}, table([{name, number: true}, {name: "batch", number: true}, {name: "may fit", number: true},
    {name: `${unit}: batch × ${name}${squared ? "²" : ""}`, number: true, wide: true}, {name: "a step", number: true}, {name: `${unit} a second`, number: true}, {name: ""}], lines));
}
