// The steps that were found, a row each; choosing one zooms to it.
import * as format from "./format.js";
import {byId, element, pickable, show, table} from "./dom.js";

/** More rows make the page slow. */
const kMostSteps = 400;

export function showSteps(state, timeline) {
  const steps = state.history?.events ? state.report.step_table : [];
  if (steps.length === 0) return show("steps");
  const before = state.sides[1]?.report.step_table ?? null;
  const rows = steps.slice(0, kMostSteps).map((step, i) => row(timeline, step, i, before));
  const headings = [{name: "step"}, {name: "peak allocated", number: true}, ...(before ? [{name: "baseline", number: true}] : []),
    {name: "peak reserved", number: true}, {name: "activations at backward", number: true, wide: true},
    {name: "allocated at the end", number: true, wide: true}, {name: "events", number: true, wide: true}];
  show("steps", element("h2", {}, `Steps (${format.count(steps.length)})`),
      element("p", {class: "hint"}, "Choose a row to zoom to that step and its peak.",
          steps.length > kMostSteps ? ` The first ${kMostSteps} are listed.` : ""),
      element("div", {class: "scroll"}, table(headings, rows)));
  markStep(state);
}

/** Marks the step that the chosen instant lies in. */
export function markStep(state) {
  for (const row of byId("steps").querySelectorAll("tr[data-step]")) {
    const step = state.report.step_table[row.dataset.step - 1];
    row.classList.toggle("chosen", state.event >= step.first_event && state.event <= step.last_event);
  }
}

function row(timeline, step, i, before) {
  const number = (value, wide = "") => element("td", {class: `number ${wide}`.trim()}, format.bytes(value));
  return pickable(element("tr", {"data-step": i + 1},
      element("td", {}, String(i + 1)), number(step.peak_allocated),
      before ? element("td", {class: "number"}, before[i] ? format.bytes(before[i].peak_allocated) : "") : null,
      number(step.peak_reserved), number(step.activations, "wide"), number(step.end_allocated, "wide"),
      element("td", {class: "number wide"}, `${format.count(step.first_event)} to ${format.count(step.last_event)}`)),
  () => timeline.showStep(step.first_event, step.last_event), false, "Zoom to this step");
}
