// The top of the page: what happened, where the memory is, what would help.
import * as format from "./format.js";
import {element, shape, show, swatch, table} from "./dom.js";
import {colour} from "./theme.js";

export function showAnswer(state) {
  const {explanation} = state.data;
  const report = state.report;
  if (!report) return show("answer", element("p", {id: "verdict"}, explanation.verdict));
  show("answer",
      element("p", {id: "verdict"}, explanation.verdict),
      element("h2", {}, heading(report)),
      ...accountBar(report.account, report.capacity),
      ...remedies(explanation.findings),
      ...explanation.findings.map(finding),
      ...list("What it is not", explanation.ruled_out),
      ...list("The arithmetic", explanation.arithmetic));
}

function heading(report) {
  const {kind, event, phase} = report.instant;
  const when = kind === "oom" ? "when it ran out of memory" : kind === "event" ? `at event ${event}` : "at the peak";
  const where = [phase, event === null ? "" : `event ${format.count(event)}`].filter(Boolean).join(", ");
  return `Where the memory is ${when}${where ? ` (${where})` : ""}`;
}

/** One bar whose parts add up to the card, or to what is known of it. */
export function accountBar(account, capacity) {
  if (account.length === 0) return [];
  const lines = [...account];
  const known = lines.reduce((sum, line) => sum + line.bytes, 0);
  if (capacity && capacity > known) lines.push({...rest(account), bytes: capacity - known});
  const total = Math.max(known, capacity ?? 0);
  const bar = shape("svg", {class: "chart", viewBox: "0 0 1000 34", preserveAspectRatio: "none", role: "img",
    "aria-label": `${format.bytes(total)} by use`});
  bar.style.height = "34px";
  let x = 0;
  for (const line of lines) {
    const width = total > 0 ? 1000 * line.bytes / total : 0;
    const part = shape("rect", {x, y: 0, width, height: 34}, shape("title", {}, lineText(line, total)));
    part.style.fill = colour(line.what);
    bar.append(part);
    x += width;
  }
  const rows = lines.map((line) => element("tr", {"data-what": line.what},
      element("td", {}, swatch(format.words(line.what), colour(line.what))),
      element("td", {class: "number", "data-bytes": line.bytes}, format.bytes(line.bytes)),
      element("td", {class: "number"}, format.percent(line.bytes, total)),
      element("td", {class: "wide hint"}, line.because ? `${line.because}${line.confidence ? ` (${line.confidence} confidence)` : ""}` : "")));
  rows.push(element("tr", {},
      element("th", {}, capacity ? "the card" : "in all"),
      element("th", {class: "number"}, format.bytes(total)), element("th"), element("th", {class: "wide"})));
  return [bar, element("div", {class: "account"}, table(
      [{name: "what"}, {name: "bytes", number: true}, {name: "share", number: true}, {name: ""}], rows))];
}

/** What the rest of the card is, told by what is known already. */
function rest(account) {
  const has = (what) => account.some((line) => line.what === what);
  if (has("free") && has("outside")) return {what: "unattributed", because: "the rest of the card"};
  if (has("free")) return {what: "outside", because: "the rest of the card: outside of PyTorch"};
  if (has("outside")) return {what: "free", because: "the rest of the card"};
  return {what: "free", because: "the rest of the card: free, or outside of PyTorch"};
}

function lineText(line, total) {
  return `${format.words(line.what)}: ${format.bytes(line.bytes)}, ${format.percent(line.bytes, total)}`;
}

/** Every remedy of every finding, those that save most first. */
function remedies(findings) {
  const all = findings.flatMap((f) => f.remedies).sort((a, b) => (b.saves ?? 0) - (a.saves ?? 0));
  if (all.length === 0) return [];
  const rows = all.map((r) => element("tr", {},
      element("td", {class: "text"}, r.change),
      element("td", {class: `number ${r.saves < 0 ? "bad" : "good"}`}, r.saves === null ? "" : format.bytes(r.saves)),
      element("td", {class: "wide text"}, r.costs),
      element("td", {class: "hint"}, r.basis)));
  return [element("h2", {}, "What would help"), table(
      [{name: "change"}, {name: "saves", number: true}, {name: "", wide: true}, {name: "known by"}], rows)];
}

function finding(f) {
  return element("div", {class: `finding ${f.severity}`},
      element("h3", {}, f.rank === null ? "" : `Rank ${f.rank}: `, f.title),
      element("ul", {}, ...f.evidence.map((line) => element("li", {}, line))));
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
      element("ul", {}, ...notes.map((note) => element("li", {}, note))),
      ...list("What to record next", next));
}
