// The replication documents of one database, in every state.

import { path, query } from "../lib/api.js";
import { number } from "../lib/format.js";
import { list, PAGE_ROWS } from "../lib/list.js";

const DEFAULT_DATABASE = "_replicator";
const COLLATES_LAST = "\u{10ffff}";

const DOCUMENTS = {
  name: "docs",
  title: "Documents",
  search: "Search by ID prefix",
  states: ["running", "pending", "crashing", "failed", "completed"],
  total: (rows, { database }) => `${number(rows)} in ${database || DEFAULT_DATABASE}`,
  empty: "No matching documents.",
  url({ q, database, states }, at) {
    const from = at?.startkey ?? q;
    const keys = { startkey: from && JSON.stringify(from), endkey: q && JSON.stringify(q + COLLATES_LAST) };
    const parameters = { limit: PAGE_ROWS, states, ...keys, bookmark: at?.bookmark };
    return `_scheduler/docs/${path(database || DEFAULT_DATABASE)}${query(parameters)}`;
  },
  rows: (page) => page.docs,
  next(page) {
    if (page.bookmark) return { bookmark: page.bookmark };
    return page.docs.length === PAGE_ROWS ? { startkey: `${page.docs.at(-1).doc_id}\0` } : undefined;
  },
};

export const documents = (parameters) => list(DOCUMENTS, parameters);
