// What rows, cards and pages of a replication have in common. An item is a row of _scheduler/jobs or _scheduler/docs.

import { path } from "./api.js";
import { el } from "./dom.js";
import { number } from "./format.js";

// Idle and paused are flags in the API, and states here.
export function stateOf(item) {
  if (item.info?.paused && item.state === "pending") return "paused";
  return item.state === "running" && item.info?.idle ? "idle" : item.state;
}

export const nameOf = (item) => item.doc_id ?? item.id ?? item.job_id;

export const infoOf = (item) => (typeof item.info === "object" ? (item.info ?? {}) : {});

export function errorOf(item) {
  if (typeof item.info === "string") return [item.info, ""];
  if (!["crashing", "failed"].includes(item.state)) return ["", ""];
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
