// What is allocated at the chosen instant, by stack: a box is as wide as its bytes. d3 lays it out.
import * as format from "./format.js";
import {byId, element, oncePerFrame, prepared, show, tip} from "./dom.js";
import {selectionText} from "./groups.js";
import {colour} from "./theme.js";

const kRow = 18;
/** Narrower than this is not drawn; the caption says how much that is. */
const kNarrowest = 0.6;
/** Deeper ones are reached by choosing a box; so many of those that it was called from stay in sight. */
const kMostRows = 60;
const kMostAbove = 4;

export class Flame {
  constructor(state) {
    this.state = state;
    this.root = null;
    this.query = "";
    this.draw = oncePerFrame(() => this.drawNow());
    this.open = oncePerFrame(() => this.openNow());
    state.when("rank", () => this.build());
    state.when("event", () => this.open());
    state.when("selection", () => this.open());
    state.when("theme", () => this.draw());
    state.when("print", () => this.drawNow());
    window.addEventListener("resize", () => this.draw());
  }

  openNow() {
    const h = this.state.history;
    if (!h || h.blocks === 0) return;
    this.root = d3.hierarchy(treeAt(h, this.state.event, this.state.selects(h))).sum((node) => node.own).sort((a, b) => b.value - a.value);
    d3.partition()(this.root);
    this.focus = this.root;
    this.draw();
  }

