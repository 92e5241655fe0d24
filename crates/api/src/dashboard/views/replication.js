// One replication, found by its job or by its document, and the buttons that control it.

import { explain, orElse, path, query, request } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { showDetails, showRejected } from "../lib/details.js";
import { el, put, use } from "../lib/dom.js";
import { rate } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { actOn, consequence, nameOf } from "../lib/replications.js";
import { setTitle } from "../lib/router.js";
import { edit } from "./create.js";

const POLL_MS = 2000;
const RATE_WINDOW_S = 20;
const RATE_AFTER_S = 10;

export const replicationOfJob = (id) => replication(id, (signal) => loadByJob(id, signal));
export const replicationOfDocument = (database, id) =>
  replication(id, (signal) => loadByDocument(database, id, signal));

function replication(name, load) {
  const view = use("t-job");
  const chart = new Chart(view.chart, {
    title: "Documents per second", series: [["written", "rate"]], format: rate,
  });
  const rateNow = recentRate();
  let item = null;

  const polling = poll(POLL_MS, async (signal) => {
    item = await load(signal);
    setTitle(nameOf(item));
    showDetails(view, item);
    chart.add([rateNow(item)]);
    if (!item.job_id) return;
    const { failures } = await request(`${jobUrl(item)}/failures`, { signal });
    showRejected(view, failures);
  }, (error) => {
    if (error.status !== 404) return toast(`Cannot read this replication. ${explain(error)}`, "bad");
    polling.stop();
    return view.root.replaceChildren(...notFound());
  });

  async function post(button, verb, action, done) {
    if (!item?.job_id) return;
    await act(button, `${verb} ${nameOf(item)}`, async () => {
      await request(`${jobUrl(item)}/${action}`, { method: "POST" });
      toast(done);
      await polling.now();
    });
  }
  view.restart.addEventListener("click", () =>
    item?.job_id
      ? post(view.restart, "restart", "_restart", item.state === "pending" || item.info?.asleep
        ? "Requested a run. It starts when a node has a free permit."
        : "Restarted. The error count is reset.")
      : item && restartEnded(view.restart, item, polling));
  view.pause.addEventListener("click", () =>
    item?.info?.paused
      ? post(view.pause, "resume", "_resume", "Resumed from the last checkpoint.")
      : post(view.pause, "pause", "_pause", "Paused. The checkpoint is kept."));
  view.edit.addEventListener("click", () => item && act(view.edit, `edit ${nameOf(item)}`, async () => {
    const form = await edit(item, (saved) => {
      view.editor.replaceChildren();
      view.edit.focus();
      if (saved) polling.now();
    });
    view.editor.replaceChildren(form.root);
    form.form.elements.source_password.focus();
    view.editor.scrollIntoView({ block: "start" });
  }));
  view.delete.addEventListener("click", () => item && remove(view.delete, item));
  put(view.name, name);
  return { title: "Replication", root: view.root };
}

// A document that had ended when it was written has no job.
async function restartEnded(button, item, polling) {
  await act(button, `restart ${nameOf(item)}`, async () => {
    const { replications } = await request(`_scheduler/replications${query({ database: item.database, q: item.doc_id, limit: 500 })}`);
    const keys = replications.filter((row) => row.doc_id === item.doc_id).map((row) => row.key);
    const { text, kind } = await actOn("restart", { keys });
    toast(text, kind);
    await polling.now();
  });
}

const jobUrl = (item) => `_scheduler/jobs/${path(item.job_id)}`;

async function loadByJob(id, signal) {
  const row = await request(`_scheduler/jobs/${path(id)}`, { signal });
  if (!row.doc_id) return row;
  const doc = await request(`_scheduler/docs/${path(row.database, row.doc_id)}`, { signal }).catch(orElse({}));
  return { ...doc, ...row };
}

async function loadByDocument(database, id, signal) {
  const row = await request(`_scheduler/docs/${path(database, id)}`, { signal });
  return row.job_id ? { ...row, ...(await request(jobUrl(row), { signal })) } : row;
}

const notFound = () => [
  el("h1", {}, "Replication not found"),
  el("p", { class: "empty" }, "It does not exist or has been deleted. ", el("a", { href: "#/replications" }, "Show all replications")),
];

// Documents per second over the last seconds: a job that has caught up reports no rate while it copies single changes.
function recentRate() {
  const samples = [];
  return ({ state, info }) => {
    if (state !== "running" || typeof info?.docs_written !== "number") return 0;
    const now = Date.now() / 1000;
    samples.push({ now, docs: info.docs_written });
    while (samples[0].now < now - RATE_WINDOW_S) samples.shift();
    const since = now - samples[0].now;
    const recent = since < RATE_AFTER_S ? 0 : Math.max(0, info.docs_written - samples[0].docs) / since;
    return Math.max(info.docs_per_second ?? 0, recent);
  };
}

async function remove(button, item) {
  const verb = item.doc_id ? "Delete" : "Cancel", name = nameOf(item);
  const sure = await confirmed(`${verb} replication ${name}?`, consequence(item), `${verb} replication`, "Keep replication");
  if (!sure) return;
  await act(button, `${verb.toLowerCase()} ${name}`, async () => {
    if (item.doc_id) {
      const url = path(item.database, item.doc_id);
      const { _rev } = await request(url);
      await request(`${url}${query({ rev: _rev })}`, { method: "DELETE" });
    } else {
      const json = { replication_id: item.id ?? item.job_id, cancel: true };
      await request("_replicate", { method: "POST", json });
    }
    toast(`${item.doc_id ? "Deleted" : "Cancelled"} ${name}.`);
    location.hash = "#/replications";
  });
}
