// A plan: memory against time, each point a way to train that can be chosen, with its figures and the lines to type.
import * as format from "./format.js";
import {codeBlock} from "./copy.js";
import {byId, element, pickable, shape, show, table} from "./dom.js";
import {isTooSlow, perSample} from "./plans.js";
import {legendItem, scatter, styled} from "./scatter.js";
import {colour} from "./theme.js";

/** What becomes of the results, in the words of a legend and the colours of one. */
const kResults = {
  same: {words: "same results", colour: "parameters"},
  rounding: {words: "rounded otherwise", colour: "activations"},
  other: {words: "other results", colour: "gradients"},
};

/** A click so many pixels from a point still means it. */
const kReach = 24;

export function showPlan(state) {
  if (state.plans.length === 0) return show("plan");
  const chart = element("div", {id: "plan-chart"});
  show("plan", element("h2", {}, "Memory against time"),
      element("p", {class: "hint"}, `Each point is a way to train with ${format.count(state.data.plan.samples)} samples a step. ` +
        `Choose one, here or in the table, for the lines to type. The views further down show the predicted run of ${state.plans[0].name}.`),
      element("div", {class: "plan"}, chart, element("div", {id: "plan-chosen", role: "region", "aria-label": "The chosen way"}), ways(state)));
  chart.append(drawing(state, chart.clientWidth), legend(state));
  markPlan(state);
}

/** Shows which way is chosen, and how it is done. Nothing is drawn anew, so that what has the focus keeps it. */
export function markPlan(state) {
  for (const node of document.querySelectorAll("#plan [data-plan]")) {
    const isChosen = Number(node.dataset.plan) === state.plan;
    node.classList.toggle("chosen", isChosen);
    node.setAttribute(node.matches("tr") ? "aria-current" : "aria-pressed", isChosen);
  }
  byId("plan-chosen").replaceChildren(...chosen(state.plans[state.plan]));
}

function drawing(state, width) {
  const points = state.plans.map((way, index) => ({
    time: perSample(way), bytes: way.device.best, onFrontier: way.frontier, mark: mark(state, way, index),
    words: way.number ? String(way.number) : way.captured ? "as captured" : way.closest ? "closest" : "",
  }));
  return scatter(points, {width: Math.max(320, width), memory: "GPU memory", room: roomOf(state), role: "group",
    "aria-label": "Memory against time per sample", onclick: (event) => {
      const index = nearest(event);
      if (index !== null) state.choosePlan(index);
    }});
}

/** The point at the pointer or close to it: points are small, may lie over one another, and fingers are wide. */
function nearest({clientX, clientY}) {
  const away = [...document.querySelectorAll("#plan-chart .point")].map((node) => {
    const box = node.getBoundingClientRect();
    const distance = Math.hypot(clientX - (box.left + box.right) / 2, clientY - (box.top + box.bottom) / 2);
    return {distance, index: Number(node.dataset.plan)};
  });
  // Of those that lie in one place the one that matters most.
  const [first] = away.sort((a, b) => a.distance - b.distance || a.index - b.index);
  return first.distance < kReach ? first.index : null;
}

/** Up to where the device may be filled: the card, or what PyTorch may hold with what lies outside of it. */
function roomOf(state) {
  const {limit, capacity} = state.report;
  if (limit === null) return capacity && {bytes: capacity, words: `memory of the card: ${format.bytes(capacity)}`};
  const {device, reserved} = state.plans[0];
  return {bytes: limit + device.best - reserved.best, words: `budget: ${format.bytes(limit)} and the CUDA context`};
}

function mark(state, way, index) {
  const paint = colour(kResults[way.numerics].colour);
  const node = shape("g", {
    class: "point", tabindex: 0, role: "button", "data-plan": index, "aria-label": spoken(way),
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      state.choosePlan(index);
    },
  }, styled("circle", {r: way.number ? 8 : 5, "stroke-width": 2},
      {fill: way.number ? paint : colour("paper"), stroke: paint, opacity: lasts(way) ? 1 : 0.45}));
  node.append(shape("title", {}, spoken(way)));
  return node;
}

