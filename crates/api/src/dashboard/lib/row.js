// A row of the list of replications.

import { el, put } from "./dom.js";
import { ago, count, duration, number, rate, until } from "./format.js";
import { addressOf, badge, errorText, nameOf, showEndpoint, stateOf } from "./replications.js";

// Label, the API's name of the order, and whether the values are numbers.
export const COLUMNS = [
  ["State", "state"],
  ["Replication", "id"],
  ["Source", "source"],
  ["Target", "target"],
  ["Type", "type"],
  ["Lag", "lag", "num"],
  ["Docs/s", "rate", "num"],
  ["Next try", "next_try", "num"],
  ["Last change", "last_updated", "num"],
];

const cell = (label, kind, ...children) => el("td", { class: kind, "data-label": label }, ...children);

export function replicationRow(chosen, choose) {
  const box = el("input", { type: "checkbox", on: { change: () => choose(box.checked) } });
  const state = el("td", { class: "state" });
  const name = el("a", { class: "name" });
  const where = el("span", { class: "dim small where" }), error = el("span", { class: "why" });
  const [source, target] = [el("span", { class: "end" }), el("span", { class: "end" })];
  const type = cell("Type", "type"), lag = cell("Lag", "num"), speed = cell("Docs/s", "num");
  const next = cell("Next try", "num"), changed = cell("Last change", "num");
  const node = el("tr", {}, el("td", { class: "pick" }, box), state,
    el("td", { class: "what" }, name, where, error), cell("Source", "url", source), cell("Target", "url", target),
    type, lag, speed, next, changed);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a, input, .pick") && !String(getSelection())) name.click();
  });
  let shown;
  return {
    node,
    update(item) {
      if (shown !== stateOf(item)) state.replaceChildren(badge((shown = stateOf(item))));
      box.checked = chosen(item);
      box.setAttribute("aria-label", `Select ${nameOf(item)}`);
      node.classList.toggle("chosen", box.checked);
      name.href = addressOf(item);
      put(name, nameOf(item));
      put(where, item.doc_id ? item.database : `no document${item.user ? `, requested by ${item.user}` : ""}`);
      put(error, errorText(item) || rejected(item));
      showEndpoint(source, item.source);
      showEndpoint(target, item.target);
      put(type, item.type);
      put(lag, item.lag_seconds === null ? "–" : duration(item.lag_seconds));
      put(speed, rate(item.docs_per_second));
      speed.title = item.docs_written === null ? "" : `${number(item.docs_written)} written`;
      put(next, until(item.next_try));
      put(changed, ago(item.last_updated));
      for (const cell of [lag, speed, next]) cell.classList.toggle("none", cell.textContent === "–");
    },
  };
}

const rejected = ({ doc_write_failures: failures }) => (failures > 0 ? count(failures, "rejected document") : "");
