// One block in words, and its stack kept on the page.
import * as format from "./format.js";
import {byId, element} from "./dom.js";
import {kNotYet} from "./history.js";

export function blockText(history, block) {
  const life = history.released[block] === kNotYet ? "to the end" : `to event ${format.count(history.released[block])}`;
  const made = history.made[block] < 0 ? "before the record" : `event ${format.count(history.made[block])}`;
  return `${history.names[history.place[block]]}\n${format.words(history.categories[history.category[block]])}, ` +
      `${format.bytes(history.requested[block])}, from ${made} ${life}`;
}

/** The blocks that the same line made for the same use. */
export function placeOf(history, block) {
  return {by: "place", name: history.names[history.place[block]], category: history.categories[history.category[block]]};
}

/** Keeps a block's stack on the page; -1 for none. */
export function pin(state, history, block) {
  const panel = byId("pinned");
  if (!panel) return;
  panel.hidden = block < 0;
  if (block < 0) return;
  const frames = history.stackOf(history.node[block]);
  panel.replaceChildren(
      element("strong", {}, blockText(history, block)),
      element("p", {class: "hint"}, `at ${history.address(history.offset[block])}, ${format.bytes(history.size[block])} with rounding`),
      element("button", {type: "button", id: "pinned-line", onclick: () => state.select(placeOf(history, block))},
          "Only the blocks of this line"),
      frames.length === 0 ? element("p", {class: "hint"}, "No stack was recorded.") :
          element("ol", {}, ...frames.map((f) => element("li", {class: "mono"}, `${f.function} (${f.file}:${f.line})`))));
}
