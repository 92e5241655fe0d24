// The whole service: what needs attention, counts by state, the nodes, and the last hour.

import { request } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { brief, count, number, rate } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { actOn, addressOf, badge, listAddress, nameOf, STATES } from "../lib/replications.js";
import { showNodes, WORK } from "./nodes.js";

const POLL_MS = 3000;
const HISTORY_MS = 30_000;
const CAUSES = 12;
const CHARTED = ["running", "idle", "pending", "paused", "unreachable", "crashing"];

export function overview() {
  const view = use("t-overview");
  const written = new Chart(view.throughput, {
    title: "Documents per second", series: [["written", "rate"]], format: rate,
  });
  const states = new Chart(view.states, {
    title: "Replications by state", series: CHARTED.map((state) => [state, state]), stacked: true, format: brief,
  });
  const overviewPoll = poll(POLL_MS, async (signal) => {
    const [found, { nodes }] = await Promise.all([
      request(`_scheduler/causes?limit=${CAUSES}`, { signal }), request("_scheduler/nodes", { signal }),
    ]);
    const shown = STATES.filter((state) => state !== "initializing" || found.states[state]);
    keyed(view.tiles, shown.map((state) => ({ state, count: found.states[state] })), ({ state }) => state, tile);
    keyed(view.attention, found.causes, ({ cause }) => cause, () => causeRow(() => overviewPoll.now()));
    view.calm.hidden = found.causes.length > 0;
    view.more.hidden = found.total_causes <= CAUSES;
    put(view.more, `${count(found.total_causes - CAUSES, "more cause")}`);
    showNodes(view.nodes, nodes, WORK);
    written.add([nodes.reduce((sum, node) => sum + node.docs_per_second, 0)]);
    states.add(CHARTED.map((state) => found.states[state]));
  });
  poll(HISTORY_MS, async (signal) => {
    const { minutes } = await request("_scheduler/history", { signal });
    const at = ({ time }) => Date.parse(time) / 1000;
    written.begin(minutes.map((minute) => ({ at: at(minute), values: [minute.docs_written / 60] })));
    const counted = minutes.filter((minute) => minute.states);
    states.begin(counted.map((minute) => ({ at: at(minute), values: CHARTED.map((state) => minute.states[state] ?? 0) })));
  });
  return { title: "Overview", root: view.root };
}

function tile({ state }) {
  const size = el("strong");
  const node = el("li", { class: state }, el("a", { href: listAddress({ states: state }) }, size, el("span", {}, state)));
  return {
    node,
    update(item) {
      put(size, brief(item.count));
      node.classList.toggle("none", !item.count);
    },
  };
}

function causeRow(again) {
  const mark = el("span"), title = el("a", { class: "cause" }), why = el("span", { class: "why" });
  const help = el("span", { class: "dim small" }), names = el("span", { class: "names small" });
  const restart = el("button", { type: "button" });
  let shown;
  restart.addEventListener("click", async () => {
    const { cause, error, replications: size } = shown;
    const what = count(size, "replication");
    const text = `They run now, and their error counts are reset. Those that fail with ${error} again are retried later.`;
    if (size > 1 && !(await confirmed(`Restart ${what}?`, text, `Restart ${what}`))) return;
    await act(restart, `restart ${what}`, async () => {
      const { text, kind } = await actOn("restart", { matching: { cause } });
      toast(text, kind);
      await again();
    });
  });
  return {
    node: el("li", {}, mark, el("div", {}, title, why, help, names), restart),
    update(item) {
      shown = item;
      const { state, error, server, reason, replications: size, cause, examples, hint } = item;
      if (mark.dataset.state !== state) mark.replaceChildren(badge((mark.dataset.state = state)));
      title.href = listAddress({ cause });
      put(title, state === "unreachable" ? `${server} ${error} ×${number(size)}` : `${error}${server ? ` · ${server}` : ""} ×${number(size)}`);
      put(why, size === 1 || state === "unreachable" ? reason : "");
      put(help, hint);
      const first = examples.map((example) => el("a", { href: addressOf(example) }, nameOf(example)));
      const more = size - examples.length;
      if (more > 0) first.push(el("a", { class: "rest", href: listAddress({ cause }) }, `+${number(more)} more`));
      if (names.textContent !== first.map((link) => link.textContent).join("")) names.replaceChildren(...first);
      put(restart, size > 1 ? "Restart all" : "Restart");
      restart.setAttribute("aria-label", `Restart ${count(size, "replication")}: ${error}`);
    },
  };
}
