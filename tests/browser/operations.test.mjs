// What an operator does with many replications: sees what fails, finds them, acts on them.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { PHONE, click, fill, launch, shows, story } from "./browser.mjs";
import { serveProxy } from "./proxy.mjs";
import { PASSWORD, Service } from "./service.mjs";

const OTHER = "other/_replicator";
let service, browser;
before(async () => {
  [service, browser] = await Promise.all([Service.start(), launch()]);
  await service.request(`/${encodeURIComponent(OTHER)}`, { method: "PUT" });
  const at = (url, name) => service.endpoint(url.replace(/orders\/?$/, name));
  const ended = (state, n, more) => ({ _id: `${state}-${n}`, source: service.source, target: service.target, _replication_state: state, ...more });
  const range = (length) => Array.from({ length }, (_, n) => n);
  const load = (database, docs) => service.request(`/${encodeURIComponent(database)}/_bulk_docs`, { method: "POST", json: { docs } });
  // As if imported: they have ended, and none has a job.
  await load(OTHER, [
    ...range(4).map((n) => ended("completed", n)),
    ...range(3).map((n) => ended("failed", n, { _replication_state_reason: `unauthorized: unauthorized to access http://gone.example/db${n}/` })),
  ]);
  await load("_replicator", [
    ...range(6).map((n) => ({ _id: `lost-${n}`, source: at(service.source, `nowhere-${n}`), target: at(service.target, "x") })),
    ...range(60).map((n) => ({ _id: `many-${String(n).padStart(2, "0")}`, ...service.replication({ paused: true, since_seq: n }) })),
    { _id: "runs", ...service.replication({ continuous: true }) },
  ]);
  await service.request("/_replicate?async=true", { method: "POST", json: { ...service.replication({ continuous: true }), target: at(service.target, "asked") } });
  await until(() => counts(), ({ crashing, running, idle, paused }) => crashing === 6 && running + idle === 2 && paused === 60);
});
after(async () => { await browser?.close(); await service?.stop(); });

const dashboard = (name, work, viewport) => story(name, () => browser, work, viewport);
const counts = async () => (await service.request("/_scheduler/replications?limit=0")).states;

async function enter(page, hash = "", url = service.url) {
  await page.goto(new URL(`/_dashboard/${hash}`, url));
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#bar:not([hidden])");
}

async function until(what, such) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const seen = await what();
    if (such(seen)) return seen;
    assert(Date.now() < deadline, JSON.stringify(seen));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const names = (page) => page.$$eval(".rows tbody .name", (nodes) => nodes.map((node) => node.textContent));
const focused = (page) => page.evaluate(() => document.activeElement.textContent);

dashboard("ended documents of all databases are counted, and each tile leads to what it counts", async (page) => {
  await enter(page);
  await shows(page, ".tiles .completed", /^4\s/);
  await shows(page, ".tiles .failed", /^3\s/);
  for (const state of ["failed", "completed", "crashing", "paused"]) {
    await page.evaluate(() => { location.hash = "#/"; });
    await page.waitForSelector(`.tiles .${state} strong`);
    const counted = await page.$eval(`.tiles .${state} strong`, (node) => node.textContent);
    await click(page, `.tiles .${state} a`);
    await shows(page, ".head [data-total]", new RegExp(`^${counted} of `));
    assert.deepEqual(await page.$$eval(".rows .badge", (nodes, state) => nodes.filter((node) => node.textContent !== state), state), []);
  }
});

dashboard("what needs attention is first, by cause, failed before crashing", async (page) => {
  await enter(page);
  await shows(page, ".attention li:nth-child(1)", /failed\s+unauthorized · http:\/\/gone\.example ×3[^]*Check the user and password/);
  await shows(page, ".attention li:nth-child(2)", /crashing\s+db_not_found · [^]* ×6[^]*Create the database[^]*\+3 more/);
  const order = await page.$$eval("main section, main .tiles, main .charts", (nodes) => nodes.map((node) => node.getAttribute("aria-labelledby") ?? node.className));
  assert.deepEqual(order, ["h-attention", "tiles", "h-nodes", "charts"]);
  await click(page, ".attention li:nth-child(2) .names a:last-child");
  await shows(page, ".head [data-total]", /^6 of /);
  await shows(page, ".of-cause", /crashing db_not_found/);
  await click(page, "[data-cause-clear]");
  await shows(page, ".head [data-total]", /^\d+$/);
});

