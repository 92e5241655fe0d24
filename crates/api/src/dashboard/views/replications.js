// All replications, with and without a document: filters that count what they show, any order, actions on many. Only the
// page that is shown is read; the service filters, counts and sorts.

import { explain, query, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { count, number } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { pager } from "../lib/pager.js";
import { actOn, consequence, stateOf, STATES } from "../lib/replications.js";
import { COLUMNS, replicationRow } from "../lib/row.js";

const PAGE_ROWS = 50;
const POLL_MS = 4000;
const TYPING_MS = 250;
// The first click on these shows the largest values.
const LARGEST_FIRST = ["lag", "rate", "last_updated"];

const CONSEQUENCES = {
  restart: "They run now and their error counts are reset. Those that are paused stay paused.",
  pause: "Running ones write a checkpoint and stop. They stay paused until they are resumed. Ended ones stay as they are.",
  resume: "Paused ones continue from their last checkpoint.",
  delete: "Their documents are deleted, and requests without a document are cancelled. Running ones write a last "
    + "checkpoint and stop. Documents that have been copied stay on the targets.",
};

export function replications(parameters) {
  const view = use("t-list");
  const text = (name) => parameters.get(name) ?? "";
  const filter = {
    q: text("q"), database: text("database"), cause: text("cause"), states: text("states").split(",").filter(Boolean),
    sort: text("sort") || "state", descending: text("descending") === "true",
  };
  const parts = { view, filter, chosen: new Map(), everything: false, page: null };

  parts.pager = pager(view, () => parts.rows.now());
  parts.rows = poll(POLL_MS, async (signal) => {
    const parameters = { ...asked(filter), sort: filter.sort, descending: filter.descending || "" };
    const url = `_scheduler/replications${query({ ...parameters, limit: PAGE_ROWS, bookmark: parts.pager.cursor() })}`;
    parts.page = await request(url, { signal });
    showPage(parts);
  }, (error) => say(view, `Cannot list replications. ${explain(error)}`));

  makeHead(parts);
  makeFilters(parts);
  makeBulk(parts);
  return { title: "Replications", root: view.root };
}

const asked = ({ q, database, cause, states }) => ({ q, database, cause, states: states.join(",") });

function changed(parts) {
  const { filter, rows, chosen } = parts;
  parts.pager.first();
  chosen.clear();
  parts.everything = false;
  const order = filter.sort === "state" && !filter.descending ? {} : { sort: filter.sort, descending: filter.descending || "" };
  history.replaceState(null, "", `#/replications${query({ ...asked(filter), ...order })}`);
  showOrder(parts);
  rows.now();
}

// In place of the table.
function say(view, text) {
  view.table.hidden = Boolean(text);
  view.empty.hidden = !text;
  put(view.empty, text);
}

function showPage(parts) {
  const { view, page, filter } = parts;
  const { total_rows: total, matching, replications: items } = page;
  put(view.total, matching === total ? number(total) : `${number(matching)} of ${number(total)}`);
  view.incomplete.hidden = page.complete;
  const row = (item) => replicationRow(
    ({ key }) => parts.everything || parts.chosen.has(key), (checked) => choose(parts, [item.key], checked));
  keyed(view.rows, items, ({ key }) => key, row);
  say(view, items.length ? "" : total ? "No matching replications." : "No replications yet.");
  for (const state of STATES) put(view.root.querySelector(`[data-count=${state}]`), number(page.states[state]));
  for (const chip of view.states.querySelectorAll(".optional")) {
    chip.hidden = !page.states[chip.dataset.state] && !filter.states.includes(chip.dataset.state);
  }
  fillDatabases(view.database, filter.database, page.databases);
  parts.pager.show(page.bookmark);
  showChosen(parts);
}

function makeHead(parts) {
  const { view, filter } = parts;
  const order = (sort, descending) => { Object.assign(filter, { sort, descending }); changed(parts); };
  for (const [label, sort, kind] of COLUMNS) {
    const click = () => order(sort, filter.sort === sort ? !filter.descending : LARGEST_FIRST.includes(sort));
    const button = el("button", { type: "button", class: "sort", on: { click } }, label);
    view.columns.append(el("th", { scope: "col", class: `${kind ?? ""} c-${sort}`, "data-sort": sort }, button));
    view.order.append(el("option", { value: sort }, label));
  }
  view.order.addEventListener("change", () => order(view.order.value, LARGEST_FIRST.includes(view.order.value)));
  view.all.addEventListener("change", () => {
    choose(parts, (parts.page?.replications ?? []).map(({ key }) => key), view.all.checked);
  });
  showOrder(parts);
}

function showOrder({ view, filter }) {
  view.order.value = filter.sort;
  for (const head of view.columns.querySelectorAll("[data-sort]")) {
    if (head.dataset.sort !== filter.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", filter.descending ? "descending" : "ascending");
  }
}

function makeFilters(parts) {
  const { view, filter } = parts;
  for (const state of STATES) {
    const change = () => {
      filter.states = [...view.states.querySelectorAll("input:checked")].map((checked) => checked.value);
      changed(parts);
    };
    const input = el("input", { type: "checkbox", value: state, on: { change } });
    input.checked = filter.states.includes(state);
    const optional = state === "initializing" ? "optional" : "";
    const texts = [el("span", {}, state), " ", el("b", { "data-count": state })];
    view.states.append(el("label", { class: `chip ${state} ${optional}`, "data-state": state }, input, ...texts));
  }
  view.search.value = filter.q;
  let typing;
  view.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter.q = view.search.value.trim(); changed(parts); }, TYPING_MS);
  });
  view.filters.addEventListener("submit", (event) => event.preventDefault());
  view.database.addEventListener("change", () => { filter.database = view.database.value; changed(parts); });
  view.cause.hidden = !filter.cause;
  put(view.causeText, filter.cause);
  view.causeClear.addEventListener("click", () => {
    filter.cause = "";
    view.cause.hidden = true;
    changed(parts);
  });
}