function spoken(way) {
  return `${changes(way)}\n${rate(way)} samples a second, ${format.duration(way.step_us)} per step\n` +
      `${memory(way)}${lasts(way) ? "" : `\n${fit(way)}`}`;
}

function changes(way) {
  return way.levers.map((lever) => lever.words).join(", ") || "no change";
}

function rate(way) {
  return way.samples_per_second.toFixed(1);
}

function lasts(way) {
  return way.surely_fits && !way.growth && way.unknown.length === 0;
}

function memory(way) {
  return `${format.bytes(way.device.best)} on the device${way.device.high === null ? "" : `, at most ${format.bytes(way.device.high)}`}`;
}

function fit(way) {
  if (way.growth) return `runs out after ${way.growth.every > 1 ? "about " : ""}${format.count(way.growth.steps)} steps`;
  if (way.fits && way.unknown.length > 0) return "fits as far as it was followed";
  return way.surely_fits ? "fits" : way.fits ? "likely fits, not for certain" : "does not fit";
}

/** One way: its figures, and for each lever what to type. */
function chosen(way) {
  return [
    element("h3", {}, way.number ? `${way.number}. ` : "", changes(way)),
    element("p", {}, element("strong", {}, `${rate(way)} samples a second`), ` (${format.duration(way.step_us)} per step); ${memory(way)}; `,
        element("span", {class: lasts(way) ? "good" : "bad"}, fit(way)), `; ${kResults[way.numerics].words}.`),
    element("h4", {}, "Samples of one pass"), codeBlock([`batch_size=${way.batch}`]),
    ...way.levers.flatMap((lever) => [element("h4", {}, lever.words), codeBlock(lever.code)]),
  ];
}

function ways(state) {
  const rows = state.plans.map((way, index) => pickable(element("tr", {"data-plan": index},
      element("td", {class: "number"}, way.number ? String(way.number) : ""),
      element("td", {class: "number"}, rate(way)),
      element("td", {class: "number wide"}, format.duration(way.step_us)),
      element("td", {class: "number"}, format.bytes(way.device.best)),
      element("td", {class: "number wide"}, way.device.high === null ? "" : format.bytes(way.device.high)),
      element("td", {class: "wide"}, way.numerics),
      element("td", {class: "text"}, changes(way), lasts(way) ? null : element("span", {class: "bad"}, ` (${fit(way)})`))),
  () => state.choosePlan(index), false, "Show how it is done"));
  return element("div", {id: "plan-ways"}, table([{name: "", number: true}, {name: "samples/s", number: true}, {name: "step", number: true, wide: true},
    {name: "memory", number: true}, {name: "at most", number: true, wide: true}, {name: "results", wide: true}, {name: "what to change"}], rows));
}

function legend(state) {
  const kinds = Object.entries(kResults).filter(([name]) => state.plans.some((way) => way.numerics === name));
  const roles = {closest: "what comes closest", frontier: "the rest of the frontier", alone: "single levers", captured: "the job as captured"};
  const small = Object.keys(roles).filter((role) => state.plans.some((way) => way[role] && !way.number)).map((role) => roles[role]);
  const slow = state.data.plan.alone.filter((way) => isTooSlow(state.data.plan, way)).map(changes);
  return element("ul", {class: "legend", id: "plan-legend"},
      ...kinds.map(([, kind]) => legendItem(kind.words, colour(kind.colour), "round")),
      state.plans.some((way) => way.number) ? legendItem("large: the fastest of each set of levers, numbered", colour("ink"), "round") : null,
      small.length > 0 ? legendItem(`small: ${small.join(", ")}`, colour("paper"), "round") : null,
      state.plans.some((way) => !lasts(way)) ? legendItem("pale: does not fit for certain, or runs out", colour("line"), "round") : null,
      state.plans.some((way) => way.frontier) ? legendItem("frontier: nothing else that fits is both faster and smaller", colour("good")) : null,
      slow.length > 0 ? element("li", {}, `left out, less than half as fast: ${slow.join("; ")}`) : null);
}