dashboard("the numbers of tiles, nodes and list agree", async (page) => {
  await enter(page);
  await page.waitForSelector(".nodes tbody tr");
  const read = () => page.evaluate(() => {
    const number = (selector) => Number(document.querySelector(selector)?.textContent.replaceAll(",", "") ?? NaN);
    const sum = (label) => [...document.querySelectorAll(`.nodes [data-label="${label}"]`)].reduce((all, node) => all + (Number(node.textContent) || 0), 0);
    return { tiles: [number(".tiles .running strong"), number(".tiles .idle strong")], nodes: [sum("Running"), sum("Idle")] };
  });
  const { tiles } = await until(read, ({ tiles, nodes }) => tiles[0] === nodes[0] && tiles[1] === nodes[1]);
  assert.equal(tiles[0] + tiles[1], 2);
  const all = await counts();
  assert.equal(Object.values(all).reduce((sum, count) => sum + count), (await service.request("/_scheduler/replications?limit=0")).total_rows);
});

dashboard("the charts begin with the hour that the nodes have kept", async (page) => {
  const now = Date.now();
  const minutes = Array.from({ length: 59 }, (_, n) => ({
    time: new Date(now - (59 - n) * 60_000).toISOString(), docs_written: 60 * n, bytes_written: n, states: { running: n, idle: 2 },
  }));
  const proxy = await serveProxy(service, (request, response) => {
    if (!request.url.startsWith("/_scheduler/history")) return false;
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ minutes }));
    return true;
  });
  try {
    await enter(page, "", proxy.url);
    const points = (chart) => page.$eval(`${chart} .line`, (line) => line.getAttribute("d").split("L").length).catch(() => 0);
    await until(() => points("[data-throughput]"), (points) => points >= 59);
    await until(() => points("[data-states]"), (points) => points >= 59);
    await shows(page, "[data-throughput] .tick", /−\d+ min/);
  } finally {
    proxy.stop();
  }
  // The service itself answers, too.
  assert(Array.isArray((await service.request("/_scheduler/history")).minutes));
});

dashboard("one list has all replications, in any order, with filters that count", async (page) => {
  const asked = [];
  page.on("request", (request) => { if (request.url().includes("_scheduler/")) asked.push(new URL(request.url())); });
  await enter(page, "#/replications");
  // What needs someone is first.
  await shows(page, ".rows tbody tr:first-child", /failed-0[^]*unauthorized/);
  assert.deepEqual((await names(page)).slice(0, 5), ["failed-0", "failed-1", "failed-2", "lost-0", "lost-1"]);
  await shows(page, ".rows tbody tr:nth-child(4) [data-label='Next try']", /in \d+ s|due now/);
  const { total_rows: total } = await service.request("/_scheduler/replications?limit=0");
  await shows(page, ".head [data-total]", new RegExp(`^${total}$`));
  for (const [state, count] of [["failed", 3], ["crashing", 6], ["paused", 60], ["completed", 4]]) {
    await shows(page, `.chip.${state}`, new RegExp(`${state}\\s+${count}$`));
  }
  await page.keyboard.press("]");
  await shows(page, ".pager", "Page 2");
  await until(() => names(page), (ids) => ids.length === total - 50);
  await click(page, ".c-id .sort");
  await page.waitForSelector(".c-id[aria-sort=ascending]");
  await until(() => names(page), (ids) => ids[0] === "completed-0" || ids[0] < "completed-0");
  await click(page, ".c-id .sort");
  await page.waitForSelector(".c-id[aria-sort=descending]");
  await until(() => names(page), (ids) => ids[0] === "runs");
  for (const column of ["state", "source", "target", "type", "lag", "rate", "next_try", "last_updated"]) {
    await click(page, `.c-${column} .sort`);
    await page.waitForSelector(`.c-${column}[aria-sort]`);
    await page.waitForNetworkIdle({ idleTime: 200 });
    assert.equal((await names(page)).length, 50, column);
  }
  // A search counts what it finds, in ids and in URLs.
  await fill(page, "[data-search]", "LOST-");
  await until(() => names(page), (ids) => ids.length === 6);
  await shows(page, ".chip.crashing", /crashing\s+6$/);
  await shows(page, ".chip.paused", /paused\s+0$/);
  await fill(page, "[data-search]", "/nowhere-3");
  await until(() => names(page), (ids) => ids.length === 1 && ids[0] === "lost-3");
  await fill(page, "[data-search]", "/asked");
  await shows(page, ".rows tbody tr", /no document, requested by root[^]*continuous/);
  await fill(page, "[data-search]", "");
  await page.waitForSelector(`[data-database] option[value="${OTHER}"]`);
  await page.select("[data-database]", OTHER);
  await until(() => names(page), (ids) => ids.length === 7);
  await shows(page, "[data-database]", new RegExp(`${OTHER} \\(7\\)`));
  await fill(page, "[data-search]", "no such thing");
  await shows(page, ".empty", "No matching replications.");
  assert.deepEqual(asked.filter((url) => /replications/.test(url.pathname) && url.searchParams.get("limit") !== "50"), []);
});

