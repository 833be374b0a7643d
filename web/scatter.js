// Memory against time: axes, the card's memory, the frontier, a mark for each point and words beside it.
import * as format from "./format.js";
import {element, shape, swatch} from "./dom.js";
import {labels} from "./labels.js";
import {colour} from "./theme.js";

const kHeight = 440;
const kMargin = {left: 100, right: 40, top: 16, bottom: 50};
/** A card that is larger by more than this would press the points together: its line is left out. */
const kMostAbove = 1.5;
/** So many times what lies below it, a point or two would press the rest together: the axis bends above the rest. */
const kFarAbove = 2;
const kMostFarAbove = 2;
/** What is above the bend gets so much of the height. */
const kAboveTheBend = 0.14;

/**
 * `points` have time (microseconds per sample), bytes, onFrontier, a mark (drawn around 0 0) and perhaps words, those
 * that matter most first; `room` is {bytes, words} or null. As wide as it is shown, so that letters keep their size.
 */
export function scatter(points, {width, room, memory, ...attributes}) {
  const [fastest, slowest] = d3.extent(points, (p) => p.time);
  const most = Math.max(d3.max(points, (p) => p.bytes), 1);
  const rest = restBelow(points.map((p) => p.bytes)) ?? most;
  const line = room && room.bytes < kMostAbove * rest ? room : null;
  // Points at the edge need room for their words.
  const edge = Math.max(0.05 * fastest, 0.08 * (slowest - fastest), 0.05);
  const x = d3.scaleLinear([Math.max(0, fastest - edge), slowest + edge], [kMargin.left, width - kMargin.right]);
  const y = memoryScale(1.05 * Math.max(rest, line?.bytes ?? 0), most);
  const placed = points.map((p) => ({...p, x: x(p.time), y: y(p.bytes)}));
  for (const p of placed) p.mark.setAttribute("transform", `translate(${p.x} ${p.y})`);
  return shape("svg", {class: "chart", viewBox: `0 0 ${width} ${kHeight}`, ...attributes},
      ...axes(x, y, width, memory),
      line ? styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(line.bytes), y2: y(line.bytes)}, "bad") : null,
      styled("path", {class: "frontier", d: frontierPath(placed), fill: "none", "stroke-width": 2}, {stroke: colour("good")}),
      // What matters most lies on top.
      ...placed.map((p) => p.mark).reverse(),
      ...labels(placed, line && {words: line.words, y: y(line.bytes)}, {left: kMargin.left, right: width - kMargin.right, width}));
}

/** The most of those points that lie together, where one or two lie far above them; else null. */
function restBelow(sizes) {
  const falling = [...sizes].sort((a, b) => b - a);
  for (let above = 1; above <= kMostFarAbove && above < falling.length; ++above) {
    if (falling[above] > 0 && falling[above - 1] > kFarAbove * falling[above]) return falling[above];
  }
  return null;
}

/** Bytes to pixels, straight up to `knee`; what is above that stands close together. */
function memoryScale(knee, most) {
  const [bottom, top] = [kHeight - kMargin.bottom, kMargin.top];
  if (most <= knee) return d3.scaleLinear([0, knee], [bottom, top]);
  return d3.scaleLinear([0, knee, 1.02 * most], [bottom, top + kAboveTheBend * (bottom - top), top]);
}

function frontierPath(points) {
  const frontier = points.filter((p) => p.onFrontier).sort((a, b) => a.x - b.x || a.y - b.y);
  return d3.line().x((p) => p.x).y((p) => p.y)(frontier) ?? "";
}

function axes(x, y, width, memory) {
  const marks = [];
  const bend = y.domain().length > 2 ? y.domain()[1] : null;
  const sizes = format.roundSizes(y.domain()[1]);
  if (bend !== null) {
    sizes.push(y.domain()[2] / 1.02);
    // Two strokes across the axis, as people draw it.
    for (const dy of [-3, 3]) {
      marks.push(styledLine({x1: kMargin.left - 8, x2: kMargin.left + 8, y1: y(bend) + dy + 3, y2: y(bend) + dy - 3}, "bad"));
    }
    marks.push(shape("text", {class: "bend", x: kMargin.left + 12, y: y(bend) + 4}, "the axis bends here"));
  }
  for (const value of sizes) {
    marks.push(styledLine({x1: kMargin.left, x2: width - kMargin.right, y1: y(value), y2: y(value)}, "line"),
        shape("text", {x: kMargin.left - 8, y: y(value) + 4, "text-anchor": "end"}, format.bytes(value)));
  }
  const times = x.ticks(Math.floor(width / 120));
  // A few microseconds apart they would read alike.
  for (const value of times.filter((time, i) => i === 0 || format.duration(time) !== format.duration(times[i - 1]))) {
    marks.push(shape("text", {x: x(value), y: kHeight - kMargin.bottom + 18, "text-anchor": "middle"}, format.duration(value)));
  }
  const middle = (kMargin.top + kHeight - kMargin.bottom) / 2;
  const title = (text, transform) => shape("text", {class: "axis-title", transform, "text-anchor": "middle"}, text);
  marks.push(title("time per sample", `translate(${(kMargin.left + width - kMargin.right) / 2} ${kHeight - 8})`),
      title(memory, `translate(14 ${middle}) rotate(-90)`));
  return marks;
}

/** A line of a legend below the chart. */
export function legendItem(name, fill, kind = "") {
  const mark = swatch(name, fill);
  mark.firstChild.className = `swatch ${kind}`;
  return element("li", {}, mark);
}

export function styledLine(attributes, name) {
  return styled("line", attributes, {stroke: colour(name)});
}

export function styled(tag, attributes, style) {
  const node = shape(tag, attributes);
  Object.assign(node.style, style);
  return node;
}
