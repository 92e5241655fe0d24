// Remotes, and the replications of one of them.

import { explain, path, query, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, count, localTime, number, until } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, toast } from "../lib/messages.js";

const POLL_MS = 4000;
const REMOTES_MAX = 100;
const JOBS_MAX = 100;
const COUNTS = ["running", "waiting", "retrying", "asleep", "failed"];

export function remotes(parameters) {
  const view = use("t-remotes");
  const name = parameters.get("name") ?? "";
  view.state.value = parameters.get("state") ?? "";
  view.one.hidden = !name;
  put(view.name, name);
  const listing = poll(POLL_MS, async (signal) => {
    const { remotes: all, after } = await request(`_remotes${query({ limit: REMOTES_MAX })}`, { signal });
    put(view.total, number(all.length));
    keyed(view.remotes, all, (remote) => remote.name, () => remoteRow(() => listing.now()));
    view.none.hidden = all.length > 0;
    view.incomplete.hidden = !after;
  }, (error) => toast(`Cannot list remotes. ${explain(error)}`, "bad"));
  if (name) {
    const jobs = poll(POLL_MS, async (signal) => {
      const asked = query({ state: view.state.value, limit: JOBS_MAX });
      const { jobs: found, after } = await request(`_remotes/${path(name)}${asked}`, { signal });
      keyed(view.jobs, found, (job) => job.job_id, () => jobRow());
      put(view.noJobs, view.state.value ? `No ${view.state.value} replications.` : "No replications yet.");
      view.noJobs.hidden = found.length > 0;
      view.more.hidden = !after;
    }, (error) => {
      if (error.status !== 404) return toast(`Cannot show ${name}. ${explain(error)}`, "bad");
      jobs.stop();
      put(view.noJobs, "There is no such remote.");
      view.noJobs.hidden = false;
    });
    view.state.addEventListener("change", () => {
      history.replaceState(null, "", `#/remotes${query({ name, state: view.state.value })}`);
      jobs.now();
    });
  }
  return { title: name || "Remotes", root: view.root };
}

const cell = (label, ...children) => el("td", { "data-label": label }, ...children);

function stateOf({ enabled, followed, looked_up: lookedUp, states }) {
  if (!enabled) return ["paused", "paused"];
  if (!followed) return ["failed", "source not followed"];
  if (states.retrying || states.failed) return ["crashing", "failing"];
  if (states.running) return ["running", "running"];
  return states.waiting || !lookedUp ? ["pending", "waiting"] : ["idle", "up to date"];
}

function remoteRow(again) {
  const name = el("a"), source = el("span", { class: "dim small where" }), urls = el("span", { class: "end" });
  const state = el("span"), threads = el("td", { class: "num", "data-label": "Threads" });
  const counts = COUNTS.map((label) => el("td", { class: "num", "data-label": `${label[0].toUpperCase()}${label.slice(1)}` }));
  const start = el("button", { type: "button" }, "Start"), pause = el("button", { type: "button" });
  let shown;
  const set = (action, verb, told) => act(pause, `${verb} ${shown.name}`, async () => {
    await request(path(shown.database, shown.id, action), { method: "POST", json: {} });
    toast(told);
    await again();
  });
  pause.addEventListener("click", () => shown.enabled
    ? set("_pause", "pause", `Paused ${shown.name}. Its checkpoints are kept.`)
    : set("_resume", "resume", `Resumed ${shown.name}.`));
  start.addEventListener("click", () => act(start, `start ${shown.name}`, async () => {
    const { started } = await request("_remotes/_start", { method: "POST", json: { remotes: [shown.name], all: true, now: true } });
    toast(`Started ${count(started, "replication")} of ${shown.name}.`);
    await again();
  }));
  return {
    node: el("tr", {}, el("th", { scope: "row" }, name, source), cell("To", urls), cell("State", state), threads, ...counts,
      el("td", {}, el("span", { class: "actions" }, pause, start))),
    update(item) {
      shown = item;
      put(name, item.name);
      name.href = `#/remotes${query({ name: item.name })}`;
      put(source, item.source);
      put(urls, item.urls.join(" "));
      const [kind, text] = stateOf(item);
      state.className = `badge ${kind}`;
      put(state, text);
      put(threads, number(item.threads));
      COUNTS.forEach((label, nth) => put(counts[nth], number(item.states[label])));
      start.disabled = !item.enabled;
      start.setAttribute("aria-label", `Start ${item.name}`);
      put(pause, item.enabled ? "Pause" : "Resume");
      pause.setAttribute("aria-label", `${pause.textContent} ${item.name}`);
    },
  };
}

const BADGES = { waiting: "pending", retrying: "crashing", asleep: "idle" };

function jobRow() {
  const database = el("a"), url = el("span", { class: "end" }), state = el("span");
  const since = cell("Since"), waits = cell("Waits for"), next = cell("Next run"), node = cell("Node");
  const error = el("td", { "data-label": "Last error", class: "why" });
  return {
    node: el("tr", {}, el("th", { scope: "row" }, database), cell("To", url), cell("State", state), since, waits, next, node, error),
    update(item) {
      put(database, item.database);
      database.href = `#/job/${path(item.job_id)}`;
      put(url, item.url);
      state.className = `badge ${BADGES[item.state] ?? item.state}`;
      put(state, item.state);
      put(since, ago(item.since));
      since.title = localTime(item.since);
      put(waits, item.waits_for ?? "–");
      put(next, item.next_run ? until(item.next_run) : "–");
      put(node, item.node ?? "–");
      put(error, item.last_error ?? "");
    },
  };
}
