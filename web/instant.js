// The chosen instant in figures: its account, and which lines of code hold the memory then.
import * as format from "./format.js";
import {accountViews, changeCell} from "./account.js";
import {element, pickable, show, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

const kMostHolders = 30;

export function showInstant(state) {
  const h = state.history;
  if (!h) return show("instant");
  const account = h.accountAt(state.event);
  const base = state.sides[1];
  const before = base?.history.accountAt(base.event);
  show("instant", element("h2", {}, title(state.own)),
      figures("totals", state.own, account, totals(account)),
      base ? figures("base-totals", base, before,
          `Baseline: ${title(base)}, ${totals(before)}. Click its chart to choose another instant.`) : null,
      element("p", {class: "hint"}, "Click a category or a line of code to see its blocks alone."),
      element("div", {class: base ? "" : "columns"},
          element("div", {id: "account"}, ...accountViews(account.lines, {state, base: before?.lines})),
          element("div", {class: "scroll", id: "holders"}, base ? comparedHolders(state, base) : plainHolders(state))));
}

function figures(id, side, account, text) {
  return element("p", {class: "hint", id, "data-event": side.event, "data-allocated": account.allocated,
    "data-reserved": account.reserved}, text);
}

function totals(account) {
  return `${format.bytes(account.allocated)} allocated, ${format.bytes(account.reserved)} reserved`;
}

/** "in layer1.0.conv1 and 12 more modules": the one that took most. */
function modulesHint(holder) {
  if (!holder.module) return null;
  const more = holder.modules > 1 ? ` and ${holder.modules - 1} more` : "";
  return element("div", {class: "hint"}, `in ${holder.module}${more}`);
}

/** "held by losses[*] and 3 more": the variables that kept it when the record was made, told of that instant alone. */
function ownersHint(state, holder) {
  if (state.event !== state.own.ownInstant) return null;
  const told = state.report.holders?.find((x) => x.where === holder.place && x.category === holder.category);
  const [first, ...others] = told?.owners ?? [];
  if (!first) return null;
  return element("div", {class: "hint"}, `held by ${first.name}${others.length > 0 ? ` and ${others.length} more` : ""}`);
}

function plainHolders(state) {
  const holders = state.history.holdersAt(state.event);
  const rows = holders.slice(0, kMostHolders).map((holder) => picking(state, holder, element("tr", {},
      element("td", {class: "number"}, format.bytes(holder.bytes)),
      element("td", {class: "number"}, `${format.count(holder.count)}×`),
      element("td", {}, swatch(format.words(holder.category), colour(holder.category))),
      element("td", {class: "mono"}, holder.place, modulesHint(holder), ownersHint(state, holder)))));
  const rest = holders.slice(kMostHolders);
  if (rest.length > 0) {
    rows.push(element("tr", {},
        element("td", {class: "number"}, format.bytes(rest.reduce((sum, x) => sum + x.bytes, 0))),
        element("td", {class: "number"}, `${format.count(rest.reduce((sum, x) => sum + x.count, 0))}×`),
        element("td"), element("td", {class: "hint"}, `${rest.length} smaller ones`)));
  }
  return table([{name: "bytes", number: true}, {name: "blocks", number: true}, {name: "category"}, {name: "allocated by"}], rows);
}

/** The largest changes first. */
function comparedHolders(state, base) {
  const changes = pairHolders(state.history.linesAt(state.event), base.history.linesAt(base.event));
  const cells = (is, was) => [element("td", {class: "number"}, format.bytes(is)), element("td", {class: "number wide"}, format.bytes(was)),
    changeCell(is - was)];
  const rows = changes.slice(0, kMostHolders).map((c) => picking(state, c, element("tr", {},
      element("td", {class: "mono"}, c.place, c.moved ? element("div", {class: "hint"}, `was ${c.moved}`) : null),
      element("td", {class: "wide"}, swatch(format.words(c.category), colour(c.category))), ...cells(c.bytes, c.before))));
  const rest = changes.slice(kMostHolders);
  if (rest.length > 0) {
    const sum = (of) => rest.reduce((total, c) => total + of(c), 0);
    rows.push(element("tr", {}, element("td", {class: "hint"}, `${rest.length} with smaller changes`), element("td", {class: "wide"}),
        ...cells(sum((c) => c.bytes), sum((c) => c.before))));
  }
  return table([{name: "allocated by"}, {name: "category", wide: true}, {name: "this run", number: true},
    {name: "baseline", number: true, wide: true}, {name: "change", number: true}], rows);
}

/**
 * Holders of two runs, matched by line and category. A line that is in one run alone may have moved: it is matched
 * by file and function where these have one such line in either run, as `plimsoll diff` does.
 */
function pairHolders(now, before) {
  const keyOf = (h) => `${h.category}\n${h.place}`;
  const was = new Map(before.map((h) => [keyOf(h), h]));
  const pairs = now.map((h) => ({...h, before: was.get(keyOf(h))?.bytes ?? 0, isNew: !was.has(keyOf(h))}));
  const seen = new Set(now.map(keyOf));
  const gone = before.filter((h) => !seen.has(keyOf(h)));
  const without = (h) => `${h.category}\n${h.place.replace(/:\d+ in /, " in ")}`;
  /** By function; null where it has several lines. */
  const byFunction = (list) => list.reduce((map, h) => map.set(without(h), map.has(without(h)) ? null : h), new Map());
  const [fresh, lost] = [byFunction(pairs), byFunction(gone)];
  const left = gone.filter((h) => {
    const moved = lost.get(without(h)) === h ? fresh.get(without(h)) : null;
    if (!moved?.isNew) return true;
    moved.before = h.bytes;
    moved.moved = h.place;
    return false;
  });
  for (const h of left) pairs.push({...h, before: h.bytes, bytes: 0});
  return pairs.sort((a, b) => Math.abs(b.bytes - b.before) - Math.abs(a.bytes - a.before) || b.bytes - a.bytes);
}

/** A line of code chooses its blocks. */
function picking(state, {place, category}, row) {
  const selection = {by: "place", name: place, category};
  return pickable(row, () => state.select(selection), state.isSelected(selection), "Show only these blocks");
}

function title(side) {
  const h = side.history;
  if (side.event < 0) return h.events === 0 ? "When it was recorded" : "Before the first event";
  const parts = [`Event ${format.count(side.event)} of ${format.count(h.events)}`];
  if (h.hasTimes) parts.push(format.duration(h.times[side.event] - h.times[0]));
  const phase = h.phaseAt(side.event);
  if (phase) parts.push(phase);
  const stretch = h.stretchAt(side.event);
  // Where steps are known, that it is one of them has been said.
  if (stretch && !(phase && stretch.stage === "step")) parts.push(stretch.name);
  return parts.join(", ");
}
