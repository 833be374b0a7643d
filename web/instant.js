// The chosen instant in figures: its account, and who holds the memory then.
import * as format from "./format.js";
import {accountBar} from "./answer.js";
import {element, show, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

const kMostHolders = 30;

export function showInstant(state) {
  const h = state.history;
  if (!h) return show("instant");
  const account = h.accountAt(state.event);
  const holders = h.holdersAt(state.event);
  const rows = holders.slice(0, kMostHolders).map((holder) => element("tr", {},
      element("td", {class: "number"}, format.bytes(holder.bytes)),
      element("td", {class: "number"}, `${format.count(holder.count)}×`),
      element("td", {}, swatch(format.words(holder.category), colour(holder.category))),
      element("td", {class: "mono"}, holder.place)));
  const rest = holders.slice(kMostHolders);
  if (rest.length > 0) {
    rows.push(element("tr", {},
        element("td", {class: "number"}, format.bytes(rest.reduce((sum, x) => sum + x.bytes, 0))),
        element("td", {class: "number"}, `${format.count(rest.reduce((sum, x) => sum + x.count, 0))}×`),
        element("td"), element("td", {class: "hint"}, `${rest.length} smaller holders`)));
  }
  show("instant", element("h2", {}, title(state)),
      element("p", {class: "hint", id: "totals", "data-event": state.event, "data-allocated": account.allocated, "data-reserved": account.reserved},
          `${format.bytes(account.allocated)} allocated, ${format.bytes(account.reserved)} reserved`),
      element("div", {class: "columns"},
          element("div", {id: "account"}, ...accountBar(account.lines, null)),
          element("div", {class: "scroll", id: "holders"}, table([{name: "bytes", number: true}, {name: "", number: true}, {name: "for"}, {name: "who holds it"}], rows))));
}

function title(state) {
  const h = state.history;
  if (state.event < 0) return h.events === 0 ? "When it was recorded" : "Before the first event";
  const parts = [`Event ${format.count(state.event)} of ${format.count(h.events)}`];
  if (h.hasTimes) parts.push(format.duration(h.times[state.event] - h.times[0]));
  const phase = h.phaseAt(state.event);
  if (phase) parts.push(phase);
  return parts.join(", ");
}
