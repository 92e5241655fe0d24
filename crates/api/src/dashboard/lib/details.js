// The parts of a replication's page, drawn from its row in the API.

import { el, keyed, put } from "./dom.js";
import { ago, bytes, duration, localTime, number, rate, throughput, until } from "./format.js";
import { badge, errorOf, infoOf, listAddress, nameOf, showEndpoint, stateOf } from "./replications.js";

const whileRunning = (format) => (value, item) => (item.state === "running" ? format(value) : "–");

const FIGURES = [
  ["Documents written", "docs_written", number],
  ["Changes pending", "changes_pending", number],
  ["Lag", "lag_seconds", whileRunning(duration)],
  ["Documents per second", "docs_per_second", whileRunning(rate)],
  ["Throughput", "bytes_per_second", whileRunning(throughput)],
  ["Data written", "bytes_written", bytes],
  ["Documents read", "docs_read", number],
  ["Documents rejected", "doc_write_failures", number],
  ["Documents filtered out", "docs_filtered", number],
  ["Revisions checked", "revisions_checked", number],
  ["Revisions missing", "missing_revisions_found", number],
  ["Attachments copied", "attachments_copied", number],
];

export function showDetails(view, item) {
  showHead(view, item);
  showError(view, item);
  showProgress(view, item);
  const info = infoOf(item);
  view.chart.hidden = item.state !== "running";
  view.figures.hidden = typeof info.docs_written !== "number";
  const figures = FIGURES.map(([label, name, format]) => [label, format(info[name], item)]);
  keyed(view.figures, figures, ([label]) => label, pair);
  showHistory(view, item.history ?? []);
  keyed(view.details, detailsOf(item, info), ([label]) => label, pair);
  put(view.raw, JSON.stringify(item, null, 2));
}

function showHead(view, item) {
  const state = stateOf(item), ended = ["completed", "failed"].includes(item.state);
  put(view.name, nameOf(item));
  if (view.state.dataset.state !== state) view.state.replaceChildren(badge((view.state.dataset.state = state)));
  if (!view.crumbs.firstChild) view.crumbs.append(parentLink(item));
  showEndpoint(view.source, item.source);
  showEndpoint(view.target, item.target);
  view.restart.disabled = state === "paused";
  view.pause.disabled = !item.job_id || ended;
  view.edit.hidden = !item.doc_id;
  put(view.pause, item.info?.paused ? "Resume" : "Pause");
  view.delete.disabled = !item.doc_id && ended;
  put(view.delete, item.doc_id ? "Delete" : "Cancel replication");
}

function parentLink({ doc_id: id, database }) {
  return id ? el("a", { href: listAddress({ database }) }, database)
    : el("a", { href: listAddress({}) }, "Replications");
}

function showError(view, item) {
  const [error, reason] = errorOf(item);
  view.alert.hidden = !error;
  put(view.alertError, error);
  put(view.alertReason, reason);
  put(view.alertHint, error ? item.hint : "");
  put(view.alertNext, item.next_try ? `Next try ${until(item.next_try)}, at ${localTime(item.next_try)}` : "");
}

function showProgress(view, item) {
  const { revisions_checked: done, changes_pending: left } = infoOf(item);
  view.progressBox.hidden = item.state !== "running" || typeof left !== "number" || typeof done !== "number";
  const share = left > 0 ? done / (done + left) : 1;
  view.progress.value = share;
  put(view.progressText, left > 0 ? `${Math.floor(share * 100)}%, ${number(left)} changes pending` : caughtUp(item));
}

// A replication that sleeps may have a run to come, and the API may have the reason behind a colon.
function caughtUp(item) {
  const { next_run: next, waits_for: waits } = infoOf(item);
  if (stateOf(item) !== "idle") return "No changes pending";
  if (!next) return "Caught up, waiting for changes";
  const reason = /: (.+)$/.exec(waits ?? "")?.[1];
  return reason ? `Next run ${until(next)}: ${reason}` : `Caught up, next run ${until(next)}`;
}

function detailsOf(item, info) {
  return [
    ["Job ID", item.job_id],
    ["Replication ID", item.id],
    ["Database", item.database],
    ["Document ID", item.doc_id],
    ["Created by", item.user],
    ["Created", localTime(item.start_time)],
    ["Next try", item.next_try && `${localTime(item.next_try)} (${until(item.next_try)})`],
    ["Last run", info.last_run && `${localTime(info.last_run)} (${ago(info.last_run)})`],
    ["Next run", info.next_run && `${localTime(info.next_run)} (${until(info.next_run)})`],
    ["Waits for", info.waits_for],
    ["Last updated", item.last_updated && `${localTime(item.last_updated)} (${ago(item.last_updated)})`],
    ["Node", item.node],
    ["Process", item.pid],
    ["Consecutive errors", item.error_count > 0 ? number(item.error_count) : null],
    ["Started from", startOf(info)],
    ["Checkpoint", info.checkpointed_source_seq],
    ["Source proxy", item.source_proxy],
    ["Target proxy", item.target_proxy],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
}

function startOf({ started_from: from, start_seq: seq }) {
  if (seq === undefined) return null;
  return from === "none" ? "the beginning" : `${from ?? "sequence"} ${JSON.stringify(seq)}`;
}

export function pair([label]) {
  const value = el("dd");
  return { node: el("div", {}, el("dt", {}, label), value), update: ([, text]) => put(value, text) };
}

function showHistory(view, history) {
  put(view.historyCount, history.length > 1 ? `${number(history.length)} events` : "");
  // Newest first, but counted from the oldest: a new event leaves the keys of the others as they are.
  const keys = history.map((event, at) => `${history.length - at} ${event.timestamp} ${event.type}`);
  const events = history.map((event, at) => ({ ...event, key: keys[at] }));
  const row = (event) => {
    const when = el("span", { class: "dim" });
    const time = el("time", { datetime: event.timestamp, title: localTime(event.timestamp) }, when);
    const reason = event.reason ? el("p", { class: "why" }, event.reason) : null;
    const node = el("li", { class: event.type }, el("b", {}, event.type), time, reason);
    return { node, update: () => put(when, ago(event.timestamp)) };
  };
  keyed(view.latest, events.slice(0, 1), ({ key }) => key, row);
  keyed(view.history, events.slice(1), ({ key }) => key, row);
  view.historyMore.hidden = events.length < 2;
}

export function showRejected(view, failures) {
  const newest = [...failures].reverse();
  view.rejectedBox.hidden = newest.length === 0;
  keyed(view.rejected, newest, ({ id, rev, time }) => `${id} ${rev} ${time}`, (failure) => {
    const cell = (label, text, kind) => el("td", { "data-label": label, class: kind }, text ?? "–");
    const when = el("td", { "data-label": "Time", title: localTime(failure.time) });
    const texts = [cell("Revision", failure.rev, "mono"), cell("Error", failure.error), cell("Reason", failure.reason)];
    const node = el("tr", {}, el("th", { scope: "row" }, failure.id), ...texts, when);
    return { node, update: () => put(when, ago(failure.time)) };
  });
}
