// The whole service: counts by state, throughput, what fails, and the nodes.

import { orElse, request } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { brief, duration, number, rate, throughput } from "../lib/format.js";
import { hint } from "../lib/hints.js";
import { poll } from "../lib/live.js";
import { addressOf, badge, errorOf, errorText, nameOf, stateOf } from "../lib/replications.js";

const SUMMARY_MS = 2000;
const ATTENTION_MS = 15_000;
const ATTENTION_ROWS = 4;
const ACTIVE = ["running", "idle", "pending", "paused", "crashing"];
const TILES = [
  ...ACTIVE.map((state) => ({ state, href: `#/jobs?states=${state}` })),
  ...["failed", "completed"].map((state) => ({ state, href: `#/docs?states=${state}` })),
];

export function overview() {
  const view = use("t-overview");
  const written = new Chart(view.throughput, {
    title: "Documents per second", series: [["written", "rate"]], format: rate,
  });
  const states = new Chart(view.states, {
    title: "Jobs by state", series: ACTIVE.map((state) => [state, state]), stacked: true, format: brief,
  });
  let failing = { crashing: 0, failed: 0 }, listed;

  poll(SUMMARY_MS, async (signal) => {
    const summary = await request("_scheduler/summary", { signal });
    const { jobs } = summary;
    const counts = {
      ...jobs, running: without(jobs.running, jobs.idle), pending: without(jobs.pending, jobs.paused),
    };
    keyed(view.tiles, TILES.map((item) => ({ ...item, count: counts[item.state] })), ({ state }) => state, tile);
    view.sampled.hidden = !summary.sampled;
    written.add([summary.docs_per_second]);
    states.add(ACTIVE.map((state) => counts[state]));
    showNodes(view, summary.nodes);
    failing = jobs;
    if (jobs.crashing + jobs.failed !== listed) {
      listed = jobs.crashing + jobs.failed;
      attention.now();
    }
  });

  const attention = poll(ATTENTION_MS, async (signal) => {
    const { crashing, failed } = failing;
    const [jobs, docs] = await Promise.all([
      crashing ? firstJobs("crashing", signal) : [],
      failed ? firstDocuments("failed", signal) : [],
    ]);
    keyed(view.attention, [...jobs, ...docs], addressOf, attentionRow);
    view.calm.hidden = jobs.length + docs.length > 0;
    view.moreCrashing.hidden = crashing <= jobs.length;
    view.moreFailed.hidden = failed <= docs.length;
  });
  return { title: "Overview", root: view.root };
}

// A part may be estimated, so it may exceed the whole.
const without = (whole, part) => Math.max(0, whole - part);

const firstJobs = (state, signal) =>
  request(`_scheduler/jobs?states=${state}&limit=${ATTENTION_ROWS}`, { signal }).then((page) => page.jobs);

const firstDocuments = (state, signal) =>
  request(`_scheduler/docs/_replicator?states=${state}&limit=${ATTENTION_ROWS}`, { signal })
    .then((page) => page.docs, orElse([]));

function tile({ state, href }) {
  const count = el("strong");
  const node = el("li", { class: state }, el("a", { href }, count, el("span", {}, state)));
  return {
    node,
    update(item) {
      put(count, brief(item.count));
      node.classList.toggle("none", !item.count);
    },
  };
}

function showNodes(view, nodes) {
  const busiest = Math.max(1, ...nodes.map((node) => node.running));
  keyed(view.nodes, nodes.map((node) => ({ ...node, busiest })), ({ node }) => node, nodeRow);
  view.noNodes.hidden = nodes.length > 0;
  view.nodesTable.hidden = nodes.length === 0;
}

function nodeRow() {
  const labels = ["Running", "Idle", "Docs/s", "Throughput", "Max lag"];
  const cells = labels.map((label) => el("td", { class: "num", "data-label": label }));
  const name = el("span"), meter = el("meter", { min: 0, "aria-label": "Jobs, relative to the busiest node" });
  return {
    node: el("tr", {}, el("th", { scope: "row" }, name, meter), ...cells),
    update(item) {
      put(name, item.node);
      [meter.max, meter.value] = [item.busiest, item.running];
      const texts = [
        number(without(item.running, item.idle)),
        number(item.idle),
        rate(item.docs_per_second),
        throughput(item.bytes_per_second),
        duration(item.lag_seconds_max),
      ];
      cells.forEach((cell, at) => put(cell, texts[at]));
    },
  };
}

function attentionRow() {
  const mark = el("span"), name = el("a");
  const why = el("span", { class: "why" }), help = el("span", { class: "dim small" });
  return {
    node: el("li", {}, mark, el("div", {}, name, why, help)),
    update(item) {
      mark.replaceChildren(badge(stateOf(item)));
      name.href = addressOf(item);
      put(name, nameOf(item));
      put(why, errorText(item));
      put(help, hint(...errorOf(item)));
    },
  };
}
