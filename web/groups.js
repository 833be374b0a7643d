// The ways in which blocks can be grouped. Each gives names, colours, and the group of a block.
import * as format from "./format.js";
import {colour} from "./theme.js";

/** More colours than this cannot be distinguished. */
const kMostGroups = 12;
const kOthers = "all others";

const kSizes = [
  [512 * 1024, "up to 512 KiB"],
  [1024 * 1024, "up to 1 MiB (small pool)"],
  [10 * 1024 * 1024, "up to 10 MiB"],
  [100 * 1024 * 1024, "up to 100 MiB"],
  [1024 * 1024 * 1024, "up to 1 GiB"],
  [Infinity, "larger"],
];

export const kGroupings = {category: "category", place: "source line", module: "module", size: "block size"};

/** `keys` are the names by which a selection knows the groups; null where it cannot. */
export function grouping(history, how) {
  if (how === "category") {
    return {
      names: history.categories.map(format.words),
      keys: history.categories,
      colours: () => history.categories.map((name) => colour(name)),
      groupOf: (block) => history.category[block],
    };
  }
  if (how === "size") {
    const names = kSizes.map(([, name]) => name);
    return {names, keys: names, colours: () => names.map((name) => colour(name)), groupOf: sizeGroup(history)};
  }
  return byName(history, columnOf(history, how));
}

/** The names that hold most at the peak, and one group for all others. */
function byName(history, column) {
  const held = new Map();
  for (const block of history.heldAt(history.peak.event)) {
    held.set(column[block], (held.get(column[block]) ?? 0) + history.size[block]);
  }
  const largest = [...held].sort((a, b) => b[1] - a[1]).slice(0, kMostGroups - 1).map(([name]) => name);
  const index = new Map(largest.map((name, i) => [name, i]));
  const names = largest.map((name) => history.names[name] || "none");
  return {
    names: [...names, kOthers],
    keys: [...largest.map((name) => history.names[name]), null],
    colours: () => [...names.map((name) => colour(name)), colour("unattributed")],
    groupOf: (block) => index.get(column[block]) ?? largest.length,
  };
}

function sizeGroup(history) {
  return (block) => kSizes.findIndex(([most]) => history.requested[block] <= most);
}

function columnOf(history, how) {
  return how === "place" ? history.place : history.module;
}

/** Whether a block belongs to a selection ({by, name, category}); null where none in this run can. */
export function matcher(history, {by, name, category}) {
  if (!Object.hasOwn(kGroupings, by)) return null;
  const group = by === "size" ? kSizes.findIndex(([, text]) => text === name) :
      by === "category" ? history.categories.indexOf(name) : history.names.indexOf(name);
  const only = category ? history.categories.indexOf(category) : -1;
  if (group < 0 || (category && only < 0)) return null;
  const sizes = sizeGroup(history);
  const groupOf = by === "size" ? sizes : by === "category" ? (block) => history.category[block] :
      (block) => columnOf(history, by)[block];
  return (block) => groupOf(block) === group && (only < 0 || history.category[block] === only);
}

/** "activations", "train.py:57 in forward (activations)" */
export function selectionText({by, name, category}) {
  if (by === "category") return format.words(name);
  return `${name || "none"}${category ? ` (${format.words(category)})` : ""}`;
}
