// Elements are built here and text goes in as text, so that no name in a record can become markup.

/** element("td", {class: "number"}, "12", child): a new element with attributes and children. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same inside an SVG drawing. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Shows a section with this content, or hides it where there is none. */
export function show(id, ...children) {
  const section = byId(id);
  section.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  section.hidden = children.length === 0;
  return section;
}

export function table(headings, rows) {
  const head = headings.map((h) => element("th", {class: [h.number ? "number" : "", h.wide ? "wide" : ""].join(" ").trim() || null, scope: "col"}, h.name));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

/** A row that does something when it is clicked on, or when Enter is pressed on it. */
export function pickable(row, action, chosen, title) {
  row.classList.add("row");
  row.classList.toggle("chosen", chosen);
  row.tabIndex = 0;
  row.title = title;
  row.addEventListener("click", action);
  row.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target === row) action(); });
  return row;
}

export function swatch(name, fill) {
  const box = element("span", {class: "swatch"});
  box.style.background = fill;
  return element("span", {}, box, name);
}

/** A short text at the pointer; none hides it. */
export function tip(text, event) {
  const box = byId("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const room = {x: window.innerWidth - box.offsetWidth - 8, y: window.innerHeight - box.offsetHeight - 8};
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, room.x))}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, room.y))}px`;
}

/** A canvas with the device's own pixels, drawn in CSS pixels; `height` where the style has none. */
export function prepared(canvas, height = 0) {
  if (height) canvas.style.height = `${height}px`;
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const tall = canvas.clientHeight;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(tall * ratio));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  return {context, width, height: tall};
}

/** Runs `draw` once in the next frame, however often it is asked for. */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
