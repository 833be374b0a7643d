// Words in a chart, beside their points and above its line, none across another.
import {shape} from "./dom.js";

const kLetter = {width: 7, height: 13};
/** How far words stand from the middle of their mark. */
const kBeside = 9;
/** From the middle of a mark to its edge, the largest. */
const kMark = 9;
/** Closer than this the words of one point do for another. */
const kNear = 14;

/**
 * Words of `points` ({x, y, words}, those that matter most first) stand where there is room for them, once where two that
 * are called the same lie together; `line` is {words, y} or null. The chart reaches from `left` to `right` in `width`;
 * `avoided` are boxes that words rather do not cover.
 */
export function labels(points, line, {left, right, width, avoided = []}) {
  const marks = points.map(({x, y}) => ({left: x - kMark, right: x + kMark, top: y - kMark, bottom: y + kMark})).concat(avoided);
  const taken = [];
  const place = (words, spots, kind) => {
    const free = spots.filter((box) => box.left > left && box.right < width && !meets(box, taken));
    const spot = free.find((box) => !meets(box, marks)) ?? free[0];
    if (!spot) return null;
    taken.push({...spot, words});
    return shape("text", {class: kind, x: spot.x, y: spot.bottom, "text-anchor": spot.anchor}, words);
  };
  const drawn = [];
  if (line) {
    drawn.push(place(line.words, spotsAt(line, left, right), "room-label"));
    // Nothing is written across the line.
    taken.push({left: 0, right: width, top: line.y - 1, bottom: line.y + 1});
  }
  for (const p of points) {
    const near = {left: p.x - kNear, right: p.x + kNear, top: p.y - kNear, bottom: p.y + kNear};
    const isSaid = taken.some((box) => box.words === p.words && meets(near, [box]));
    if (p.words && !isSaid) drawn.push(place(p.words, spotsBeside(p), "point-label"));
  }
  return drawn;
}

/** Words that begin at `x`, or end there. */
function boxOf(words, anchor, x, bottom) {
  const size = kLetter.width * words.length;
  const left = anchor === "end" ? x - size : x;
  return {left, right: left + size, top: bottom - kLetter.height, bottom, anchor, x};
}

/** Above a line and below it, at its end and at its start. */
function spotsAt({words, y}, left, right) {
  return [y - 5, y + kLetter.height + 2].flatMap((bottom) =>
    [boxOf(words, "end", right, bottom), boxOf(words, "start", left + 4, bottom)]);
}

/** Above a point, below it and level with it, on its right and on its left. */
function spotsBeside({words, x, y}) {
  return [y - kBeside, y + kBeside + kLetter.height - 4, y + 4].flatMap((bottom) =>
    [boxOf(words, "start", x + kBeside, bottom), boxOf(words, "end", x - kBeside, bottom)]);
}

function meets(box, others) {
  return others.some((other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom);
}
