// The dashboard, used as an operator uses it.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { PHONE, click, fill, launch, open, shows, story } from "./browser.mjs";
import { PASSWORD, Service } from "./service.mjs";

let service, browser;
before(async () => { [service, browser] = await Promise.all([Service.start(), launch()]); });
after(async () => { await browser?.close(); await service?.stop(); });

const dashboard = (name, work, viewport) => story(name, () => browser, work, viewport);

async function enter(page, hash = "") {
  await page.goto(new URL(`/_dashboard/${hash}`, service.url));
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForSelector("#bar:not([hidden])");
}

const go = (page, hash) => page.evaluate((hash) => { location.hash = hash; }, hash);
const put = (id, json) => service.request(`/_replicator/${encodeURIComponent(id)}`, { method: "PUT", json });
const row = (id) => service.request(`/_scheduler/docs/_replicator/${encodeURIComponent(id)}`);

async function until(what, such) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const seen = await what();
    if (such(seen)) return seen;
    assert(Date.now() < deadline, JSON.stringify(seen));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

dashboard("only administrators can log in", async (page) => {
  await page.goto(new URL("/_dashboard", service.url));
  assert.equal(new URL(page.url()).pathname, "/_dashboard/");
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", "wrong");
  await page.keyboard.press("Enter");
  await shows(page, "[role=alert]", "Name or password is incorrect.");
  assert.equal(await page.$eval("#bar", (bar) => bar.hidden), true);
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await shows(page, "h1", "Overview");
  await shows(page, "#user", "root");
  await click(page, "#logout");
  await page.waitForSelector(".login");
  await page.reload();
  await page.waitForSelector(".login");
  await service.request("/_users", { method: "PUT", ok: false });
  await service.request("/_users/org.couchdb.user:joe", { method: "PUT", json: { type: "user", name: "joe", roles: [], password: "sesame" } });
  await fill(page, "[name=name]", "joe");
  await fill(page, "[name=password]", "sesame");
  await page.keyboard.press("Enter");
  await shows(page, "[role=alert]", "joe is not a server administrator");
  assert.equal(await page.$eval("#bar", (bar) => bar.hidden), true);
});

dashboard("logging in again returns to the page where the session expired", async (page) => {
  await enter(page, "#/docs");
  await shows(page, "h1", "Documents");
  await page.deleteCookie(...(await page.cookies()));
  await shows(page, "[role=alert]", "Your session has expired");
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await shows(page, "h1", "Documents");
});

