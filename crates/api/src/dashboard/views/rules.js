// Rules with their states, and calls of webhooks with the last responses.

import { explain, orElse, path, query, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, count, localTime, number, until } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { stateOf } from "../lib/replications.js";

const POLL_MS = 4000;
const RULES_MAX = 200;
const CALLS_MAX = 50;
// The service reads the databases of all rules for a page of one: so not at each poll, and not for all rules.
const PROGRESS_MS = 15_000;
const PROGRESS_RULES_MAX = 20;
const PROGRESS_PAGES_MAX = 5;
const TYPES = ["replicator", "on_change"];

export function rules(parameters) {
  const view = use("t-rules"), known = new Map(), read = new Map();
  view.calls.value = parameters.get("state") ?? "";
  const rulePoll = poll(POLL_MS, async (signal) => {
    const { rules: all, isComplete } = await listed(read, known, signal);
    view.incomplete.hidden = isComplete;
    put(view.total, number(all.length));
    keyed(view.rules, all, ({ db, doc }) => `${db}/${doc._id}`, () => ruleRow(() => rulePoll.now()));
    view.noRules.hidden = all.length > 0;
  }, (error) => toast(`Cannot list rules. ${explain(error)}`, "bad"));
  const callPoll = poll(POLL_MS, async (signal) => {
    const { deliveries } = await request(`_deliveries${query({ state: view.calls.value, limit: CALLS_MAX })}`, { signal });
    keyed(view.deliveries, deliveries, ({ id }) => id, () => callRow(() => callPoll.now()));
    view.noCalls.hidden = deliveries.length > 0;
    put(view.noCalls, view.calls.value ? `No ${view.calls.value} calls.` : "No calls yet.");
    view.more.hidden = deliveries.length < CALLS_MAX;
  }, (error) => toast(`Cannot list calls. ${explain(error)}`, "bad"));
  view.calls.addEventListener("change", () => {
    history.replaceState(null, "", `#/rules${query({ state: view.calls.value })}`);
    callPoll.now();
  });
  return { title: "Rules", root: view.root };
}

// The rules of all databases, with the runs of their replications, and how far those are that call.
async function listed(read, known, signal) {
  const names = await request("_all_dbs", { signal });
  const all = [];
  for (const db of names.filter((name) => name === "spiegel" || /(^|\/)_rules$/.test(name))) {
    const docs = await rulesIn(db, read, signal);
    all.push(...docs.map((doc) => ({ db, doc })));
    if (all.length > RULES_MAX) break;
  }
  const isComplete = all.length <= RULES_MAX;
  all.length = Math.min(all.length, RULES_MAX);
  await Promise.all(all.map(async (rule) => {
    if (rule.doc.type === "replicator") rule.run = await runOf(rule, signal);
  }));
  for (const rule of all.filter(({ doc }) => doc.type === "on_change").slice(0, PROGRESS_RULES_MAX)) {
    rule.calls = await callsOf(rule, known, signal);
    if (rule.calls.databases === 0) rule.run = await runOf(rule, signal);
  }
  return { rules: all, isComplete };
}

const runOf = ({ db, doc }, signal) => request(`_scheduler/docs/${path(db, doc._id)}`, { signal }).catch(orElse(null));

// The first rules of a database. It may have very many other documents, such as remotes, so it is read only after a change.
async function rulesIn(db, read, signal) {
  const { update_seq: seq } = await request(path(db), { signal });
  const before = read.get(db);
  if (before?.seq === seq) return before.docs;
  const asked = { selector: { type: { $in: TYPES } }, limit: RULES_MAX + 1 };
  const { docs } = await request(`${path(db)}/_find`, { method: "POST", json: asked, signal });
  read.set(db, { seq, docs });
  return docs;
}

// How far a rule is in the first databases it has looked at: their number, the last run, and the one that fails most.
async function callsOf({ db, doc }, known, signal) {
  const key = `${db}/${doc._id} ${doc._rev}`, before = known.get(key);
  if (before && Date.now() - before.at < PROGRESS_MS) return before.calls;
  const rows = [];
  for (let page = 0, after; page < PROGRESS_PAGES_MAX && (page === 0 || after) && rows.length === 0; page++) {
    const address = `${path(db, doc._id, "_databases")}${query({ after })}`;
    const answer = await request(address, { signal }).catch(orElse({ databases: [] }));
    rows.push(...answer.databases);
    after = answer.after;
  }
  const time = ({ last_run: run }) => run?.ended ?? run?.started ?? "";
  const last = rows.map(time).sort().at(-1);
  const failing = rows.filter(({ failures }) => failures > 0).sort((one, other) => other.failures - one.failures)[0];
  const calls = { databases: rows.length, since: rows.length === 1 ? rows[0].since : null, last, failing };
  known.set(key, { at: Date.now(), calls });
  return calls;
}

