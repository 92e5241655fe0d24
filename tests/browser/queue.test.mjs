// The pages of job types and jobs: an operator who finds out why jobs fail, and a user who may only look.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { PHONE, click, fill, launch, shows, story } from "./browser.mjs";
import { serveProxy } from "./proxy.mjs";
import { PASSWORD, Service } from "./service.mjs";

const HOSTILE = '<img src=x onerror="window.caught=1">&amp;"\'/..';
let service, browser;
before(async () => {
  [service, browser] = await Promise.all([Service.start(), launch()]);
  const send = (path, json, method = "POST") => service.request(path, { method, json });
  await service.request("/_users", { method: "PUT", ok: false });
  await send("/_users/org.couchdb.user:eve", { type: "user", name: "eve", roles: ["auditor"], password: "sesame" }, "PUT");
  await send("/_jobs/mail", { retry: { limit: 0 }, roles: { read: ["auditor"] } }, "PUT");
  await send("/_jobs/resize", { timeout_sec: 3600 }, "PUT");
  const added = (length, prefix) => Array.from({ length }, (_, n) => ({ id: `${prefix}${n}`, data: { n } }));
  await send("/_jobs/mail", { jobs: added(6, "to-") });
  const { jobs } = await send("/_jobs/mail/_claim", { worker: "w1", count: 6 });
  const end = ({ id, lock }, n) => ({ id, lock, ...(n < 1 ? { outcome: "done", result: "sent" } : { outcome: "failed", error: n < 3 ? "no <b>route</b>" : "refused" }) });
  await send("/_jobs/mail/_finish", { jobs: jobs.map(end) });
  await send("/_jobs/resize", { jobs: added(60, "picture-").map((job) => ({ ...job, delay_sec: 3600 })) });
  await send("/_jobs/resize", { id: "runs", data: [1] });
  const [runs] = (await send("/_jobs/resize/_claim", { worker: "w2" })).jobs;
  await send("/_jobs/resize/_beat", { jobs: [{ id: "runs", lock: runs.lock, progress: { done: 3 } }] });
  // Not through JSON.stringify: the number has more digits than JavaScript keeps.
  const response = await fetch(new URL("/_jobs/mail", service.url), {
    method: "POST", headers: { authorization: `Basic ${btoa(`root:${PASSWORD}`)}`, "content-type": "application/json" },
    body: `{"id":${JSON.stringify(HOSTILE)},"delay_sec":3600,"data":{"html":"<script>window.caught=1</script>","big":12345678901234567890}}`,
  });
  assert.equal(response.status, 201);
});
after(async () => { await browser?.close(); await service?.stop(); });

const dashboard = (name, work, viewport) => story(name, () => browser, work, viewport);

async function enter(page, hash = "", [name, password] = ["root", PASSWORD]) {
  await page.goto(new URL(`/_dashboard/${hash}`, service.url));
  await fill(page, "[name=name]", name);
  await fill(page, "[name=password]", password);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#bar:not([hidden])");
}

const go = (page, hash) => page.evaluate((hash) => { location.hash = hash; }, hash);
const row = (type) => `.types tbody tr:has(a[href="#/queue/${type}"])`;