function fillDatabases(select, chosen, counts) {
  const names = new Set([...Object.keys(counts), ...(chosen ? [chosen] : [])]);
  const options = [["", "All databases"], ...[...names].sort().map((name) => [name, `${name} (${number(counts[name] ?? 0)})`])];
  keyed(select, options, ([name]) => name, ([name]) => {
    const node = el("option", { value: name });
    return { node, update: ([, label]) => put(node, label) };
  });
  select.value = chosen;
}

function choose(parts, keys, checked) {
  const { chosen, page } = parts;
  if (parts.everything) {
    parts.everything = false;
    for (const item of page.replications) chosen.set(item.key, item);
  }
  for (const item of page.replications.filter(({ key }) => keys.includes(key))) {
    if (checked) chosen.set(item.key, item);
    else chosen.delete(item.key);
  }
  showPage(parts);
}

function showChosen({ view, page, chosen, everything }) {
  const items = page.replications, here = items.filter(({ key }) => chosen.has(key)).length;
  view.all.checked = everything || (items.length > 0 && here === items.length);
  view.all.indeterminate = !everything && here > 0 && here < items.length;
  view.bulk.hidden = chosen.size === 0 && !everything;
  put(view.chosen, `${number(everything ? page.matching : chosen.size)} selected`);
  view.everything.hidden = everything || !view.all.checked || page.matching <= chosen.size;
  put(view.everything, `Select all ${number(page.matching)}`);
}

function makeBulk(parts) {
  const { view, chosen, filter } = parts;
  const clear = () => { chosen.clear(); parts.everything = false; showPage(parts); };
  view.everything.addEventListener("click", () => { parts.everything = true; showPage(parts); });
  view.clear.addEventListener("click", clear);
  for (const button of view.bulk.querySelectorAll("[data-action]")) {
    const { action } = button.dataset;
    button.addEventListener("click", async () => {
      const size = parts.everything ? parts.page.matching : chosen.size;
      const verb = button.textContent, what = count(size, "replication");
      const [one] = chosen.values();
      const alone = action === "delete" && size === 1 && one;
      const text = alone ? consequence(one) : `${parts.everything ? "" : states([...chosen.values()])}${CONSEQUENCES[action]}`;
      if (!(await confirmed(`${verb} ${what}?`, text, `${verb} ${what}`))) return;
      const matching = { ...asked(filter), states: filter.states };
      const target = parts.everything ? { matching } : { keys: [...chosen.keys()] };
      await act(button, `${action} ${what}`, async () => {
        const { text, kind } = await actOn(action, target);
        toast(text, kind);
        clear();
        await parts.rows.now();
      });
    });
  }
}

// "2 failed, 1 running. "
function states(items) {
  const counts = STATES.map((state) => [items.filter((item) => stateOf(item) === state).length, state]);
  return `${counts.filter(([size]) => size).map(([size, state]) => `${number(size)} ${state}`).join(", ")}. `;
}
