// The types of jobs that the user may read, and the service's own.

import { explain, query, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { brief, count, number, rate } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { pager } from "../lib/pager.js";
import { age, rates, typeAddress } from "../lib/queue.js";
import { badge } from "../lib/replications.js";
import { isAdmin } from "../lib/session.js";

const PAGE_ROWS = 50;
const POLL_MS = 4000;
const TYPING_MS = 250;

export function queueTypes(parameters) {
  const view = use("t-types");
  let q = parameters.get("q") ?? "";
  const pages = pager(view, () => polling.now());
  const polling = poll(POLL_MS, async (signal) => {
    const { types, next } = await request(`_jobs${query({ q, limit: PAGE_ROWS, after: pages.cursor() })}`, { signal });
    keyed(view.rows, types, ({ type }) => type, typeRow);
    say(view, types.length ? "" : q ? "No matching types." : "No types yet. An administrator can create one with PUT /_jobs/TYPE.");
    put(view.total, next || pages.cursor() ? "" : count(types.length, "type"));
    pages.show(next);
  }, (error) => say(view, `Cannot list types. ${explain(error)}`));
  view.schedules.hidden = !isAdmin();
  view.search.value = q;
  let typing;
  view.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      q = view.search.value.trim();
      history.replaceState(null, "", `#/queue${query({ q })}`);
      pages.first();
      polling.now();
    }, TYPING_MS);
  });
  view.filters.addEventListener("submit", (event) => event.preventDefault());
  return { title: "Jobs", root: view.root };
}

// In place of the table.
function say(view, text) {
  view.table.hidden = Boolean(text);
  view.empty.hidden = !text;
  put(view.empty, text);
}

const CELLS = {
  Pending: ({ counts }) => brief(counts.pending),
  Running: ({ counts }) => brief(counts.running),
  Finished: ({ counts }) => brief(counts.finished),
  Dead: ({ counts }) => brief(counts.dead),
  "Finished/min": (_, perMinute) => rate(perMinute.finished),
  "Unfinished/min": (_, perMinute) => rate(perMinute.unfinished),
  "Oldest due": ({ oldest_due: oldest }) => age(oldest),
};

function typeRow({ type }) {
  const name = el("a", { class: "name", href: typeAddress(type) }, type), marks = el("span");
  const cells = Object.keys(CELLS).map((label) => [label, el("td", { class: "num", "data-label": label })]);
  const node = el("tr", {}, el("td", { class: "what" }, name, " ", marks), ...cells.map(([, cell]) => cell));
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) name.click();
  });
  const ratesOf = rates();
  return {
    node,
    update(item) {
      const perMinute = ratesOf(item.totals), mark = item.paused ? "paused" : item.internal ? "internal" : "";
      if (marks.textContent !== mark) marks.replaceChildren(...(mark ? [badge(mark)] : []));
      for (const [label, cell] of cells) {
        put(cell, CELLS[label](item, perMinute));
        const count = item.counts[label.toLowerCase()];
        if (typeof count === "number") cell.title = number(count);
      }
      cells.find(([label]) => label === "Dead")[1].classList.toggle("bad", item.counts.dead > 0);
    },
  };
}