dashboard("types are listed with their numbers, and opened by keys", async (page) => {
  await enter(page);
  await page.keyboard.press("g");
  await page.keyboard.press("j");
  await shows(page, "h1", "Jobs");
  await shows(page, row("mail"), /^mail\s+1\s+0\s+1\s+5\s/);
  await shows(page, row("resize"), /^resize\s+60\s+1\s+0\s+0\s/);
  await shows(page, row("rep_jobs"), /^rep_jobs internal/);
  // Rates are those that the page sees.
  await shows(page, `${row("mail")} [data-label="Unfinished/min"]`, /^0$/);
  await page.keyboard.press("/");
  await page.keyboard.type("resi");
  await page.waitForFunction(() => document.querySelectorAll(".types tbody tr").length === 1);
  assert.match(page.url(), /#\/queue\?q=resi$/);
  await page.keyboard.press("Escape");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await shows(page, "h1", "resize");
  await shows(page, ".queued .state", "pending");
  await shows(page, ".pager", "Page 1");
  await page.keyboard.press("]");
  await shows(page, ".pager", "Page 2");
  await page.waitForFunction(() => document.querySelectorAll(".queued tbody tr").length === 11);
  await page.select("[data-states]", "running");
  await shows(page, ".queued tbody tr:only-child", /running\s+runs\s+1\s+w2/);
  await click(page, ".queued .name");
  await shows(page, ".job-title", /runs\s+running/);
  await shows(page, "[data-parts]", /Data[^]*\[\s+1\s+\][^]*Progress[^]*"done": 3/);
  await shows(page, ".timeline", /running[^]*w2/);
});

dashboard("a type is paused and resumed", async (page) => {
  await enter(page, "#/queue/resize");
  await click(page, "[data-pause]");
  await shows(page, ".job-title .badge", "paused");
  assert.equal((await service.request("/_jobs/resize/_type")).paused, true);
  await shows(page, "[data-pause]", "Resume");
  await go(page, "#/queue");
  await shows(page, row("resize"), "resize paused");
  await go(page, "#/queue/resize");
  await shows(page, "[data-pause]", "Resume");
  await click(page, "[data-pause]");
  await shows(page, "#toasts", "Resumed resize.");
  assert.equal((await service.request("/_jobs/resize/_type")).paused, false);
});

dashboard("jobs that fail alike are retried together", async (page) => {
  await enter(page, "#/queue/mail");
  await shows(page, ".failures tbody tr:nth-child(1)", /refused\s+3\s/);
  await shows(page, ".failures tbody tr:nth-child(2)", /no <b>route<\/b>\s+2\s/);
  await shows(page, ".figures", /Dead\s+5/);
  await click(page, ".failures tbody tr:nth-child(2) button");
  await shows(page, "dialog[open]", /Retry all dead jobs of mail with this error\?[^]*no <b>route<\/b>/);
  await click(page, "#confirm-yes");
  await shows(page, "#toasts", "Retried 2 jobs.");
  await page.waitForFunction(() => document.querySelectorAll(".failures tbody tr").length === 1);
  await shows(page, ".figures", /Pending\s+3[^]*Dead\s+3/);
  await page.select("[data-states]", "dead");
  await shows(page, ".queued tbody tr", /dead\s+to-\d\s+refused/);
  // One of them is retried and removed.
  await click(page, ".failures tbody a");
  await shows(page, ".job-title .badge", "dead");
  await shows(page, ".alert", "refused");
  await click(page, "[data-retry]");
  await shows(page, ".job-title .badge", "pending");
  await page.waitForSelector("[data-retry]:disabled");
  const id = await page.$eval("h1", (h1) => h1.textContent);
  await click(page, "[data-remove]");
  await shows(page, "dialog[open]", `Remove job ${id}?`);
  await click(page, "#confirm-yes");
  await shows(page, "h1", "mail");
  assert.equal((await service.request(`/_jobs/mail/${id}`, { ok: false })).error, "not_found");
  await click(page, "[data-retry]");
  await shows(page, "#confirm-text", "2 jobs will run again");
  await click(page, "#confirm-yes");
  await shows(page, ".figures", /Dead\s+0/);
  await shows(page, "[data-no-failures]", "None.");
});

dashboard("what a job contains is shown as text", async (page) => {
  await enter(page, "#/queue/mail");
  const link = await page.waitForFunction((id) => [...document.querySelectorAll(".queued .name")].find((name) => name.textContent === id), {}, HOSTILE);
  await link.click();
  await shows(page, "h1", HOSTILE);
  await shows(page, "[data-parts] pre", "<script>window.caught=1</script>");
  await shows(page, "[data-parts] pre", /"big": 12345678901234567890/);
  assert.deepEqual(await page.evaluate(() => ["caught" in window, document.querySelectorAll("main img, main script").length]), [false, 0]);
  await go(page, "#/queue/mail/..");
  await shows(page, "h1", "Job not found");
  // A browser would ask for /mail/resize, which is no job.
  await go(page, "#/queue/../mail%2Fresize");
  await shows(page, "h1", "Jobs");
  await go(page, "#/queue/nothing");
  await shows(page, "h1", "Type not found");
});

dashboard("the service's own jobs have no data and no buttons", async (page) => {
  await service.request("/_replicator/own", { method: "PUT", json: service.replication({ paused: true }) });
  await enter(page, "#/queue/rep_jobs");
  await shows(page, "[data-own]", "Control them on the page Replications.");
  await page.waitForFunction(() => document.querySelectorAll(".queued tbody tr").length > 0);
  await page.waitForSelector("[data-actions]", { hidden: true });
  await click(page, ".queued .name");
  await shows(page, "[data-own]", "its data is not shown");
  await page.waitForSelector("[data-actions]", { hidden: true });
  assert.doesNotMatch(await page.$eval("main", (main) => main.textContent), new RegExp(service.peerPassword));
  await click(page, "[data-own] a");
  await shows(page, ".job-title", /own\s+paused/);
});

dashboard("a user who may read a type sees it, and nothing to press", async (page) => {
  await enter(page, "#/replications", ["eve", "sesame"]);
  await shows(page, "h1", "Jobs");
  await shows(page, ".types tbody tr:only-child", "mail");
  assert.deepEqual(await page.$$eval(".bar nav a", (links) => links.filter((link) => link.offsetParent).map((link) => link.textContent)), ["Jobs"]);
  await page.keyboard.press("n");
  await shows(page, "h1", "Jobs");
  await click(page, ".types .name");
  await shows(page, ".queued tbody tr", /to-\d/);
  const buttons = () => page.$$eval("main button", (nodes) => nodes.filter((node) => node.offsetParent).map((node) => node.textContent));
  await page.waitForFunction(() => !document.querySelector("[data-settings-box]").hidden);
  assert.deepEqual(await buttons(), []);
  await click(page, ".queued .name");
  await shows(page, ".details", "mail");
  assert.deepEqual(await buttons(), []);
  await go(page, "#/queue/resize");
  await shows(page, "h1", "Type not found");
});

dashboard("schedules are run now and removed", async (page) => {
  const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
  const schedule = (name, members) => ({ name, type: "mail", job: { data: 1 }, overlap: "skip", catch_up: "one", next: at(3600), skipped: 0, last: null, ...members });
  let rows = [
    schedule("report", { cron: "30 7 * * mon-fri", zone: "Europe/Berlin", last: { occurrence: at(-60), id: "to-0", error: null } }),
    schedule("poll", { every_sec: 90, skipped: 17, last: { occurrence: at(-60), id: null, error: "no <b>type</b>" } }),
  ];
  const asked = [];
  const proxy = await serveProxy(service, (request, response) => {
    if (!request.url.startsWith("/_schedules")) return false;
    if (request.method !== "GET") asked.push(`${request.method} ${request.url}`);
    if (request.method === "DELETE") rows = rows.slice(0, 1);
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify(request.method === "GET" ? { schedules: rows } : { ok: true, id: "poll@now" }));
    return true;
  });
  try {
    await page.goto(`${proxy.url}_dashboard/#/queue`);
    await fill(page, "[name=name]", "root");
    await fill(page, "[name=password]", PASSWORD);
    await page.keyboard.press("Enter");
    await click(page, "[data-schedules]");
    await shows(page, ".schedules tbody tr:nth-child(1)", /^report\s*mail\s+30 7 \* \* mon-fri\s+Europe\/Berlin\s+in \d+ min\s+0\s+1 min ago to-0/);
    await shows(page, ".schedules tbody tr:nth-child(2)", /every 90 s[^]*17[^]*no <b>type<\/b>/);
    await click(page, ".schedules tbody tr:nth-child(2) button");
    await shows(page, "#toasts", "Added the job poll@now.");
    await page.$eval("#toasts", (toasts) => toasts.replaceChildren());
    await click(page, ".schedules tbody tr:nth-child(2) .danger");
    await shows(page, "dialog[open]", /Remove schedule poll\?[^]*Jobs that it has added stay/);
    await click(page, "#confirm-yes");
    await page.waitForFunction(() => document.querySelectorAll(".schedules tbody tr").length === 1);
    assert.deepEqual(asked, ["POST /_schedules/poll/_run", "DELETE /_schedules/poll"]);
  } finally {
    proxy.stop();
  }
});

for (const [where, hash] of [["types", "#/queue"], ["a type", "#/queue/mail"], ["a job", "#/queue/resize/runs"]]) {
  dashboard(`a phone shows ${where} without scrolling sideways`, async (page) => {
    await enter(page, hash);
    await page.waitForNetworkIdle({ idleTime: 300 });
    assert(await page.evaluate((width) => document.scrollingElement.scrollWidth <= width, PHONE.width));
  }, PHONE);
}
