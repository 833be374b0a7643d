// Light or dark, and the colours that the canvases take from the style sheet.

let known = {};

export function colour(name) {
  known[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || null;
  return known[name] ?? otherColour(name);
}

/** Of the lanes: pale, since the strong ones are categories. */
export function stageColour(stage) {
  return colour(kStageColours[stage] ?? "stage_other");
}

const kStageColours = {model: "stage_model", load: "stage_load", step: "stage_step", forward: "stage_step", backward: "stage_step",
  optimizer: "stage_step", evaluation: "stage_evaluation", generation: "stage_generation", save: "stage_save"};

/** For what has no colour of its own (places, modules): the same name has the same one each time. */
function otherColour(name) {
  let hash = 7;
  for (const c of name) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
  return `hsl(${hash % 360}, ${40 + (hash >>> 9) % 25}%, ${isDark() ? 58 : 48}%)`;
}

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

function setDark(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  known = {};
}

/** Paper is white: `draw` is called, and must draw at once, before and after printing from dark. */
export function printLight(draw) {
  let wasDark = false;
  window.addEventListener("beforeprint", () => {
    wasDark = isDark();
    setDark(false);
    draw();
  });
  window.addEventListener("afterprint", () => {
    setDark(wasDark);
    draw();
  });
}

/** `changed` is called after each change; the system's wish holds until the button is pressed. */
export function watchTheme(button, changed) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const set = (dark) => {
    setDark(dark);
    changed();
  };
  set(system.matches);
  let pressed = false;
  system.addEventListener("change", () => pressed || set(system.matches));
  button.addEventListener("click", () => {
    pressed = true;
    set(!isDark());
  });
}
