// Keyboard shortcuts; the dialog `help` in index.html lists them.

import { $ } from "./dom.js";
import { refresh, togglePaused } from "./live.js";

const SEQUENCE_MS = 1000;
const GO = { o: "#/", r: "#/replications", j: "#/queue", u: "#/rules", m: "#/remotes", s: "#/nodes", n: "#/new" };
let goPressed = 0;

function focusRow(by) {
  const links = [...document.querySelectorAll(".rows .name, .attention .cause")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

const KEYS = {
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => $("help").showModal(),
  "[": () => document.querySelector("[data-previous]:enabled")?.click(),
  "]": () => document.querySelector("[data-next]:enabled")?.click(),
  g: () => { goPressed = Date.now(); },
  j: () => focusRow(1),
  k: () => focusRow(-1),
  n: () => { location.hash = GO.n; },
  p: togglePaused,
  x: () => document.activeElement.closest(".rows tr")?.querySelector("input")?.click(),
  r: refresh,
};

export function listenForKeys(enabled) {
  document.addEventListener("keydown", (event) => {
    if (!enabled() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const hash = Date.now() - goPressed < SEQUENCE_MS && GO[event.key];
    if (hash) {
      goPressed = 0;
      location.hash = hash;
    } else if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
    else return;
    event.preventDefault();
  });
}
