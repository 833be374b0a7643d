// The page's own start: reads what the program wrote into it, opens the views, listens to keys.
import {showAnswer, showNotes} from "./answer.js";
import {byId, element} from "./dom.js";
import {Flame} from "./flame.js";
import {showInstant} from "./instant.js";
import {showRanks} from "./ranks.js";
import {Segments} from "./segments.js";
import {State} from "./state.js";
import {printLight, watchTheme} from "./theme.js";
import {Timeline} from "./timeline.js";
import {showTradeOffs} from "./trade_offs.js";
import {showWhatIf} from "./what_if.js";

const kSections = {answer: "Answer", ranks: "Ranks", "trade-offs": "Trade-offs", timeline: "Timeline", instant: "Instant",
  flame: "Stacks", segments: "Segments", "what-if": "What if"};

function showSections() {
  const links = Object.entries(kSections).filter(([id]) => !byId(id).hidden)
      .map(([id, name]) => element("a", {href: `#${id}`, onclick: (event) => {
        // Links would replace the rank and the instant that the address holds.
        event.preventDefault();
        byId(id).scrollIntoView();
      }}, name));
  byId("sections").replaceChildren(...links);
}

/** "#rank=2&event=1500" in the address: what the page opens with, and what it can be shared by. */
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name) => /^-?\d/.test(words.get(name) ?? "") && Number.isFinite(Number(words.get(name))) ? Number(words.get(name)) : null;
  return {rank: number("rank"), event: number("event")};
}

async function followAddress(state) {
  const wanted = readAddress();
  const chosen = state.ranks.length > 0 && await state.chooseRank(wanted.rank ?? state.rank);
  if (chosen && wanted.event !== null) state.chooseEvent(wanted.event);
}

let addressTimer = 0;

/** A little later, since browsers refuse hundreds of changes in a few seconds. */
function writeAddress(state) {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => history.replaceState(null, "", `#rank=${state.rank}&event=${state.event}`), 150);
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
  const showAll = () => {
    showAnswer(state);
    showRanks(state);
    showTradeOffs(state);
    showWhatIf(state);
    showNotes(state);
  };
  const timeline = new Timeline(state);
  new Flame(state);
  new Segments(state);
  state.when("rank", () => {
    showAll();
    showInstant(state);
    showSections();
    writeAddress(state);
  });
  state.when("event", () => {
    showInstant(state);
    writeAddress(state);
  });
  const recolour = () => {
    showAll();
    showInstant(state);
  };
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
  await followAddress(state);
  window.addEventListener("hashchange", () => followAddress(state));
  state.opened = true;
  showSections();
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  // An old browser cannot unpack the timelines; the answer stands without them.
  byId("notes").append(element("p", {class: "bad"}, `The timeline cannot be shown: ${error.message}`));
  byId("notes").hidden = false;
});