dashboard("a replication is created in the form and controlled on its page", async (page) => {
  await enter(page, "#/new");
  await shows(page, "h1", "Create replication");
  // An error of the service is shown at the field it is about, which gets the focus.
  const refused = async (field, message) => {
    await click(page, "[data-submit]");
    await shows(page, ".field-error", message);
    const named = await page.$eval(`[name=${field}]`, (node) => [node.getAttribute("aria-invalid"), document.getElementById(node.getAttribute("aria-describedby"))?.textContent ?? ""]);
    assert.equal(named[0], "true", field);
    assert.match(named[1], message);
    assert.equal(await page.evaluate(() => document.activeElement.name), field);
    assert.equal((await page.$$(".field-error")).length, 1);
  };
  await refused("source", /Missing `source` field/);
  await fill(page, "[name=source]", service.source);
  await fill(page, "[name=source_user]", "admin");
  await fill(page, "[name=source_password]", service.peerPassword);
  await refused("target", /Missing `target` field/);
  await fill(page, "[name=target]", "orders");
  await refused("target", /local_endpoints_not_supported/);
  await fill(page, "[name=target]", service.target.replace(/orders\/?$/, "formed"));
  await fill(page, "[name=target_user]", "admin");
  await fill(page, "[name=target_password]", service.peerPassword);
  await click(page, "[name=create_target]");
  await click(page, "[name=continuous]");
  await click(page, "[name=what][value=selector]");
  await fill(page, "[name=selector]", "[1]");
  await refused("selector", /`selector` must be a JSON object/);
  await fill(page, "[name=selector]", '{"_id": {"$in": 1}}');
  await refused("selector", /Bad argument for operator \$in: 1/);
  await fill(page, "[name=selector]", "{}");
  await page.$eval("details.more", (more) => { more.open = true; });
  await fill(page, "[name=worker_processes]", "many");
  await page.$eval("details.more", (more) => { more.open = false; });
  await refused("worker_processes", /`worker_processes` must be an integer/);
  await fill(page, "[name=worker_processes]", "2");
  await fill(page, "[name=source_proxy]", "ftp://proxy");
  await refused("source_proxy", /[Pp]roxy/);
  await fill(page, "[name=source_proxy]", "");
  await fill(page, "[name=id]", "formed here");
  await click(page, "[data-submit]");

  await shows(page, "h1", "formed here");
  const made = await service.request("/_replicator/formed%20here");
  assert.equal(made.worker_processes, 2);
  assert.equal(made.owner, "root");
  assert.equal(made.continuous && made.create_target, true);
  await shows(page, ".badge", /running|idle/);
  await until(() => row("formed here"), (row) => row.info?.docs_written >= 300);
  await shows(page, ".figures div:first-child", /^Documents written\s+[3-9]\d\d/);
  await shows(page, ".timeline", /started[^]*added/);
  await shows(page, ".details", "_replicator");
  assert.doesNotMatch(await page.$eval("main", (main) => main.textContent), new RegExp(service.peerPassword));

  await click(page, "[data-pause]");
  await shows(page, ".job-title .badge", "paused");
  assert.equal((await service.request("/_replicator/formed%20here")).paused, true);
  await shows(page, "[data-pause]", "Resume");
  await click(page, "[data-pause]");
  await shows(page, ".job-title .badge", /running|idle/);
  await shows(page, "[data-pause]", "Pause");
  const starts = (row) => row.history.filter(({ type }) => type === "started").length;
  const job = async () => service.request(`/_scheduler/jobs/${encodeURIComponent((await row("formed here")).job_id)}`);
  const before = starts(await job());
  await click(page, "[data-restart]");
  await until(job, (job) => starts(job) > before);
  await shows(page, ".timeline", /started/);

  await click(page, "[data-delete]");
  await shows(page, "dialog[open]", "Delete replication formed here?");
  await click(page, "dialog[open] button[value=no]");
  await click(page, "[data-delete]");
  await click(page, "#confirm-yes");
  await shows(page, "h1", "Jobs");
  await assert.rejects(service.request("/_replicator/formed%20here"), /404/);
});

dashboard("an ID that is taken is reported at its field", async (page) => {
  await put("taken", service.replication({ paused: true }));
  await enter(page, "#/new");
  await fill(page, "[name=source]", service.source);
  await fill(page, "[name=target]", service.target);
  await fill(page, "[name=id]", "taken");
  await click(page, "[data-submit]");
  await shows(page, "[name=id] + .field-error", "A document with this ID already exists");
});

dashboard("the overview lists failures with hints", async (page) => {
  await put("crashes", { source: service.endpoint(service.source.replace(/orders\/?$/, "nowhere")), target: service.endpoint(service.target) });
  await until(() => row("crashes"), ({ state }) => state === "crashing");
  await enter(page);
  await shows(page, ".attention", /crashes[^]*db_not_found[^]*Create the database/);
  await shows(page, ".tiles .crashing", /[1-9]/);
  await page.waitForSelector("[data-states] path.crashing");
  assert.match(await page.$eval("[data-throughput] svg", (svg) => svg.getAttribute("aria-label")), /^Documents per second, now: written \d/);
  await click(page, ".attention a");
  await shows(page, ".alert", /db_not_found[^]*nowhere[^]*Create the database/);
  await shows(page, ".timeline .crashed", "crashed");
});

