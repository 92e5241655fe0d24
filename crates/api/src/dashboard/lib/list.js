// A list of replications: filters, rows and pages. The views of jobs and of documents say what is listed and how it is
// requested. Only the page that is shown is read.

import { databases, explain, query, request } from "./api.js";
import { el, keyed, put, use } from "./dom.js";
import { poll } from "./live.js";
import { stateOf } from "./replications.js";
import { COLUMNS, replicationRow } from "./row.js";

export const PAGE_ROWS = 50;
const POLL_MS = 4000;
const TYPING_MS = 250;
// The API's names of the states that only the dashboard tells apart.
const API_STATES = { idle: "running", unreachable: "running", paused: "pending" };

export function list(kind, parameters) {
  const view = use("t-list");
  const filter = {
    q: parameters.get("q") ?? "",
    database: parameters.get("database") ?? "",
    states: (parameters.get("states") ?? "").split(",").filter(Boolean),
  };
  const pages = [undefined];
  let next;

  const rows = poll(POLL_MS, async (signal) => {
    const page = await request(kind.url({ ...filter, states: apiStates(filter.states) }, pages.at(-1)), { signal });
    const items = kind.rows(page).filter((item) => matches(item, filter.states, kind.states));
    next = kind.next(page);
    put(view.total, kind.total(page.total_rows, filter));
    keyed(view.rows, items, (item) => item.job_id ?? `${item.database}/${item.doc_id}`, replicationRow);
    say(items.length ? "" : emptyText(page));
    showPager();
  }, (error) => {
    const missing = "This database does not exist yet. It is created with the first replication.";
    say(error.status === 404 ? missing : `Cannot list replications. ${explain(error)}`);
    next = undefined;
    put(view.total, "");
    showPager();
  });

  function showPager() {
    view.previous.disabled = pages.length === 1;
    view.next.disabled = !next;
    put(view.page, `Page ${pages.length}`);
  }

  function emptyText(page) {
    if (next) return "No matches on this page. Try the next page.";
    return page.total_rows ? kind.empty : "No replications yet.";
  }
  // In place of the table.
  function say(text) {
    view.table.hidden = Boolean(text);
    view.empty.hidden = !text;
    put(view.empty, text);
  }
  function turn(pageChange) {
    pageChange();
    rows.now();
    scrollTo({ top: 0 });
  }
  function changed() {
    pages.length = 1;
    history.replaceState(null, "", `#/${kind.name}${query({ ...filter, states: filter.states.join(",") })}`);
    rows.now();
  }

  put(view.title, kind.title);
  head(view, kind);
  stateChips(view, kind, filter, changed);
  view.search.value = filter.q;
  let typing;
  view.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter.q = view.search.value.trim(); changed(); }, TYPING_MS);
  });
  view.filters.addEventListener("submit", (event) => event.preventDefault());
  view.database.addEventListener("change", () => { filter.database = view.database.value; changed(); });
  view.next.addEventListener("click", () => turn(() => next && pages.push(next)));
  view.previous.addEventListener("click", () => turn(() => pages.length > 1 && pages.pop()));
  fillDatabases(view.database, filter.database, kind.everywhere);
  return { title: kind.title, root: view.root };
}

const apiStates = (states) => [...new Set(states.map((state) => API_STATES[state] ?? state))].join(",");

// Where the list has no chip for idle, unreachable and paused, running and pending include them.
function matches(item, states, chips) {
  const state = stateOf(item);
  return states.length === 0 || states.includes(state) || (!chips.includes(state) && states.includes(item.state));
}

function head(view, kind) {
  put(view.searchLabel, kind.search);
  view.search.placeholder = kind.search;
  view.search.title = "Shortcut: /";
  const words = ["State", "Replication", COLUMNS.at(-1)];
  for (const label of COLUMNS) {
    view.columns.append(el("th", { scope: "col", class: words.includes(label) ? null : "num" }, label));
  }
}

function stateChips(view, kind, filter, changed) {
  const choose = () => {
    filter.states = [...view.states.querySelectorAll("input:checked")].map((checked) => checked.value);
    changed();
  };
  for (const state of kind.states) {
    const input = el("input", { type: "checkbox", value: state, on: { change: choose } });
    input.checked = filter.states.includes(state);
    view.states.append(el("label", { class: `chip ${state}` }, input, el("span", {}, state)));
  }
}

// `everywhere` labels the choice of no database.
export async function fillDatabases(select, chosen, everywhere) {
  const names = await databases().catch(() => []);
  const all = new Set([...(names.length ? names : ["_replicator"]), ...(chosen ? [chosen] : [])]);
  const options = [...all].map((name) => el("option", { value: name }, name));
  if (everywhere) options.unshift(el("option", { value: "" }, everywhere));
  select.replaceChildren(...options);
  if (chosen) select.value = chosen;
}
