// Where the bytes are: a bar of what is held, and a table with a line for each part of it.
import * as format from "./format.js";
import {element, pickable, shape, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

/**
 * `capacity` is what the account is part of, where it is known, and `whole` what that is called: the card, or the limit
 * of the process. `state` makes lines of tensors choose their category in the
 * timeline. `base` is the account to compare with.
 */
export function accountViews(account, {capacity = null, whole = "the card", state = null, base = null} = {}) {
  if (account.length === 0) return [];
  const lines = [...account];
  const known = sum(lines);
  if (capacity && capacity > known) lines.push({...rest(account, whole), bytes: capacity - known});
  const held = lines.filter((line) => line.what !== "free");
  const free = sum(lines) - sum(held);
  return [bar(held), free > 0 ? roomLine(sum(held), free) : null,
    element("div", {class: "account"}, base ? comparedTable(held, base, state) : plainTable(lines, sum(held), capacity && whole, state))];
}

function sum(lines) {
  return lines.reduce((total, line) => total + line.bytes, 0);
}

/** Scaled to what is held: on a card that is nearly empty the parts could not be seen. */
function bar(held) {
  const total = sum(held);
  const drawing = shape("svg", {class: "chart bar-of-parts", viewBox: "0 0 1000 34", preserveAspectRatio: "none", role: "img",
    "aria-label": `${format.bytes(total)} by use`});
  let x = 0;
  for (const line of held) {
    const width = total > 0 ? 1000 * line.bytes / total : 0;
    const text = `${format.words(line.what)}: ${format.bytes(line.bytes)}, ${format.percent(line.bytes, total)}`;
    const part = shape("rect", {x, y: 0, width, height: 34, "data-part": line.what}, shape("title", {}, text));
    part.style.fill = colour(line.what);
    drawing.append(part);
    x += width;
  }
  return drawing;
}

/** A thin line for the whole card: how much of it is held, and how much is free. */
function roomLine(held, free) {
  const fill = element("span", {class: "used"});
  fill.style.width = `${100 * held / (held + free)}%`;
  const share = `${format.percent(free, held + free)} of ${format.bytes(held + free)}`;
  return element("div", {class: "room", "data-free": free}, element("span", {class: "line"}, fill),
      element("span", {}, `${format.bytes(held)} held, ${format.bytes(free)} free (${share})`));
}

function plainTable(lines, held, whole, state) {
  const rows = lines.map((line) => picking(state, line.what, element("tr", {"data-what": line.what},
      element("td", {}, swatch(format.words(line.what), colour(line.what))),
      element("td", {class: "number", "data-bytes": line.bytes}, format.bytes(line.bytes)),
      element("td", {class: "number"}, line.what === "free" ? "" : format.percent(line.bytes, held)),
      element("td", {class: "wide hint"}, line.because ? `${line.because}${line.confidence ? ` (${line.confidence} confidence)` : ""}` : ""))));
  rows.push(element("tr", {},
      element("th", {}, whole || "total"),
      element("th", {class: "number"}, format.bytes(sum(lines))), element("th"), element("th", {class: "wide"})));
  return table([{name: "what"}, {name: "bytes", number: true}, {name: "of held", number: true}, {name: "", wide: true}], rows);
}

function comparedTable(lines, base, state) {
  const before = new Map(base.filter((line) => line.what !== "free").map((line) => [line.what, line.bytes]));
  const now = new Map(lines.map((line) => [line.what, line.bytes]));
  const rows = [...new Set([...now.keys(), ...before.keys()])].map((what) => {
    const [is, was] = [now.get(what) ?? 0, before.get(what) ?? 0];
    return picking(state, what, element("tr", {"data-what": what},
        element("td", {}, swatch(format.words(what), colour(what))),
        element("td", {class: "number", "data-bytes": is}, format.bytes(is)),
        element("td", {class: "number wide", "data-before": was}, format.bytes(was)), changeCell(is - was)));
  });
  const [is, was] = [sum(lines), [...before.values()].reduce((a, b) => a + b, 0)];
  rows.push(element("tr", {}, element("th", {}, "total"), element("th", {class: "number"}, format.bytes(is)),
      element("th", {class: "number wide"}, format.bytes(was)), changeCell(is - was)));
  return table([{name: "what"}, {name: "this run", number: true},
    {name: "baseline", number: true, wide: true}, {name: "change", number: true}], rows);
}

/** More is bad, less is good. */
export function changeCell(by) {
  return element("td", {class: `number ${by > 0 ? "bad" : by < 0 ? "good" : "hint"}`, "data-change": by}, format.change(by));
}

/** A line of tensors chooses its category. */
function picking(state, what, row) {
  if (!state?.history?.categories.includes(what)) return row;
  const selection = {by: "category", name: what};
  return pickable(row, () => state.select(selection), state.isSelected(selection), "Show only these blocks");
}

/** What the rest of the whole is, from what is known already. */
function rest(account, whole) {
  if (whole !== "the card") return {what: "free", because: `what is left of ${whole}`};
  const has = (what) => account.some((line) => line.what === what);
  if (has("free") && has("outside")) return {what: "unattributed", because: "the rest of the card"};
  if (has("free")) return {what: "outside", because: "the rest of the card: outside PyTorch's allocator"};
  if (has("outside")) return {what: "free", because: "the rest of the card"};
  return {what: "free", because: "the rest of the card: free, or outside PyTorch's allocator"};
}
