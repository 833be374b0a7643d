// What each stage takes: the rows of a prediction, host beside device; or the ranges that a recorded program marked.
import * as format from "./format.js";
import {element, pickable, show, swatch, table} from "./dom.js";
import {stageColour} from "./theme.js";

export function showStages(state, timeline) {
  const rows = state.data.stages?.rows ?? [];
  if (rows.length > 0) return showPredicted(state, rows, timeline);
  if (state.data.stages?.host) return showHost(state);
  const marks = state.history?.events ? state.report?.marks ?? [] : [];
  if (marks.length > 0) return showMarks(marks, timeline);
  show("stages");
}

const number = (value, wide = "") => element("td", {class: `number ${wide}`.trim(), "data-bytes": value}, value === null ? "" : format.bytes(value));

function named(name, stage, depth = 0) {
  const cell = element("td", {}, swatch(name, stageColour(stage)));
  if (depth > 0) cell.style.paddingLeft = `${1.2 * depth}em`;
  return cell;
}

/** A row leads to the peak of its stage; one that asks for nothing has no place in the timeline. */
function leading(row, timeline, wanted) {
  return timeline.hasStretch(wanted) ? pickable(row, () => timeline.showStretch(wanted), false, "Go to its peak") : row;
}

function showPredicted(state, rows, timeline) {
  const hasHost = rows.some((row) => row.host !== null);
  const most = Math.max(...rows.map((row) => Math.max(row.device, row.host ?? 0)));
  const lines = rows.map((row) => leading(element("tr", {"data-stage": row.name}, named(row.name, row.stage),
      number(row.allocated, "wide"), number(row.reserved, "wide"), number(row.device), hasHost ? number(row.host) : null,
      hasHost ? element("td", {class: "wide bars"}, track(row.device, most, "device"), track(row.host, most, "host")) : null,
      element("td", {class: "mono"}, row.where)), timeline, (stretch) => stretch.part !== null && row.parts.includes(stretch.part)));
  const headings = [{name: "stage"}, {name: "allocated", number: true, wide: true}, {name: "reserved", number: true, wide: true},
    {name: "device", number: true}, ...(hasHost ? [{name: "host", number: true}, {name: "", wide: true}] : []), {name: "peak at"}];
  show("stages", element("h2", {}, "What each stage takes at most"),
      element("p", {class: "hint"}, "Choose a row to go to the peak of that stage. The device's figure has what lies outside PyTorch in it.",
          hasHost ? " The host's is what the process has resident there." : "",
          hasHost ? element("span", {class: "wide"}, " Bars: device above, host (hatched) below, on one scale.") : ""),
      element("div", {class: "scroll"}, table(headings, lines)), hostLine(state));
}

/** Where steps alone were captured there is one figure for the host. */
function showHost(state) {
  show("stages", element("h2", {}, "Beside the device"), hostLine(state));
}

function hostLine(state) {
  const {host} = state.data.stages;
  return host ? element("p", {id: "host"}, `On the host: ${host}.${roomText(state)}`) : null;
}

function roomText({data}) {
  return data.stages.host_room === null ? "" : ` The host has ${format.bytes(data.stages.host_room)} for it.`;
}

function track(bytes, most, kind) {
  const fill = element("div", {class: `fill ${kind}`});
  fill.style.width = `${100 * (bytes ?? 0) / most}%`;
  return element("div", {class: "thin track"}, fill);
}

function showMarks(marks, timeline) {
  const lines = marks.map((mark) => leading(element("tr", {"data-stage": mark.name}, named(mark.name, mark.stage, mark.depth),
      element("td", {class: "number"}, format.count(mark.times)), number(mark.peak_allocated), number(mark.peak_reserved),
      element("td", {class: "number wide"}, format.change(mark.left))), timeline, (stretch) => stretch.name === mark.name));
  show("stages", element("h2", {}, "What the program marked"),
      element("p", {class: "hint"}, "Ranges of record_function. Choose a row to go to its highest peak."),
      element("div", {class: "scroll"}, table([{name: "mark"}, {name: "times", number: true}, {name: "peak allocated", number: true},
        {name: "peak reserved", number: true}, {name: "the last one left", number: true, wide: true}], lines)));
}
