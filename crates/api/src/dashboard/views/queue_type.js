// One type of jobs: its numbers, its failures grouped by error, and its jobs.

import { explain, path, query, request } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { pair } from "../lib/details.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, count, localTime, number, rate, until } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { pager } from "../lib/pager.js";
import { age, jobAddress, OWN_PAGES, QUEUE_STATES, rates, typeAddress } from "../lib/queue.js";
import { badge } from "../lib/replications.js";
import { isAdmin } from "../lib/session.js";

const PAGE_ROWS = 50;
const POLL_MS = 4000;
// Grouping reads many jobs.
const FAILURES_MS = 15_000;
// There is no such type, or it is not the user's to read.
const isUnknown = ({ status }) => status === 403 || status === 404;

export function queueType(type, parameters) {
  const view = use("t-type"), url = `_jobs/${path(type)}`;
  const parts = { type, view, url };
  put(view.name, type);
  view.states.value = QUEUE_STATES.find((state) => state === parameters.get("state")) ?? "";
  parts.numbers = pollNumbers(parts);
  parts.failures = pollFailures(parts);
  parts.jobs = pollJobs(parts);
  makeActions(parts);
  view.filters.addEventListener("submit", (event) => {
    event.preventDefault();
    if (view.search.value) location.hash = jobAddress(type, view.search.value);
  });
  return { title: type, root: view.root };
}

function pollNumbers(parts) {
  const { view, url } = parts, ratesOf = rates();
  const chart = new Chart(view.chart, {
    title: "Runs per minute", series: [["finished", "completed"], ["unfinished", "failed"]], format: rate,
  });
  const polling = poll(POLL_MS, async (signal) => {
    const item = (parts.item = await request(`${url}/_type`, { signal }));
    const perMinute = ratesOf(item.totals);
    const figures = [
      ...QUEUE_STATES.map((state) => [`${state[0].toUpperCase()}${state.slice(1)}`, number(item.counts[state])]),
      ["Finished per minute", rate(perMinute.finished)],
      ["Unfinished per minute", rate(perMinute.unfinished)],
      ["Oldest due", age(item.oldest_due)],
      ["Waiting for limits", number(item.waiting_for_limits)],
      ["Added in all", number(item.totals.created)],
      ["Runs in all", number(item.totals.started)],
      ["Finished in all", number(item.totals.finished)],
      ["Removed in all", number(item.totals.removed)],
    ];
    keyed(view.figures, figures, ([label]) => label, pair);
    if (perMinute.finished !== undefined) chart.add([perMinute.finished, perMinute.unfinished]);
    view.state.replaceChildren(...(item.paused ? [badge("paused")] : []));
    view.actions.hidden = !isAdmin() || item.internal;
    put(view.pause, item.paused ? "Resume" : "Pause");
    view.retry.disabled = item.counts.dead === 0;
    view.settingsBox.hidden = !item.settings;
    put(view.settings, item.settings ? JSON.stringify(item.settings, null, 2) : "");
    showOwn(view, item);
  }, (error) => {
    if (!isUnknown(error)) return toast(`Cannot read the type. ${explain(error)}`, "bad");
    for (const { stop } of [polling, parts.failures, parts.jobs]) stop();
    return view.root.replaceChildren(el("h1", {}, "Type not found"),
      el("p", { class: "empty" }, "It does not exist, or you may not read it. ", el("a", { href: "#/queue" }, "Show all types")));
  });
  return polling;
}

function showOwn({ own }, { type, internal }) {
  own.hidden = !internal;
  if (!internal || own.firstChild) return;
  const [page, address] = OWN_PAGES[type] ?? [];
  own.append("Jobs of Davenport itself. ", ...(page ? ["Control them on the page ", el("a", { href: address }, page), "."] : []));
}

function pollFailures(parts) {
  const { view, url } = parts;
  const polling = poll(FAILURES_MS, async (signal) => {
    const { failures, other_errors: others, jobs_read: read, complete } =
      await request(`${url}/_failures${query({ state: view.failed.value })}`, { signal });
    parts.item ??= await request(`${url}/_type`, { signal });
    keyed(view.failures, failures, ({ error, outcome }) => JSON.stringify([outcome, error]), () => failureRow(parts));
    view.failureTable.hidden = failures.length === 0;
    view.noFailures.hidden = failures.length > 0;
    view.partial.hidden = complete && !others;
    const rest = others ? `The most frequent errors; ${count(others, "other")} not shown. ` : "";
    put(view.partial, `${rest}${complete ? "" : `Counted in the first ${number(read)} jobs of this state; there are more.`}`);
  }, (error) => !isUnknown(error) && toast(`Cannot group failures. ${explain(error)}`, "bad"));
  view.failed.addEventListener("change", () => polling.now());
  return polling;
}

