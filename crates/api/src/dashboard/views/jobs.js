// The jobs that have not finished, in all databases or one.

import { query } from "../lib/api.js";
import { number } from "../lib/format.js";
import { list, PAGE_ROWS } from "../lib/list.js";

const JOBS = {
  name: "jobs",
  title: "Jobs",
  search: "Search source and target URLs",
  states: ["running", "idle", "unreachable", "pending", "paused", "crashing"],
  everywhere: "All databases",
  total: (rows) => `${number(rows)} active`,
  empty: "No matching jobs. Completed and failed replications are listed under Documents.",
  url({ q, database, states }, at) {
    return `_scheduler/jobs${query({ limit: PAGE_ROWS, endpoint: q, database, states, bookmark: at })}`;
  },
  rows: (page) => page.jobs,
  next: (page) => page.bookmark,
};

export const jobs = (parameters) => list(JOBS, parameters);
