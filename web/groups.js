// The ways in which the timeline can be stacked. Each gives names, colours, and the group of a block.
import * as format from "./format.js";
import {colour} from "./theme.js";

/** More would not be told apart. */
const kMostGroups = 12;

const kSizes = [
  [512 * 1024, "up to 512 KiB"],
  [1024 * 1024, "up to 1 MiB (small pool)"],
  [10 * 1024 * 1024, "up to 10 MiB"],
  [100 * 1024 * 1024, "up to 100 MiB"],
  [1024 * 1024 * 1024, "up to 1 GiB"],
  [Infinity, "larger"],
];

export const kGroupings = {category: "what it is for", place: "who holds it", module: "module", size: "size"};

export function grouping(history, how) {
  if (how === "category") {
    return {
      names: history.categories.map(format.words),
      colours: () => history.categories.map((name) => colour(name)),
      groupOf: (block) => history.category[block],
    };
  }
  if (how === "size") {
    const names = kSizes.map(([, name]) => name);
    return {names, colours: () => names.map((name) => colour(name)), groupOf: (block) => kSizes.findIndex(([most]) => history.requested[block] <= most)};
  }
  return byName(history, how === "place" ? history.place : history.module);
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
  names.push("all others");
  return {
    names,
    colours: () => names.map((name) => name === "all others" ? colour("unattributed") : colour(name)),
    groupOf: (block) => index.get(column[block]) ?? largest.length,
  };
}
