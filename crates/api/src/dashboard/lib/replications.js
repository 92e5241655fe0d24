// What rows, cards and pages of a replication have in common. An item is a row of _scheduler/jobs or _scheduler/docs.

import { path } from "./api.js";
import { el } from "./dom.js";
import { number } from "./format.js";

// Idle, unreachable and paused are members of `info` in the API, and states here.
export function stateOf(item) {
  if (item.info?.paused && item.state === "pending") return "paused";
  if (item.state !== "running") return item.state;
  return item.info?.unreachable ? "unreachable" : item.info?.idle ? "idle" : "running";
}

export const nameOf = (item) => item.doc_id ?? item.id ?? item.job_id;

export const infoOf = (item) => (typeof item.info === "object" ? (item.info ?? {}) : {});

export function errorOf(item) {
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

// What items that failed for the same cause have in common: the error and its server, or else the whole reason.
export function causeOf(item) {
  const [error, reason] = errorOf(item);
  return `${item.state} ${error} ${/https?:\/\/[^/\s]+/.exec(reason)?.[0] ?? reason}`;
}

export function addressOf(item) {
  if (item.job_id) return `#/job/${encodeURIComponent(item.job_id)}`;
  return `#/doc/${path(item.database, item.doc_id)}`;
}

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
