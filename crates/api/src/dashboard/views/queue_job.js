// One job of the queue: its data and result, its attempts, and the buttons that control it.

import { explain, isLost, path, request } from "../lib/api.js";
import { pair } from "../lib/details.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, duration, localTime, number, until } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { OWN_PAGES, parseJob, typeAddress } from "../lib/queue.js";
import { badge } from "../lib/replications.js";
import { isAdmin } from "../lib/session.js";

const POLL_MS = 3000;

export function queueJob(type, id) {
  const view = use("t-queued-job"), title = `${id} · ${type}`;
  if (isLost(id)) {
    view.root.replaceChildren(...notFound(type, "No browser can ask for a job with this ID; curl --path-as-is can."));
    return { title, root: view.root };
  }
  const url = `_jobs/${path(type, id)}`;
  put(view.name, id);
  put(view.type, type);
  view.type.href = typeAddress(type);
  let item;
  const polling = poll(POLL_MS, async (signal) => {
    item = await request(url, { signal, parse: parseJob });
    show(view, item);
  }, (error) => {
    if (error.status !== 404) return toast(`Cannot read this job. ${explain(error)}`, "bad");
    polling.stop();
    return view.root.replaceChildren(...notFound(type, "It was removed, has expired, or never existed."));
  });
  view.raw.href = new URL(`../${url}`, document.baseURI).href;
  view.retry.addEventListener("click", () => act(view.retry, `retry ${id}`, async () => {
    await request(`${url}/_retry`, { method: "POST" });
    toast("The job is pending.");
    await polling.now();
  }));
  view.remove.addEventListener("click", async () => {
    const running = item?.state === "running" ? " Its worker is told to stop." : "";
    if (!(await confirmed(`Remove job ${id}?`, `The job, its data and its result are removed.${running}`, "Remove job", "Keep job"))) return;
    await act(view.remove, `remove ${id}`, async () => {
      await request(url, { method: "DELETE" });
      toast(`Removed ${id}.`);
      location.hash = typeAddress(type);
    });
  });
  return { title, root: view.root };
}

const notFound = (type, text) => [
  el("h1", {}, "Job not found"),
  el("p", { class: "empty" }, `${text} `, el("a", { href: typeAddress(type) }, `Show the jobs of ${type}`)),
];

function show(view, item) {
  const { state, internal, attempts, texts } = item;
  if (view.state.textContent !== state) view.state.replaceChildren(badge(state));
  view.actions.hidden = !isAdmin() || internal;
  view.retry.disabled = state !== "dead";
  const reason = state === "finished" ? "" : item.reason;
  const alert = item.unreadable ? `Its data cannot be read: ${item.unreadable}` : reason;
  view.alert.hidden = !alert;
  put(view.alertError, alert);
  showOwn(view, item);
  view.noAttempts.hidden = attempts.length > 0;
  view.attempts.hidden = attempts.length === 0;
  const newest = attempts.map((attempt, at) => ({ ...attempt, key: `${at} ${attempt.start}` })).reverse();
  keyed(view.attempts, newest, ({ key }) => key, attemptRow);
  keyed(view.details, detailsOf(item), ([label]) => label, pair);
  const parts = ["data", "progress", "result", "error"].filter((name) => texts[name] !== undefined);
  keyed(view.parts, parts.map((name) => ({ name, text: texts[name] })), ({ name }) => name, partRow);
  view.rawBox.hidden = false;
}

function showOwn({ own }, { id, type, internal }) {
  own.hidden = !internal;
  if (!internal || own.firstChild) return;
  const [page, address, addressOf] = OWN_PAGES[type] ?? [];
  own.append("A job of Davenport itself; its data is not shown. ",
    ...(page ? ["Control it on the page ", el("a", { href: addressOf?.(id) ?? address }, page), "."] : []));
}

function attemptRow({ start, worker }) {
  const outcome = el("b"), when = el("span", { class: "dim" }), took = el("span", { class: "dim" }), why = el("p", { class: "why" });
  const time = el("time", { datetime: start, title: localTime(start) }, when);
  const node = el("li", {}, outcome, time, " ", took, el("div", { class: "mono small" }, worker), why);
  return {
    node,
    update(attempt) {
      const state = attempt.outcome ?? "running";
      node.className = state;
      put(outcome, state);
      put(when, ago(start));
      put(took, attempt.end ? `took ${duration((Date.parse(attempt.end) - Date.parse(start)) / 1000)}` : "");
      put(why, attempt.reason);
    },
  };
}

function detailsOf(item) {
  const at = (time, told) => time && `${localTime(time)} (${told(time)})`;
  return [
    ["Type", item.type],
    ["Created", at(item.created, ago)],
    ["Due", item.state === "pending" && at(item.due, until)],
    ["Waits for limit", item.waits_for],
    ["Finished", at(item.finished, ago)],
    ["Expires", at(item.expires, until)],
    ["Attempts", number(item.attempt)],
    ["Failures in a row", item.failures > 0 && number(item.failures)],
    ["Worker", item.worker],
  ].filter(([, value]) => value);
}

function partRow({ name }) {
  const title = `${name[0].toUpperCase()}${name.slice(1)}`;
  const text = el("pre", { tabindex: "0", "aria-label": title });
  return {
    node: el("section", { class: "card" }, el("h2", {}, title), text),
    update: (part) => put(text, part.text),
  };
}