  build() {
    this.query = "";
    if (!this.state.history || this.state.history.blocks === 0) return show("flame");
    this.canvas = element("canvas", {id: "flames", role: "img", tabindex: 0,
      "aria-label": "What is allocated, by stack. Down goes into the widest box, up goes out, left and right go to its neighbours."});
    const search = element("input", {type: "search", id: "search", placeholder: "search functions and files (/)",
      "aria-label": "Search stacks", oninput: (event) => { this.query = event.target.value.toLowerCase(); this.draw(); }});
    show("flame", element("h2", {}, "What is allocated at this instant, by stack"),
        element("div", {class: "tools"}, search,
            element("button", {type: "button", id: "flame-all", onclick: () => this.look(this.root)}, "Whole graph"),
            element("span", {class: "hint", id: "found"})),
        this.canvas, element("p", {class: "hint", id: "flame-drawn"}));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => tip(null));
    this.canvas.addEventListener("click", (event) => this.look(this.under(event)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  look(node) {
    if (node) this.focus = node;
    this.draw();
  }

  key(event) {
    const siblings = this.focus?.parent?.children ?? [];
    const beside = (by) => siblings[siblings.indexOf(this.focus) + by];
    const next = {
      ArrowDown: () => this.focus.children?.[0],
      ArrowUp: () => this.focus.parent,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Escape: () => this.root,
    }[event.key];
    if (!next || !this.focus) return;
    event.preventDefault();
    this.look(next());
  }

  drawNow() {
    if (!this.root || !this.canvas?.isConnected) return;
    const skipped = Math.max(0, this.focus.depth - kMostAbove);
    const rows = this.focus.depth - skipped + 1 + this.focus.height;
    const {context, width} = prepared(this.canvas, Math.min(kMostRows, rows) * kRow + 2);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.boxes = [];
    let narrow = 0;
    const scale = width / (this.focus.x1 - this.focus.x0);
    const visit = (node) => {
      const row = node.depth - skipped;
      if (row >= kMostRows) return;
      const isPath = node.depth < this.focus.depth;
      const x = isPath ? 0 : (node.x0 - this.focus.x0) * scale;
      const wide = isPath ? width : (node.x1 - node.x0) * scale;
      if (wide < kNarrowest) {
        narrow += node.value;
        return;
      }
      const matches = this.query !== "" && label(node).toLowerCase().includes(this.query);
      this.drawBox(context, node, {x, y: row * kRow, wide}, matches);
      if (!isPath) for (const child of node.children ?? []) visit(child);
    };
    for (const node of this.focus.ancestors().slice(1, kMostAbove + 1)) visit(node);
    visit(this.focus);
    const found = this.bytesThatMatch();
    const deeper = Math.max(0, rows - kMostRows);
    byId("found").textContent = this.query === "" ? "" : `${format.bytes(found)} in stacks that match`;
    byId("found").dataset.bytes = found;
    const only = this.state.selection ? `Only ${selectionText(this.state.selection)}: ` : "";
    byId("flame-drawn").textContent = `${only}${format.bytes(this.root.value)} from ${format.count(this.root.data.places)} places` +
        (narrow > 0 ? `; ${format.bytes(narrow)} are too narrow to draw: choose a box to look into it.` : ".") +
        (deeper > 0 ? ` ${format.count(deeper)} more rows lie below: choose a low box to see them.` : "");
  }

  /** Of every stack below the focus once, drawn or not. */
  bytesThatMatch() {
    if (this.query === "") return 0;
    let found = 0;
    const left = [this.focus];
    while (left.length > 0) {
      const node = left.pop();
      if (label(node).toLowerCase().includes(this.query)) found += node.value;
      else left.push(...node.children ?? []);
    }
    return found;
  }

  drawBox(context, node, {x, y, wide}, matches) {
    this.boxes.push({x, y, wide, node});
    context.globalAlpha = this.query !== "" && !matches ? 0.35 : 1;
    context.fillStyle = matches ? colour("accent") : boxColour(node);
    context.fillRect(x, y, Math.max(0.5, wide - 0.6), kRow - 1);
    context.globalAlpha = 1;
    if (wide < 34) return;
    context.save();
    context.beginPath();
    context.rect(x, y, wide - 4, kRow);
    context.clip();
    context.fillStyle = matches ? colour("paper") : node.depth === 0 ? colour("ink") : "#10151a";
    context.fillText(label(node), x + 4, y + kRow / 2);
    context.restore();
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.canvas.clientLeft;
    const y = event.clientY - box.top - this.canvas.clientTop;
    return this.boxes?.find((b) => x >= b.x && x < b.x + b.wide && y >= b.y && y < b.y + kRow)?.node ?? null;
  }

  hover(event) {
    const node = this.under(event);
    tip(node && `${label(node)}\n${format.bytes(node.value)}, ${format.percent(node.value, this.root.value)}`, event);
  }
}

function label(node) {
  return node.data.name;
}

function boxColour(node) {
  return node.depth === 0 ? colour("cached") : d3.interpolateRgb(colour(node.data.file || node.data.name), "#ffffff")(0.45);
}

/** The stacks of what is allocated and selected, as a tree: {name, file, own, children}. Leaves are categories. */
function treeAt(history, event, selects) {
  const root = {name: "all", file: "", own: 0, children: []};
  const nodes = new Map([[0, root]]);
  const of = (id) => {
    let node = nodes.get(id);
    if (node) return node;
    const file = history.names[history.nodes.file[id]];
    const line = history.nodes.line[id];
    const where = file ? ` (${format.baseName(file)}${line ? `:${line}` : ""})` : "";
    node = {name: `${history.names[history.nodes.function[id]]}${where}`, file, own: 0, children: []};
    nodes.set(id, node);
    of(history.nodes.parent[id]).children.push(node);
    return node;
  };
  const leaves = new Map();
  for (const block of history.heldAt(event)) {
    if (!selects(block)) continue;
    const id = history.node[block];
    const place = id === 0 ? history.names[history.place[block]] : "";
    const key = `${id}/${history.category[block]}/${place}`;
    let leaf = leaves.get(key);
    if (!leaf) {
      const category = format.words(history.categories[history.category[block]]);
      leaf = {name: place ? `${place}: ${category}` : category, file: history.categories[history.category[block]], own: 0, children: []};
      leaves.set(key, leaf);
      of(id).children.push(leaf);
    }
    leaf.own += history.size[block];
  }
  root.places = leaves.size;
  return root;
}