// A URL, maybe with variables, without what may be credentials.
function bare(side) {
  const url = String(side?.url ?? side ?? "").replace(/[?#].*$/, "");
  return url.replace(/^(https?:)[/\\]*[^/]*@/i, "$1//").replace(/^([a-z0-9]+:\/\/)[^/]*@/i, "$1");
}

const cell = (label, ...children) => el("td", { "data-label": label }, ...children);

function badgeOf(node, state) {
  node.className = `badge ${state}`;
  put(node, state);
}

function ruleRow(again) {
  const name = el("span"), where = el("span", { class: "dim small where" }), does = el("span", { class: "end" });
  const state = el("span"), why = el("span", { class: "why small where" }), run = cell("Last run"), position = cell("Position");
  const pause = el("button", { type: "button" }), trigger = el("button", { type: "button" }, "Trigger");
  let shown;
  const post = (button, action, verb, told) => act(button, `${verb} ${shown.doc._id}`, async () => {
    const answer = await request(`${path(shown.db, shown.doc._id, action)}`, { method: "POST", json: {} });
    toast(told(answer));
    await again();
  });
  pause.addEventListener("click", () => shown.doc.enabled === false
    ? post(pause, "_resume", "resume", () => `Resumed ${shown.doc._id}.`)
    : post(pause, "_pause", "pause", () => `Paused ${shown.doc._id}. Its position is kept.`));
  trigger.addEventListener("click", () =>
    post(trigger, "_trigger", "trigger", ({ triggered }) => `Triggered ${shown.doc._id} in ${count(triggered, "database")}.`));
  return {
    node: el("tr", {}, el("th", { scope: "row" }, name, where), cell("Does", does), cell("State", state, why), run, position,
      el("td", {}, el("span", { class: "actions" }, pause, trigger))),
    update(item) {
      shown = item;
      const { db, doc, run: row, calls } = item;
      const paused = doc.enabled === false;
      put(name, doc._id);
      put(where, db);
      put(does, doc.type === "replicator"
        ? `${bare(doc.source)} → ${bare(doc.target)}`
        : `${(doc.method ?? "GET").toUpperCase()} ${bare(doc.url)}`);
      const failing = paused ? null : calls?.failing;
      const runs = row?.job_id || row?.info?.replications;
      badgeOf(state, paused ? "paused" : failing ? "failing" : runs || row?.state === "initializing" ? stateOf(row) : calls || row ? "active" : "–");
      put(why, failing
        ? `${failing.database}: ${failing.last_run?.reason ?? count(failing.failures, "failed call")}`
        : (!runs && !paused && row?.info?.reason) || "");
      put(run, ago(calls?.last || row?.info?.last_run || row?.last_updated));
      const seq = row?.info?.checkpointed_source_seq ?? calls?.since;
      const databases = row?.info?.replications ?? calls?.databases;
      put(position, seq?.toString().slice(0, 12) ?? (databases ? count(databases, "database") : "–"));
      position.title = seq?.toString() ?? "";
      put(pause, paused ? "Resume" : "Pause");
      trigger.disabled = paused;
    },
  };
}

function callRow(again) {
  const rule = el("span"), where = el("span", { class: "dim small where" }), target = el("span", { class: "end" });
  const change = el("span"), version = el("span", { class: "dim small where" });
  const state = el("span"), tries = el("td", { class: "num", "data-label": "Attempts" });
  const last = cell("Last response"), next = cell("Next attempt");
  const replay = el("button", { type: "button" }, "Replay"), remove = el("button", { type: "button" }, "Remove");
  let shown;
  replay.addEventListener("click", () => act(replay, `replay the call of ${shown.rule}`, async () => {
    await request(`_deliveries/${path(shown.id)}/_replay`, { method: "POST" });
    toast("The call is made again.");
    await again();
  }));
  remove.addEventListener("click", async () => {
    const text = shown.state === "delivered" ? "It can no longer be replayed." : "It will not be made again. A call in progress may still reach the receiver.";
    if (!(await confirmed(`Remove the call of ${shown.rule}?`, text, "Remove call", "Keep call"))) return;
    await act(remove, `remove the call of ${shown.rule}`, async () => {
      await request(`_deliveries/${path(shown.id)}`, { method: "DELETE" });
      toast(`Removed the call of ${shown.rule}.`);
      await again();
    });
  });
  return {
    node: el("tr", {}, el("th", { scope: "row" }, rule, where), el("td", { class: "change", "data-label": "Change" }, change, version), cell("Call", target),
      cell("State", state), tries, last, next, el("td", {}, el("span", { class: "actions" }, replay, remove))),
    update(item) {
      shown = item;
      put(rule, item.rule);
      put(where, item.rule_database ?? "");
      put(change, [item.db, item.doc_id].filter(Boolean).join("/"));
      const id = item.rev || item.seq;
      put(version, [item.source, id.slice(0, 12)].filter(Boolean).join(" · "));
      version.title = id;
      put(target, `${item.method} ${item.url}`);
      badgeOf(state, item.state);
      put(tries, number(item.attempts));
      put(last, response(item));
      last.title = [localTime(item.last?.started), item.last?.body].filter(Boolean).join("\n");
      put(next, item.state === "pending" ? until(item.next) : "–");
    },
  };
}

function response({ last, reason }) {
  if (!last) return reason ?? "–";
  return last.status ? `${last.status} in ${number(last.took_ms)} ms` : (last.error ?? reason ?? "–");
}