dashboard("the overview shows running replications and their node", async (page) => {
  await put("runs", service.replication({ continuous: true }));
  await until(() => row("runs"), ({ state }) => state === "running");
  await enter(page);
  await shows(page, ".nodes", /davenport@/);
  const count = () => page.$eval(".tiles .running strong, .tiles .idle strong", () => [...document.querySelectorAll(".tiles .running strong, .tiles .idle strong")].reduce((sum, node) => sum + Number(node.textContent), 0));
  await until(count, (count) => count >= 1);
  // The chart goes on.
  const points = () => page.$eval("[data-throughput] .line", (line) => line.getAttribute("d").split("L").length).catch(() => 0);
  await until(points, (points) => points >= 2);
});

dashboard("lists are read a page at a time", async (page) => {
  const docs = Array.from({ length: 120 }, (_, at) => ({ _id: `many-${String(at).padStart(3, "0")}`, ...service.replication({ paused: true, since_seq: at }) }));
  await service.request("/other%2F_replicator", { method: "PUT" });
  await service.request("/other%2F_replicator/_bulk_docs", { method: "POST", json: { docs } });
  const asked = [];
  page.on("request", (request) => { if (request.url().includes("_scheduler/")) asked.push(new URL(request.url())); });
  await enter(page, "#/docs?database=other/_replicator");
  await shows(page, ".head", "120 in other/_replicator");
  const ids = () => page.$$eval(".rows tbody .name", (names) => names.map((name) => name.textContent));
  await shows(page, ".rows", "many-049");
  assert.deepEqual([(await ids()).length, (await ids())[0]], [50, "many-000"]);
  await page.keyboard.press("]");
  await shows(page, ".rows", "many-050");
  await shows(page, ".pager", "Page 2");
  await click(page, "[data-next]");
  await shows(page, ".rows", "many-119");
  assert.deepEqual(await ids(), docs.slice(100).map(({ _id }) => _id));
  await page.waitForSelector("[data-next]:disabled");
  await page.keyboard.press("[");
  await shows(page, ".pager", "Page 2");
  await shows(page, ".rows", "many-099");
  assert.deepEqual(asked.filter((url) => /docs\//.test(url.pathname) && url.searchParams.get("limit") !== "50"), []);

  await fill(page, "[data-search]", "many-11");
  await until(ids, (ids) => ids.length === 10 && ids[9] === "many-119");
  await click(page, ".chip.failed");
  await shows(page, ".empty", "No matching documents.");
  assert.match(page.url(), /#\/docs\?q=many-11&database=other%2F_replicator&states=failed$/);
  await page.reload();
  await shows(page, ".empty", "No matching documents.");
  await click(page, ".chip.failed");
  await until(ids, (ids) => ids.length === 10);

  // Jobs by a bookmark.
  await go(page, "#/jobs?states=paused&database=other%2F_replicator");
  await shows(page, ".pager", "Page 1");
  await until(ids, (ids) => ids.length === 50);
  const seen = new Set(await ids());
  for (const number of [2, 3]) {
    const before = (await ids())[0];
    await click(page, "[data-next]");
    await until(ids, (ids) => ids.length > 0 && ids[0] !== before);
    for (const id of await ids()) seen.add(id);
    await shows(page, ".pager", `Page ${number}`);
  }
  assert.equal(seen.size, 120);
  await fill(page, "[data-search]", "/no-such-database");
  await shows(page, ".empty", "No matching jobs.");
  await service.request("/other%2F_replicator", { method: "DELETE" });
});

dashboard("the keyboard reaches everything", async (page) => {
  await put("by keys", service.replication({ paused: true, since_seq: "keys" }));
  await enter(page);
  await shows(page, "h1", "Overview");
  await page.keyboard.press("?");
  await shows(page, "dialog[open]", "Keyboard shortcuts");
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.keyboard.press("d");
  await shows(page, "h1", "Documents");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search");
  await page.keyboard.type("by key");
  const ids = () => page.$$eval(".rows tbody .name", (names) => names.map((name) => name.textContent));
  await until(ids, (ids) => ids.length === 1 && ids[0] === "by keys");
  await page.keyboard.press("Escape");
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "by keys");
  await page.keyboard.press("Enter");
  await shows(page, ".job-title", /by keys\s+paused/);
  // A first Tab leads past the bar.
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("p");
  await shows(page, "#live", "Paused");
  await page.keyboard.press("p");
  await shows(page, "#live", "Live");
  await page.keyboard.press("n");
  await shows(page, "h1", "Create replication");
  assert.equal(await page.evaluate(() => document.activeElement.name), "source");
});

dashboard("markup in names is shown as text", async (page) => {
  const id = '<img src=x onerror="window.caught=1">&amp;"\'';
  await put(id, service.replication({ paused: true, since_seq: "odd" }));
  await enter(page, "#/docs");
  await shows(page, ".rows .name", id);
  const link = await page.evaluateHandle((id) => [...document.querySelectorAll(".rows .name")].find((name) => name.textContent === id), id);
  await link.click();
  await shows(page, "h1", id);
  await shows(page, ".job-title .badge", "paused");
  assert.deepEqual(await page.evaluate(() => ["caught" in window, document.querySelectorAll("main img").length]), [false, 0]);
});

dashboard("a hidden tab sends no requests", async (page) => {
  await enter(page);
  await shows(page, ".tiles", /running/);
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  let asked = 0;
  page.on("request", () => { asked += 1; });
  // Two turns of the fastest poll and more.
  await new Promise((resolve) => setTimeout(resolve, 5000));
  assert.equal(asked, 0);
  const request = page.waitForRequest((request) => request.url().includes("_scheduler/summary"));
  await hide(false);
  await request;
});

dashboard("a database that does not exist has no pages", async (page) => {
  await enter(page, "#/docs?database=none/_replicator");
  await shows(page, ".empty", "This database does not exist yet");
  await page.waitForSelector("[data-next]:disabled");
  await page.waitForSelector("[data-previous]:disabled");
});

dashboard("an outage is shown until the service responds again", async (page) => {
  await enter(page);
  await shows(page, "#live", "Live");
  await page.setOfflineMode(true);
  await shows(page, "#live", "Unavailable");
  await page.setOfflineMode(false);
  await shows(page, "#live", "Live");
});

for (const [where, hash] of [["overview", "#/"], ["jobs", "#/jobs"], ["documents", "#/docs"], ["form", "#/new"]]) {
  dashboard(`a phone shows the ${where} without scrolling sideways`, async (page) => {
    await enter(page, hash);
    await page.waitForSelector(".view");
    await page.waitForNetworkIdle({ idleTime: 300 });
    const wide = await page.evaluate(() => {
      const all = [...document.querySelectorAll("body *")].filter((node) => node.getClientRects().length && getComputedStyle(node).position !== "absolute" && !node.closest("svg, thead, option"));
      return all.filter((node) => node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 120));
    });
    assert.deepEqual(wide, []);
    assert(await page.evaluate(() => document.scrollingElement.scrollWidth <= innerWidth));
  }, PHONE);
}

test("every control has a name, in light and in dark", async () => {
  const page = await open(browser);
  try {
    for (const scheme of ["light", "dark"]) {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      if (scheme === "light") await enter(page);
      for (const hash of ["#/", "#/jobs", "#/docs", "#/new"]) {
        await go(page, hash);
        await page.waitForNetworkIdle({ idleTime: 300 });
        const unnamed = [];
        const walk = (node) => {
          const control = ["button", "link", "textbox", "searchbox", "combobox", "checkbox", "radio", "image", "meter"];
          if (control.includes(node.role) && !node.name?.trim()) unnamed.push(node);
          node.children?.forEach(walk);
        };
        walk(await page.accessibility.snapshot());
        assert.deepEqual(unnamed, [], hash);
      }
      const light = await page.evaluate(() => {
        const [paper, ink] = [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color];
        const bright = (color) => color.match(/[\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0);
        return bright(paper) > bright(ink);
      });
      assert.equal(light, scheme === "light");
    }
    assert.deepEqual(page.complaints, []);
  } finally {
    await page.browserContext().close();
  }
});
