// A row of a list of jobs or documents.

import { el, put } from "./dom.js";
import { ago, brief, count, duration, rate } from "./format.js";
import { addressOf, badge, errorText, infoOf, nameOf, showEndpoint, stateOf } from "./replications.js";

export const COLUMNS = ["State", "Replication", "Docs/s", "Pending", "Lag", "Written", "Node or last update"];

export function replicationRow() {
  const state = el("td", { class: "state" });
  const name = el("a", { class: "name" });
  const [source, target] = [el("span", { class: "end" }), el("span", { class: "end" })];
  const arrow = el("span", { class: "arrow", "aria-label": "to" }, "→");
  const route = el("span", { class: "route" }, source, arrow, target);
  const error = el("span", { class: "why" });
  const cells = COLUMNS.slice(2, -1).map((label) => el("td", { class: "num", "data-label": label }));
  const place = el("td", { class: "place", "data-label": COLUMNS.at(-1) });
  const node = el("tr", {}, state, el("td", { class: "what" }, name, route, error), ...cells, place);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) name.click();
  });
  let shown;
  return {
    node,
    update(item) {
      if (shown !== stateOf(item)) state.replaceChildren(badge((shown = stateOf(item))));
      name.href = addressOf(item);
      put(name, nameOf(item));
      showEndpoint(source, item.source);
      showEndpoint(target, item.target);
      const info = infoOf(item), running = item.state === "running";
      put(error, errorText(item) || rejected(info));
      const texts = [
        running ? rate(info.docs_per_second) : "–",
        brief(info.changes_pending),
        running ? duration(info.lag_seconds) : "–",
        brief(info.docs_written),
      ];
      cells.forEach((cell, at) => put(cell, texts[at]));
      put(place, item.node ?? (item.last_updated ? ago(item.last_updated) : ""));
    },
  };
}

const rejected = (info) => (info.doc_write_failures > 0 ? count(info.doc_write_failures, "rejected document") : "");