dashboard("many are paused, restarted and deleted with one request", async (page) => {
  const posted = [];
  page.on("request", (request) => { if (request.method() === "POST" && /_scheduler/.test(request.url())) posted.push(JSON.parse(request.postData())); });
  await enter(page, "#/replications?q=many-&sort=id");
  await until(() => names(page), (ids) => ids.length === 50);
  await click(page, "[data-all]");
  await shows(page, "[data-chosen]", "50 selected");
  await click(page, "[data-everything]");
  await shows(page, "[data-chosen]", "60 selected");
  await click(page, "[data-action=delete]");
  await shows(page, "dialog[open]", /Delete 60 replications\?[^]*documents are deleted[^]*stay on the targets/);
  // The dialog keeps the focus, and Escape closes it.
  for (let tabs = 0; tabs < 6; tabs += 1) {
    await page.keyboard.press("Tab");
    assert(await page.evaluate(() => document.activeElement === document.body || Boolean(document.activeElement.closest("dialog[open]"))));
  }
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog:not([open])#confirm");
  assert.equal(posted.length, 0);
  await click(page, "[data-clear]");
  // By keys: two rows.
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await shows(page, "[data-chosen]", "2 selected");
  assert.equal(await focused(page), "many-01");
  await click(page, "[data-action=resume]");
  await shows(page, "#confirm-text", /2 paused/);
  await click(page, "#confirm-yes");
  await shows(page, ".toast", "Resumed 2 replications.");
  assert.deepEqual([posted[0].action, posted[0].keys.length], ["resume", 2]);
  await until(() => counts(), ({ paused }) => paused === 58);
  await click(page, "[data-all]");
  await click(page, "[data-everything]");
  await click(page, "[data-action=delete]");
  await click(page, "#confirm-yes");
  await shows(page, ".toast", "Deleted 60 replications.");
  assert.deepEqual(posted[1], { action: "delete", matching: { q: "many-", database: "", cause: "", states: [] } });
  await shows(page, ".empty", "No matching replications.");
  assert.equal((await counts()).paused, 0);
});

dashboard("all of a cause are restarted at once", async (page) => {
  await enter(page);
  await shows(page, ".attention li:nth-child(1)", /failed[^]*×3/);
  await click(page, ".attention li:nth-child(1) button");
  await shows(page, "dialog[open]", "Restart 3 replications?");
  await click(page, "#confirm-yes");
  await shows(page, ".toast", "Restarted 3 replications.");
  // They have jobs now. Without a password, they fail again, but not as they had.
  const rows = async () => (await service.request(`/_scheduler/replications?q=failed-&database=${encodeURIComponent(OTHER)}`)).replications;
  await until(rows, (rows) => rows.length === 3 && rows.every(({ job_id: job, cause }) => job && !/gone\.example/.test(cause ?? "")));
});

dashboard("a replication is edited in place: a new password and new options", async (page) => {
  const source = { url: service.source, auth: { basic: { username: "admin", password: "wrong" } } };
  await service.request("/_replicator/edited", { method: "PUT", json: { source, target: service.endpoint(service.target), continuous: true, note: "kept" } });
  await until(() => service.request("/_scheduler/docs/_replicator/edited"), ({ state }) => state === "crashing");
  await enter(page, "#/doc/_replicator/edited");
  await shows(page, ".alert", /auth_error[^]*Check the user and password[^]*Next try/);
  await shows(page, ".details", /Next try/);
  await click(page, "[data-edit]");
  await shows(page, ".job .create h1", "Edit edited");
  assert.equal(await page.$eval("[name=source]", (node) => node.value), service.source);
  assert.equal(await page.$eval("[name=source_user]", (node) => node.value), "admin");
  assert.equal(await page.$eval("[name=source_password]", (node) => node.value), "");
  await fill(page, "[name=source_password]", service.peerPassword);
  await click(page, "[name=skip_deleted]");
  await click(page, ".job [data-submit]");
  await shows(page, ".toast", "Saved edited.");
  await until(() => service.request("/_scheduler/docs/_replicator/edited"), ({ state }) => state === "running");
  await shows(page, ".job-title .badge", /running|idle/);
  const doc = await service.request("/_replicator/edited");
  assert.deepEqual([doc.note, doc.skip_deleted, doc.continuous, doc.target.auth.basic.password], ["kept", true, true, service.peerPassword]);
  assert.equal((await page.$$(".job .create")).length, 0);
  await click(page, "[data-delete]");
  await shows(page, "#confirm-text", /The document edited in _replicator is deleted\. (Its job is running on|It has caught up)/);
  await page.keyboard.press("Escape");
});

