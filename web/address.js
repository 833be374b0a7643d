// What the address holds, so that a link leads back to it: "#rank=2&event=1500&only=category:activations".

export function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (name) => /^-?\d/.test(words.get(name) ?? "") && Number.isFinite(Number(words.get(name))) ? Number(words.get(name)) : null;
  const only = /^([a-z]+):(.*)$/s.exec(words.get("only") ?? "");
  return {
    rank: number("rank"),
    event: number("event"),
    base: number("base"),
    plan: number("plan"),
    sight: number("from") !== null && number("to") !== null ? [number("from"), number("to")] : null,
    selection: only ? {by: only[1], name: only[2], ...(words.has("for") ? {category: words.get("for")} : {})} : null,
  };
}

/** `sight` is the stretch of events that is zoomed to, or null for the whole run. */
function addressOf(state, sight) {
  const words = new URLSearchParams({rank: state.rank, event: state.event});
  if (state.sides.length > 1) words.set("base", state.base.event);
  if (state.plans.length > 0) words.set("plan", state.plan + 1);
  if (sight) {
    words.set("from", sight[0]);
    words.set("to", sight[1]);
  }
  if (state.selection) words.set("only", `${state.selection.by}:${state.selection.name}`);
  if (state.selection?.category) words.set("for", state.selection.category);
  return `#${words}`;
}

let timer = 0;

/** A little later, since browsers refuse hundreds of changes in a few seconds. */
export function writeAddress(state, timeline) {
  clearTimeout(timer);
  timer = setTimeout(() => history.replaceState(null, "", addressOf(state, timeline.inSight)), 150);
}

export async function followAddress(state, timeline) {
  const wanted = readAddress();
  if (state.plans.length > 0) state.choosePlan((wanted.plan ?? 1) - 1);
  const chosen = state.ranks.length > 0 && await state.chooseRank(wanted.rank ?? state.rank);
  if (!chosen || !state.history) return;
  if (wanted.event !== null) state.chooseEvent(wanted.event);
  if (wanted.base !== null && state.sides.length > 1) state.chooseEvent(wanted.base, state.base);
  if (wanted.selection) state.select(wanted.selection);
  if (wanted.sight) timeline.showEvents(...wanted.sight);
}
