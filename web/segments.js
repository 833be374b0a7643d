// Every segment at the chosen instant, end to end and broken into rows: area is bytes. Free pieces
// stay pale, so that fragmentation shows; below are the blocks that keep those segments in use.
import * as format from "./format.js";
import {byId, element, oncePerFrame, pickable, prepared, show, table, tip} from "./dom.js";
import {blockText, pin, placeOf} from "./pinned.js";
import {colour} from "./theme.js";

const kRows = 22;
const kRow = 15;
const kMostPinned = 8;
/** Two mebibytes of free memory are not worth a line. */
const kWorthTelling = 2 * 1024 * 1024;

export class Segments {
  constructor(state) {
    this.state = state;
    this.draw = oncePerFrame(() => this.drawNow());
    state.when("rank", () => this.open());
    state.when("event", () => this.draw());
    state.when("selection", () => this.draw());
    state.when("theme", () => this.draw());
    state.when("print", () => this.drawNow());
    window.addEventListener("resize", () => this.draw());
  }

  open() {
    const h = this.state.history;
    if (!h || !h.hasSpans) return show("segments");
    this.canvas = element("canvas", {id: "map", role: "img", "aria-label": "Segments and their blocks"});
    const slider = element("input", {type: "range", id: "slider", min: h.events > 0 ? 0 : -1, max: Math.max(-1, h.events - 1), step: 1,
      "aria-label": "Instant", oninput: (event) => this.state.chooseEvent(Number(event.target.value))});
    show("segments", element("h2", {}, "Segments: what the allocator holds"),
        element("p", {class: "hint", id: "segment-count"}),
        h.events > 0 ? slider : null, this.canvas, element("div", {id: "stuck"}));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tip(null));
    this.canvas.addEventListener("click", (event) => {
      const box = this.under(event);
      if (box && box.piece.block >= 0) pin(this.state, h, box.piece.block);
    });
    this.draw();
  }

  drawNow() {
    const h = this.state.history;
    if (!h || !this.canvas?.isConnected) return;
    if (byId("slider")) byId("slider").value = this.state.event;
    const segments = h.segmentsAt(this.state.event);
    const total = segments.reduce((sum, s) => sum + s.span.size, 0);
    const {context, width} = prepared(this.canvas, kRows * kRow + 4);
    this.boxes = [];
    this.selects = this.state.selects(h);
    let at = 0;
    for (const segment of segments) {
      for (const piece of segment.pieces) {
        this.drawPiece(context, width, total, at + piece.offset - segment.span.offset, segment, piece);
      }
      this.drawBorder(context, width, total, at);
      at += segment.span.size;
    }
    byId("segment-count").textContent = `${format.count(segments.length)} segments, ${format.bytes(total)}. ` +
        "In order of address, row by row, with a line between segments. Free memory is red inside segments in use (fragmented), " +
        `grey where it can be returned to the driver.${this.state.selection ? " What is not selected is pale." : ""}`;
    this.showStuck(segments);
  }

  /** A run of bytes as boxes, one for each row that it touches. */
  drawPiece(context, width, total, from, segment, piece) {
    const perRow = Math.max(1, total / kRows);
    context.fillStyle = piece.block >= 0 ? colour(this.state.history.categories[this.state.history.category[piece.block]]) :
        colour(piece.whole === piece.size ? "cached" : "fragmented");
    context.globalAlpha = piece.block >= 0 && !this.selects(piece.block) ? 0.15 : 1;
    const end = from + piece.size;
    for (let row = Math.floor(from / perRow); row < kRows && row * perRow < end; ++row) {
      const x0 = Math.max(0, (from - row * perRow) / perRow) * width;
      const x1 = Math.min(1, (end - row * perRow) / perRow) * width;
      if (x1 <= x0) continue;
      context.fillRect(x0, row * kRow + 2, Math.max(0.4, x1 - x0 - (x1 - x0 > 3 ? 0.5 : 0)), kRow - 2);
      this.boxes.push({x0, x1, row, segment, piece});
    }
    context.globalAlpha = 1;
  }

  drawBorder(context, width, total, at) {
    const perRow = Math.max(1, total / kRows);
    const row = Math.min(kRows - 1, Math.floor(at / perRow));
    context.fillStyle = colour("ink");
    context.fillRect((at - row * perRow) / perRow * width, row * kRow + 1, 1, kRow);
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.canvas.clientLeft;
    const row = Math.floor((event.clientY - box.top - this.canvas.clientTop - 2) / kRow);
    return this.boxes?.find((b) => b.row === row && x >= b.x0 && x < b.x1) ?? null;
  }

  hover(event) {
    const box = this.under(event);
    if (!box) return tip(null);
    const {span} = box.segment;
    const segment = `segment ${this.state.history.address(span.offset)}, ${format.bytes(span.size)}${span.expandable ? ", expandable" : ""}` +
        `${span.stream ? `, stream ${span.stream}` : ""}${span.pool ? `, private pool ${span.pool}` : ""}`;
    const free = `free: ${format.bytes(box.piece.size)}${box.piece.whole === box.piece.size ? ", can be returned to the driver" : ", fragmented"}`;
    tip(`${box.piece.block >= 0 ? blockText(this.state.history, box.piece.block) : free}\n${segment}`, event);
  }

  /** Segments in use with most that is free, and the block in each that lives longest. */
  showStuck(segments) {
    const h = this.state.history;
    const stuck = segments.map((segment) => ({
      segment,
      free: segment.pieces.reduce((sum, p) => sum + (p.block < 0 ? p.size - p.whole : 0), 0),
      used: segment.pieces.filter((p) => p.block >= 0),
    })).filter((row) => row.used.length > 0 && row.free >= kWorthTelling).sort((a, b) => b.free - a.free);
    if (stuck.length === 0) return byId("stuck").replaceChildren(element("p", {class: "hint"}, "No segment in use has 2 MiB or more that is free."));
    const rows = stuck.slice(0, kMostPinned).map(({segment, free, used}) => {
      const longest = used.reduce((a, b) => h.released[b.block] > h.released[a.block] ? b : a).block;
      const selection = placeOf(h, longest);
      return pickable(element("tr", {},
          element("td", {class: "number"}, format.bytes(free)),
          element("td", {class: "number"}, format.bytes(segment.span.size)),
          element("td", {class: "number"}, format.count(used.length)),
          element("td", {class: "mono"}, h.names[h.place[longest]], ` (${format.bytes(h.requested[longest])})`)),
      () => this.state.select(selection), this.state.isSelected(selection), "Show only the blocks of this line");
    });
    const more = stuck.length > kMostPinned ? ` The ${kMostPinned} with most of ${stuck.length}.` : "";
    byId("stuck").replaceChildren(
        element("p", {class: "hint"}, `Fragmented: free memory in segments that are in use. The longest-lived block keeps each from being freed.${more}`),
        table([{name: "free", number: true}, {name: "of segment", number: true}, {name: "blocks in it", number: true}, {name: "longest-lived block"}], rows));
  }
}
