// Code to be copied: shown as it is typed, with a button to copy it.
import {element} from "./dom.js";

const kShownFor = 1600;

/** A button that puts `text` on the clipboard, and says so. */
export function copyButton(text, label = "Copy") {
  const button = element("button", {type: "button", class: "copy", "data-copies": text, onclick: async (event) => {
    event.stopPropagation();
    button.textContent = await copied(text) ? "Copied" : "Not allowed";
    setTimeout(() => { button.textContent = label; }, kShownFor);
  }}, label);
  return button;
}

/** Lines of Python or shell. */
export function codeBlock(lines) {
  const text = lines.join("\n");
  return element("div", {class: "code"}, element("pre", {}, element("code", {}, text)), copyButton(text));
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Older browsers, and pages that are not served: a selection can still be copied.
    const area = element("textarea", {"aria-hidden": "true"});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
