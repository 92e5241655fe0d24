// The whole service: counts by state, throughput, what fails, and the nodes.

import { orElse, request } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { brief, duration, number, rate, throughput } from "../lib/format.js";
import { hint } from "../lib/hints.js";
import { poll } from "../lib/live.js";
import { addressOf, badge, causeOf, errorOf, errorText, nameOf, stateOf } from "../lib/replications.js";

const SUMMARY_MS = 2000;
const ATTENTION_MS = 15_000;
const ATTENTION_ROWS = 4;
const ATTENTION_LOOKS = 100;
const ACTIVE = ["running", "idle", "unreachable", "pending", "paused", "crashing"];
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
  let failing = { crashing: 0, failed: 0 }, listed, outages = 0, attended = 0;

  poll(SUMMARY_MS, async (signal) => {
    const summary = await request("_scheduler/summary", { signal });
    const { jobs } = summary;
    const counts = {
      ...jobs, running: without(jobs.running, jobs.idle + jobs.unreachable), pending: without(jobs.pending, jobs.paused),
    };
    keyed(view.tiles, TILES.map((item) => ({ ...item, count: counts[item.state] })), ({ state }) => state, tile);
    view.sampled.hidden = !summary.sampled;
    written.add([summary.docs_per_second]);
    states.add(ACTIVE.map((state) => counts[state]));
    showNodes(view, summary.nodes);
    keyed(view.outages, summary.unreachable, ({ server }) => server, outageRow);
    outages = summary.unreachable.length;
    view.calm.hidden = outages + attended > 0;
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
    const causes = [...byCause(jobs), ...byCause(docs)];
    attended = causes.length;
    keyed(view.attention, causes, ({ item }) => causeOf(item), attentionRow);
    view.calm.hidden = outages + attended > 0;
    view.moreCrashing.hidden = crashing < 2;
    view.moreFailed.hidden = failed < 2;
  });
  return { title: "Overview", root: view.root };
}

// A part may be estimated, so it may exceed the whole.
const without = (whole, part) => Math.max(0, whole - part);

const firstJobs = (state, signal) =>
  request(`_scheduler/jobs?states=${state}&limit=${ATTENTION_LOOKS}`, { signal }).then((page) => page.jobs);

const firstDocuments = (state, signal) =>
  request(`_scheduler/docs/_replicator?states=${state}&limit=${ATTENTION_LOOKS}`, { signal })
    .then((page) => page.docs, orElse([]));

// One of the items of each cause, with how many there are; the most frequent causes first.
function byCause(items) {
  const causes = new Map();
  for (const item of items) {
    const cause = causes.get(causeOf(item)) ?? { item, count: 0 };
    causes.set(causeOf(item), { ...cause, count: cause.count + 1 });
  }
  return [...causes.values()].sort((one, other) => other.count - one.count).slice(0, ATTENTION_ROWS);
}

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

function outageRow({ server }) {
  const count = el("a", { href: `#/jobs?states=unreachable&q=${encodeURIComponent(server)}` });
  const why = el("span", { class: "why" });
  return {
    node: el("li", {}, el("span", {}, badge("unreachable")), el("div", {}, count, why)),
    update({ jobs, reason }) {
      put(count, `${server}: ${number(jobs)} ${jobs === 1 ? "replication" : "replications"}`);
      put(why, reason);
    },
  };
}

function attentionRow() {
  const mark = el("span"), name = el("a");
  const why = el("span", { class: "why" }), help = el("span", { class: "dim small" });
  return {
    node: el("li", {}, mark, el("div", {}, name, why, help)),
    update({ item, count }) {
      mark.replaceChildren(badge(stateOf(item)));
      name.href = addressOf(item);
      put(name, count > 1 ? `${nameOf(item)} and ${number(count - 1)} more` : nameOf(item));
      put(why, errorText(item));
      put(help, hint(...errorOf(item)));
    },
  };
}
