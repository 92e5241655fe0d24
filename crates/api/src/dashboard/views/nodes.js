// The nodes: frontends and replication nodes, those that were killed until the service forgets them.

import { explain, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, duration, localTime, number, rate, throughput } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { toast } from "../lib/messages.js";

const POLL_MS = 4000;
const ROLES = { api_frontend: "frontend", replication: "replication" };

export function nodes() {
  const view = use("t-nodes");
  poll(POLL_MS, async (signal) => {
    const { nodes } = await request("_scheduler/nodes", { signal });
    const dead = nodes.filter(({ alive }) => !alive).length;
    put(view.total, `${number(nodes.length - dead)} running${dead ? `, ${number(dead)} silent` : ""}`);
    showNodes(view.nodes, nodes);
  }, (error) => toast(`Cannot list nodes. ${explain(error)}`, "bad"));
  return { title: "Nodes", root: view.root };
}

export function showNodes(body, nodes, labels = ALL) {
  // A name may be there twice: of a process that runs, and of one before it.
  keyed(body, nodes, ({ node, started }) => `${node} ${started}`, () => nodeRow(labels));
}

const CELLS = {
  Roles: ({ roles }) => roles.map((role) => ROLES[role] ?? role).join(", "),
  Version: ({ version }) => version ?? "–",
  "Up for": ({ uptime_seconds: uptime, alive }) => (alive ? duration(uptime) : "–"),
  "Last seen": ({ last_seen: seen }) => ago(seen),
  Running: ({ running, idle, unreachable }) => number(running - idle - unreachable),
  Idle: ({ idle }) => number(idle),
  Unreachable: ({ unreachable }) => number(unreachable),
  "Docs/s": ({ docs_per_second: docs }) => rate(docs),
  Throughput: ({ bytes_per_second: bytes }) => throughput(bytes),
  "Max lag": ({ lag_seconds_max: lag }) => duration(lag),
};
const ALL = Object.keys(CELLS);
const TEXTS = ["Roles", "Version", "Up for", "Last seen"];
export const WORK = ALL.slice(TEXTS.length);

function nodeRow(labels) {
  const cells = labels.map((label) => el("td", { class: TEXTS.includes(label) ? null : "num", "data-label": label }));
  const name = el("span"), silent = el("span", { class: "badge failed" }, "silent");
  const node = el("tr", {}, el("th", { scope: "row" }, name, " ", silent), ...cells);
  return {
    node,
    update(item) {
      put(name, item.node);
      name.title = item.started ? `Started ${localTime(item.started)}` : "";
      silent.hidden = item.alive;
      node.classList.toggle("dead", !item.alive);
      const work = item.alive && item.roles.includes("replication");
      cells.forEach((cell, at) => {
        const label = labels[at];
        put(cell, !work && !TEXTS.includes(label) ? "–" : CELLS[label](item));
      });
    },
  };
}
