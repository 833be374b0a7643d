// The page's own start: reads what the program wrote into it, opens the views, listens to keys.
import {followAddress, writeAddress} from "./address.js";
import {showAnswer, showNotes} from "./answer.js";
import {showComparison} from "./compare.js";
import {byId, element} from "./dom.js";
import {Flame} from "./flame.js";
import {showInstant} from "./instant.js";
import {markPlan, showPlan} from "./plan.js";
import {Cards} from "./cards.js";
import {showRanks} from "./ranks.js";
import {showLengths} from "./lengths.js";
import {showLogged} from "./logged.js";
import {Segments} from "./segments.js";
import {showStages} from "./stages.js";
import {State} from "./state.js";
import {markStep, showSteps} from "./steps.js";
import {printLight, watchTheme} from "./theme.js";
import {Timeline} from "./timeline.js";
import {showTradeOffs} from "./trade_offs.js";
import {showWhatIf} from "./what_if.js";

const kSections = {answer: "Answer", plan: "Plan", memory: "Memory", processes: "Processes", ranks: "Ranks", logged: "Log", compare: "Comparison", timeline: "Timeline", stages: "Stages", remedies: "What would help", lengths: "Lengths", "trade-offs": "Trade-offs", steps: "Steps",
  instant: "Instant", flame: "Stacks", segments: "Segments", "what-if": "What if"};

function showSections() {
  const links = Object.entries(kSections).filter(([id]) => !byId(id).hidden)
      .map(([id, name]) => element("a", {href: `#${id}`, onclick: (event) => {
        // Links would replace the rank and the instant that the address holds.
        event.preventDefault();
        byId(id).scrollIntoView();
      }}, name));
  byId("sections").replaceChildren(...links);
}

function listenToKeys(state, timeline) {
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input:not([type=range]), select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      p: () => timeline.goTo(state.history.peak.event),
      o: () => timeline.oomEvents.length > 0 && timeline.goTo(timeline.nextOom()),
      "+": () => timeline.zoomBy(2),
      "-": () => timeline.zoomBy(0.5),
      0: () => timeline.showWhole(),
      a: () => state.select(null),
      d: () => byId("theme").click(),
      "/": () => byId("search")?.focus(),
    };
    if (!actions[event.key] || (!state.history?.events && event.key !== "d")) return;
    event.preventDefault();
    actions[event.key]();
  });
}

async function start() {
  const data = JSON.parse(byId("data").textContent);
  byId("subject").textContent = data.title;
  const state = new State(data);
  const timeline = new Timeline(state);
  new Flame(state);
  new Segments(state);
  const cards = new Cards(state);
  const showAll = () => {
    showAnswer(state);
    showPlan(state);
    showRanks(state);
    showLogged(state);
    showComparison(state);
    showLengths(state);
    showTradeOffs(state);
    showWhatIf(state);
    showNotes(state);
  };
  const recolour = () => {
    showAll();
    showInstant(state);
    showStages(state, timeline);
    showSteps(state, timeline);
  };
  const remember = () => writeAddress(state, timeline);
  state.when("rank", () => {
    recolour();
    showSections();
    remember();
  });
  state.when("event", () => {
    showInstant(state);
    markStep(state);
    remember();
  });
  state.when("selection", () => {
    showAnswer(state);
    showInstant(state);
    remember();
  });
  state.when("plan", () => {
    markPlan(state);
    remember();
  });
  timeline.zoomed = remember;
  state.when("theme", recolour);
  state.when("print", recolour);
  watchTheme(byId("theme"), () => {
    if (state.opened) state.tell("theme");
  });
  printLight(() => state.tell("print"));
  showAll();
  listenToKeys(state, timeline);
  // What is left is read when the answer has been painted.
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  if (document.readyState === "loading") await new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve));
  await followAddress(state, timeline);
  await cards.open();
  window.addEventListener("hashchange", () => followAddress(state, timeline));
  state.opened = true;
  showSections();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  // An old browser cannot unpack the timelines; the answer stands without them.
  byId("notes").append(element("p", {class: "bad"}, `The timeline cannot be shown: ${error.message}`));
  byId("notes").hidden = false;
});
