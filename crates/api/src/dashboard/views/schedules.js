// Schedules, which add jobs at times.

import { explain, path, request } from "../lib/api.js";
import { el, keyed, put, use } from "../lib/dom.js";
import { ago, count, duration, localTime, number, until } from "../lib/format.js";
import { poll } from "../lib/live.js";
import { act, confirmed, toast } from "../lib/messages.js";
import { jobAddress, typeAddress } from "../lib/queue.js";

const POLL_MS = 4000;
const SHOWN_MAX = 100;

export function schedules() {
  const view = use("t-schedules");
  let all = [];
  const showFound = () => {
    const text = view.search.value.trim();
    const found = all.filter(({ name, type }) => name.includes(text) || type.includes(text));
    put(view.total, text ? `${number(found.length)} of ${number(all.length)}` : number(all.length));
    keyed(view.rows, found.slice(0, SHOWN_MAX), ({ name }) => name, () => scheduleRow(() => polling.now()));
    view.table.hidden = found.length === 0;
    view.empty.hidden = found.length > 0;
    put(view.empty, all.length ? "No matching schedules." : "No schedules yet. An administrator can create one with PUT /_schedules/NAME.");
    view.more.hidden = found.length <= SHOWN_MAX;
    put(view.more, `${count(found.length - SHOWN_MAX, "more schedule")}: search by name or type.`);
  };
  const polling = poll(POLL_MS, async (signal) => {
    ({ schedules: all } = await request("_schedules", { signal }));
    showFound();
  }, (error) => toast(`Cannot list schedules. ${explain(error)}`, "bad"));
  view.search.addEventListener("input", showFound);
  view.filters.addEventListener("submit", (event) => event.preventDefault());
  return { title: "Schedules", root: view.root };
}

const cell = (label, ...children) => el("td", { "data-label": label }, ...children);

function occurs({ cron, zone, every_sec: every }) {
  if (cron) return [cron, zone ?? "UTC"];
  // `duration` leaves out what is small.
  return [`every ${every % (every < 86_400 ? 60 : 3600) ? `${every} s` : duration(every)}`, ""];
}

function scheduleRow(again) {
  const name = el("span"), type = el("a", { class: "dim small where" });
  const times = el("span", { class: "mono" }), zone = el("div", { class: "dim small" });
  const next = cell("Next"), skipped = el("td", { class: "num", "data-label": "Skipped" });
  const job = el("a"), when = el("span"), why = el("div", { class: "why" });
  const run = el("button", { type: "button" }, "Run now"), remove = el("button", { type: "button", class: "danger" }, "Remove");
  let shown;
  run.addEventListener("click", () => act(run, `run ${shown.name}`, async () => {
    const { id } = await request(`_schedules/${path(shown.name, "_run")}`, { method: "POST" });
    toast(`Added the job ${id}.`);
    await again();
  }));
  remove.addEventListener("click", async () => {
    const text = `It adds no more jobs of the type ${shown.type}. Jobs that it has added stay.`;
    if (!(await confirmed(`Remove schedule ${shown.name}?`, text, "Remove schedule", "Keep schedule"))) return;
    await act(remove, `remove ${shown.name}`, async () => {
      await request(`_schedules/${path(shown.name)}`, { method: "DELETE" });
      toast(`Removed ${shown.name}.`);
      await again();
    });
  });
  return {
    node: el("tr", {}, el("th", { scope: "row" }, name, type), cell("Occurs", times, zone), next, skipped,
      el("td", { class: "last", "data-label": "Last" }, when, " ", job, why), el("td", { class: "action" }, el("span", { class: "actions" }, run, remove))),
    update(item) {
      shown = item;
      const [expression, where] = occurs(item), { last } = item;
      put(name, item.name);
      put(type, item.type);
      type.href = typeAddress(item.type);
      put(times, expression);
      put(zone, where);
      put(next, until(item.next));
      next.title = localTime(item.next);
      put(when, last ? ago(last.occurrence) : "–");
      when.title = localTime(last?.occurrence);
      put(job, last?.id);
      job.hidden = !last?.id;
      job.href = last?.id ? jobAddress(item.type, last.id) : "";
      put(why, item.unreadable ? `Its data cannot be read: ${item.unreadable}` : last?.error);
      put(skipped, number(item.skipped));
      run.setAttribute("aria-label", `Run ${item.name} now`);
      remove.setAttribute("aria-label", `Remove ${item.name}`);
    },
  };
}
