// What the pages of job types and jobs have in common.

import { path } from "./api.js";
import { duration } from "./format.js";

const WINDOW_S = 60;
const SHOWN_CHARACTERS = 100_000;

export const QUEUE_STATES = ["pending", "running", "finished", "dead"];

// The pages that control the service's own jobs.
export const OWN_PAGES = {
  rep_jobs: ["Replications", "#/replications", (id) => `#/job/${path(id)}`],
  webhooks: ["Deliveries", "#/rules"],
  listen: ["Rules", "#/rules"],
  schedules: ["Schedules", "#/schedules"],
};

export const typeAddress = (type) => `#/queue/${path(type)}`;
export const jobAddress = (type, id) => `#/queue/${path(type, id)}`;

export const age = (iso) => (iso ? duration((Date.now() - Date.parse(iso)) / 1000) : "–");

// Runs that ended without finishing their job. Not all have failed: a run may ask for another one.
const unfinished = ({ again, dead }) => again + dead;

// Runs per minute that finished their job, and those that did not, from the totals that a page has seen in the last minute. Unknown at first.
export function rates() {
  const seen = [];
  return (totals) => {
    const at = Date.now() / 1000;
    seen.push({ at, finished: totals.finished, unfinished: unfinished(totals) });
    while (seen.length > 2 && seen[1].at <= at - WINDOW_S) seen.shift();
    const minutes = (at - seen[0].at) / 60;
    const rate = (name) => (minutes > 0 ? (seen.at(-1)[name] - seen[0][name]) / minutes : undefined);
    return { finished: rate("finished"), unfinished: rate("unfinished") };
  };
}

// Numbers as they were sent, where the browser can tell.
const exact = (_, value, context) =>
  typeof value === "number" && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;

// A job, with its `texts`: indented JSON of its data, progress, result and error.
export function parseJob(text) {
  const job = JSON.parse(text);
  const texts = {};
  let parts = job;
  try {
    parts = JSON.parse(text, exact);
  } catch { /* Too deeply nested. */ }
  for (const name of ["data", "progress", "result", "error"]) {
    if (job[name] === undefined || (job[name] === null && name !== "data")) continue;
    texts[name] = indented(parts[name]);
    delete job[name];
  }
  return { ...job, texts };
}

function indented(value) {
  try {
    const text = JSON.stringify(value, null, 2);
    return text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}…` : text;
  } catch {
    return "Too deeply nested to be shown here.";
  }
}