dashboard("rejected addresses are explained at their field", async (page) => {
  await enter(page, "#/new");
  await fill(page, "[name=source]", "http://169.254.169.254/latest");
  await fill(page, "[name=target]", service.target);
  await click(page, "[data-submit]");
  await shows(page, ".field-error, [data-form-error]", /egress[^]*|not allowed/);
});

dashboard("nodes are listed with version, roles and last sign of life", async (page) => {
  await enter(page, "#/nodes");
  await shows(page, ".nodes tbody tr", /davenport@[^]*frontend, replication[^]*\d+\.\d+\.\d+[^]*ago|just now/);
  assert.equal(await page.$$eval(".nodes .badge:not([hidden])", (nodes) => nodes.length), 0);
  const dead = {
    node: "davenport@dead", roles: ["replication"], version: "0.1.0", started: "2026-01-01T00:00:00Z", last_seen: new Date(Date.now() - 180_000).toISOString(),
    uptime_seconds: 60, alive: false, running: 0, idle: 0, unreachable: 0, docs_per_second: 0, bytes_per_second: 0, changes_pending: 0, lag_seconds_max: 0,
  };
  const proxy = await serveProxy(service, (request, response) => {
    if (!request.url.startsWith("/_scheduler/nodes")) return false;
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ nodes: [dead] }));
    return true;
  });
  try {
    // The cookie of the host is good for this port, too.
    await page.goto(`${proxy.url}_dashboard/#/nodes`);
    await shows(page, ".nodes .dead", /davenport@dead silent[^]*3 min ago/);
    await shows(page, ".head [data-total]", "0 running, 1 silent");
  } finally {
    proxy.stop();
  }
});

dashboard("the keyboard reaches everything", async (page) => {
  await service.request("/_replicator/by%20keys", { method: "PUT", json: service.replication({ paused: true, since_seq: "keys" }) });
  await enter(page);
  await shows(page, "h1", "Overview");
  await page.keyboard.press("?");
  await shows(page, "dialog[open]", "Keyboard shortcuts");
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("s");
  await shows(page, "h1", "Nodes");
  await page.keyboard.press("g");
  await page.keyboard.press("r");
  await shows(page, "h1", "Replications");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.type("by key");
  await until(() => names(page), (ids) => ids.length === 1 && ids[0] === "by keys");
  await page.keyboard.press("Escape");
  await page.keyboard.press("j");
  assert.equal(await focused(page), "by keys");
  await page.keyboard.press("Enter");
  await shows(page, ".job-title", /by keys\s+paused/);
  await page.keyboard.press("p");
  await shows(page, "#live", "Paused");
  await page.keyboard.press("p");
  await shows(page, "#live", "Live");
  await page.keyboard.press("n");
  await shows(page, "h1", "Create replication");
  assert.equal(await page.evaluate(() => document.activeElement.name), "source");
  // Every stop of the Tab key in the list can be seen, and the last is behind the table.
  await page.evaluate(() => { location.hash = "#/replications?sort=id"; });
  await page.waitForSelector(".rows tbody .name");
  await page.evaluate(() => document.activeElement.blur());
  const stops = [];
  for (let tabs = 0; tabs < 40; tabs += 1) {
    await page.keyboard.press("Tab");
    stops.push(await page.evaluate(() => {
      const node = document.activeElement, shown = node.closest(".chip") ?? node, style = getComputedStyle(shown);
      return { tag: node.tagName, type: node.type, text: node.textContent.trim(), outlined: style.outlineStyle !== "none" };
    }));
  }
  assert.deepEqual(stops.filter(({ tag, outlined }) => tag !== "BODY" && !outlined), []);
  for (const text of ["State", "Next try", "Last change"]) assert(stops.some((stop) => stop.text === text), text);
  assert(stops.some(({ type }) => type === "checkbox"));
});

dashboard("on a phone, failures come first", async (page) => {
  await enter(page);
  await page.waitForSelector(".attention li");
  const top = (selector) => page.$eval(selector, (node) => node.getBoundingClientRect().top);
  assert(await top(".attention li") < 200);
  assert(await top(".attention li") < await top(".tiles"));
  await page.evaluate(() => { location.hash = "#/replications"; });
  await page.waitForSelector(".rows tbody tr");
  await shows(page, ".rows tbody tr:first-child .badge", /failed|crashing/);
  await page.select("[data-order]", "id");
  await until(() => names(page), (ids) => ids[0] < "d");
  assert(await page.evaluate((width) => document.scrollingElement.scrollWidth <= width, PHONE.width));
}, PHONE);
