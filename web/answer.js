// The top of the page: what happened and where the memory is; and, below the picture of it, what would help.
import * as format from "./format.js";
import {accountViews} from "./account.js";
import {codeBlock, copyButton} from "./copy.js";
import {element, show, table} from "./dom.js";

export function showAnswer(state) {
  const {explanation} = state.data;
  const report = state.report;
  if (!report) return show("answer", element("p", {id: "verdict"}, explanation.verdict));
  // In the order in which explain prints them.
  const all = explanation.findings.flatMap((f) => f.remedies);
  const verdict = element("p", {id: "verdict"}, explanation.verdict);
  // What to do stands between the verdict and the memory of doing it.
  if (state.plans.length > 0) show("answer", verdict);
  show(state.plans.length > 0 ? "memory" : "answer",
      state.plans.length > 0 ? null : verdict,
      state.plans.length > 0 ? null : firstRemedy(all.find((r) => !r.avoid)),
      report.account.length > 0 ? element("h2", {}, heading(state, report)) : null,
      ...accountViews(report.account, {...wholeOf(report), state}));
  show("remedies",
      ...remedies("What would help", all.filter((r) => !r.avoid)),
      ...remedies("Often advised, but worse for this job", all.filter((r) => r.avoid), false),
      ...explanation.findings.map((f) => finding(state, f)),
      ...list("What it is not", explanation.ruled_out),
      ...list("The arithmetic", explanation.arithmetic));
}

/** What to do first, on the first screen. */
function firstRemedy(remedy) {
  if (!remedy) return null;
  return element("div", {id: "first-remedy"}, element("p", {}, element("b", {}, "First: "), remedy.change),
      remedy.code?.length > 0 ? codeBlock(remedy.code) : null);
}

/** What the account is part of: a job that met its limit is not told what the card had free. */
function wholeOf(report) {
  const of = report.shares_of?.what;
  if (of === "limit" || of === "budget") return {capacity: report.shares_of.bytes, whole: `the ${of}`};
  return {capacity: of === "held" ? null : report.capacity};
}

function heading(state, report) {
  const {kind, event, phase} = report.instant;
  const when = kind === "oom" ? "when it ran out of memory" : kind === "event" ? `at event ${event}` : "at the peak";
  const where = [phase, event === null ? "" : `event ${format.count(event)}`].filter(Boolean).join(", ");
  return `Where the memory is ${when}${state.plans.length > 0 ? ` of ${state.plans[0].name}` : ""}${where ? ` (${where})` : ""}`;
}

/** What to type stands below the words, and what it costs stays on a phone too. */
function remedies(title, all, toCopy = true) {
  if (all.length === 0) return [];
  const rows = all.map((r) => element("tr", {class: "remedy", "data-lever": r.lever},
      element("td", {class: "text"}, r.change, r.costs ? element("div", {class: "hint"}, r.costs) : null,
          toCopy && r.code?.length > 0 ? codeBlock(r.code) : null),
      element("td", {class: `number ${r.saves < 0 ? "bad" : "good"}`}, r.saves === null ? "" : format.bytes(r.saves)),
      element("td", {class: "hint wide"}, r.basis),
      element("td", {class: "number"}, !toCopy || r.code?.length > 0 ? null : copyButton(r.change))));
  return [element("h2", {}, title), table(
      [{name: "change"}, {name: "saves", number: true}, {name: "basis", wide: true}, {name: ""}], rows)];
}

function finding(state, f) {
  const instant = instantOf(state, f);
  const jump = instant && (() => state.jumpTo(instant.rank, instant.event));
  const text = instant?.event == null ? "Show in the timeline" : `Show in the timeline (event ${format.count(instant.event)})`;
  return element("div", {class: `finding ${f.severity}`, "data-finding": f.id},
      element("h3", jump ? {class: "leads", onclick: jump} : {}, f.rank === null ? "" : `Rank ${f.rank}: `, f.title),
      element("ul", {}, ...f.evidence.map((line) => element("li", {}, line))),
      jump ? element("button", {type: "button", class: "jump", onclick: jump}, text) : null);
}

/** The rank and event that a finding is about; a null event is the rank's own instant. Nothing without a timeline. */
function instantOf(state, f) {
  const named = state.ranks.findIndex((rank) => f.rank !== null && rank.rank === f.rank);
  const rank = named >= 0 ? named : state.rank;
  if (!state.own.runOf(rank)?.history || state.ranks[rank].events === 0) return null;
  // An event of a finding that several ranks share is that of one of them.
  return {rank, event: named >= 0 || state.ranks.length === 1 ? f.event ?? null : null};
}

function list(title, lines) {
  if (!lines || lines.length === 0) return [];
  return [element("h3", {}, title), element("ul", {}, ...lines.map((line) => element("li", {class: "mono"}, line)))];
}

export function showNotes(state) {
  const notes = [...state.data.left_out, ...(state.report?.notes ?? [])];
  const next = state.data.explanation.record_next ?? [];
  if (notes.length + next.length === 0) return show("notes");
  show("notes", element("h2", {}, "Notes"),
      notes.length > 0 ? element("ul", {}, ...notes.map((note) => element("li", {}, note))) : null,
      ...(next.length > 0 ? [element("h3", {}, "What to record next"), codeBlock(next)] : []));
}