function failureRow(parts) {
  const { view, type } = parts;
  const error = el("span", { class: "why" }), size = el("td", { class: "num", "data-label": "Jobs" });
  const last = el("td", { "data-label": "Last failure" }), example = el("a");
  const retry = el("button", { type: "button" }, "Retry all");
  let shown;
  retry.addEventListener("click", () => retryDead(parts, retry, shown.error));
  return {
    node: el("tr", {}, el("th", { scope: "row" }, error), size, last, el("td", { "data-label": "Example" }, example),
      el("td", { class: "action" }, retry)),
    update(item) {
      shown = item;
      put(error, item.error ?? (item.outcome === "silent" ? "The worker sent no heartbeat in time." : "No error given."));
      put(size, number(item.count));
      put(last, ago(item.last));
      last.title = localTime(item.last);
      put(example, item.example);
      example.href = jobAddress(type, item.example);
      // Without an error, there is nothing to tell these jobs from others by.
      retry.hidden = view.failed.value !== "dead" || item.error === null || !isAdmin() || parts.item.internal;
      retry.setAttribute("aria-label", `Retry all: ${item.error}`);
    },
  };
}

// All dead jobs, or those that died of this error.
async function retryDead({ type, url, item, numbers, failures, jobs }, button, error) {
  const what = error === undefined ? `all dead jobs of ${type}` : `all dead jobs of ${type} with this error`;
  const text = error === undefined ? `${count(item.counts.dead, "job")} will run again, as if they had never failed.`
    : `They will run again, as if they had never failed: ${error}`;
  if (!(await confirmed(`Retry ${what}?`, text, "Retry"))) return;
  await act(button, `retry ${what}`, async () => {
    const answer = await request(`${url}/_retry`, { method: "POST", json: { state: "dead", error } });
    toast(answer.running ? `Retrying. ${count(answer.count, "job")} so far, the rest in the background.` : `Retried ${count(answer.count, "job")}.`);
    await Promise.all([numbers.now(), failures.now(), jobs.now()]);
  });
}

function makeActions(parts) {
  const { view, url, type, numbers } = parts;
  view.pause.addEventListener("click", () => {
    const { paused } = parts.item, [verb, past] = paused ? ["resume", "Resumed"] : ["pause", "Paused"];
    return act(view.pause, `${verb} ${type}`, async () => {
      await request(`${url}/_${verb}`, { method: "POST" });
      toast(`${past} ${type}.${paused ? "" : " Jobs that run go on; workers get no others."}`);
      await numbers.now();
    });
  });
  view.retry.addEventListener("click", () => retryDead(parts, view.retry));
}

function pollJobs({ view, url, type }) {
  const pages = pager(view, () => polling.now());
  const polling = poll(POLL_MS, async (signal) => {
    const state = view.states.value;
    const { jobs, next } = await request(`${url}${query({ state, limit: PAGE_ROWS, after: pages.cursor() })}`, { signal });
    keyed(view.rows, jobs, ({ id }) => id, (job) => jobRow(type, job));
    view.table.hidden = jobs.length === 0;
    view.empty.hidden = jobs.length > 0;
    put(view.empty, pages.cursor() ? "No further jobs." : state ? `No ${state} jobs.` : "No jobs.");
    pages.show(next);
  }, (error) => !isUnknown(error) && toast(`Cannot list jobs. ${explain(error)}`, "bad"));
  view.states.addEventListener("change", () => {
    history.replaceState(null, "", `${typeAddress(type)}${query({ state: view.states.value })}`);
    pages.first();
    polling.now();
  });
  return polling;
}

function jobRow(type, { id }) {
  const name = el("a", { class: "name", href: jobAddress(type, id) }, id), why = el("span", { class: "why" });
  const state = el("td", { class: "state" }), worker = el("td", { class: "worker", "data-label": "Worker" });
  const [attempts, due, finished] = ["Attempts", "Due", "Finished"].map((label) => el("td", { class: "num", "data-label": label }));
  const node = el("tr", {}, state, el("td", { class: "what" }, name, why), attempts, worker, due, finished);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) name.click();
  });
  return {
    node,
    update(job) {
      if (state.textContent !== job.state) state.replaceChildren(badge(job.state));
      const reason = job.state === "finished" ? "" : job.reason, waits = job.waits_for ? `waits for the limit ${job.waits_for}` : "";
      put(why, reason ?? waits);
      // To wait is no failure.
      why.classList.toggle("dim", !reason);
      put(attempts, number(job.attempt));
      put(worker, job.worker ?? "–");
      put(due, job.state === "pending" ? until(job.due) : "–");
      due.title = localTime(job.due);
      put(finished, job.finished ? ago(job.finished) : "–");
      finished.title = localTime(job.finished);
      for (const cell of [worker, due, finished]) cell.classList.toggle("none", cell.textContent === "–");
    },
  };
}
