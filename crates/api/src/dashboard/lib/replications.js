// What rows, cards and pages of a replication have in common. An item is a row of _scheduler/replications, which has the
// state, or of _scheduler/jobs or _scheduler/docs, which have parts of it in `info`.

import { path, query, request } from "./api.js";
import { el } from "./dom.js";
import { count, number } from "./format.js";

// Those that need attention come first, as in the API.
export const STATES = [
  "failed", "unreachable", "crashing", "paused", "pending", "initializing", "running", "idle", "completed",
];

// Idle, unreachable and paused are members of `info` in the API, and states here.
export function stateOf(item) {
  if (item.info?.paused && item.state === "pending") return "paused";
  if (item.state !== "running") return item.state;
  return item.info?.unreachable ? "unreachable" : item.info?.idle ? "idle" : "running";
}

export const nameOf = (item) => item.doc_id ?? item.id ?? item.job_id;

export const infoOf = (item) => (typeof item.info === "object" ? (item.info ?? {}) : {});

export function errorOf(item) {
  if (item.cause) return [item.error, item.reason];
  if (typeof item.info === "string") return [item.info, ""];
  if (!["unreachable", "crashing", "failed"].includes(stateOf(item))) return ["", ""];
  return [item.info?.error ?? "", item.info?.reason ?? ""];
}

// The error on one line.
export function errorText(item) {
  const [error, reason] = errorOf(item);
  if (!error) return "";
  const times = item.error_count > 1 ? ` (${number(item.error_count)} times)` : "";
  return `${error}${reason ? `: ${reason}` : ""}${times}`;
}

export function addressOf(item) {
  if (item.job_id) return `#/job/${encodeURIComponent(item.job_id)}`;
  return `#/doc/${path(item.database, item.doc_id)}`;
}

export const listAddress = (filter) => `#/replications${query(filter)}`;

export const badge = (state) => el("span", { class: `badge ${state}` }, state);

// Dims the host: the database tells replications apart.
export function showEndpoint(node, url) {
  const shown = url ?? "not set";
  if (node.title === shown) return;
  node.title = shown;
  const match = /^https?:\/\/([^/]+)\/(.*?)\/?$/.exec(shown);
  const [host, db] = match ? [match[1], match[2]] : [shown, ""];
  node.replaceChildren(el("span", { class: "dim" }, host, db ? "/" : ""), el("span", {}, db));
}

// What deleting it does to this very job.
export function consequence(item) {
  const state = stateOf(item), written = infoOf(item).docs_written ?? item.docs_written;
  const copied = written > 0 ? ` The ${count(written, "document")} it has copied stay on the target.` : "";
  const what = item.doc_id ? `The document ${item.doc_id} in ${item.database} is deleted.` : "The request is cancelled.";
  const job = {
    running: ` Its job is running${item.node ? ` on ${item.node}` : ""}; it writes a last checkpoint and stops.`,
    idle: " It has caught up; later changes of the source are no longer copied.",
    unreachable: " Its job stops waiting for the server.",
    crashing: " It is not tried again.",
    pending: " Its job, which waits to run, is removed.",
    paused: " Its job, which is paused, is removed.",
    completed: " It has completed, so nothing stops.",
    failed: " It has failed, so nothing stops.",
  };
  return `${what}${job[state] ?? ""}${copied}`;
}

// One action on many: by `keys` of rows, or on all that are `matching`. Returns what to tell the user.
export async function actOn(action, chosen) {
  const { done, failed, left } = await request("_scheduler/replications", { method: "POST", json: { action, ...chosen } });
  const past = { restart: "Restarted", pause: "Paused", resume: "Resumed", delete: "Deleted" }[action];
  const first = failed[0] ? ` ${count(failed.length, "replication")} could not be changed: ${failed[0].reason}.` : "";
  const rest = left ? ` ${number(left)} are left: the request took too long. Repeat it.` : "";
  return { text: `${past} ${count(done, "replication")}.${first}${rest}`, kind: first || rest ? "bad" : "good" };
}
