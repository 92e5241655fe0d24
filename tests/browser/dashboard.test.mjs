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
  await enter(page, "#/nodes");
  await shows(page, "h1", "Nodes");
  await page.deleteCookie(...(await page.cookies()));
  await shows(page, "[role=alert]", "Your session has expired");
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await shows(page, "h1", "Nodes");
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
  // The history is collapsed, and there are no rejected documents to show.
  await shows(page, "[data-latest]", /started/);
  assert.equal(await page.$eval("[data-history-more]", (more) => more.open), false);
  await click(page, "[data-history-more] summary");
  await shows(page, "[data-history]", /added/);
  assert.equal(await page.$eval("[data-rejected-box]", (box) => box.hidden), true);
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
  await shows(page, "[data-latest]", /started/);

  await click(page, "[data-delete]");
  await shows(page, "dialog[open]", "Delete replication formed here?");
  await shows(page, "#confirm-text", /The document formed here in _replicator is deleted[^]*documents it has copied stay on the target/);
  await click(page, "dialog[open] button[value=no]");
  await click(page, "[data-delete]");
  await click(page, "#confirm-yes");
  await shows(page, "h1", "Replications");
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

dashboard("markup in names is shown as text", async (page) => {
  const id = '<img src=x onerror="window.caught=1">&amp;"\'';
  await put(id, service.replication({ paused: true, since_seq: "odd" }));
  await enter(page, "#/replications?states=paused");
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
  const request = page.waitForRequest((request) => request.url().includes("_scheduler/causes"));
  await hide(false);
  await request;
});

dashboard("an outage is shown until the service responds again", async (page) => {
  await enter(page);
  await shows(page, "#live", "Live");
  await page.setOfflineMode(true);
  await shows(page, "#live", "Unavailable");
  await page.setOfflineMode(false);
  await shows(page, "#live", "Live");
});

for (const [where, hash] of [["overview", "#/"], ["list", "#/replications"], ["nodes", "#/nodes"], ["rules", "#/rules"], ["remotes", "#/remotes"], ["jobs", "#/queue/rep_jobs"], ["form", "#/new"]]) {
  dashboard(`a phone shows the ${where} without scrolling sideways`, async (page) => {
    await enter(page, hash);
    await page.waitForSelector(".view");
    await page.waitForNetworkIdle({ idleTime: 300 });
    // `innerWidth` grows with what is too wide.
    const wide = await page.evaluate((width) => {
      const all = [...document.querySelectorAll("body *")].filter((node) => node.getClientRects().length && getComputedStyle(node).position !== "absolute" && !node.closest("svg, thead, option"));
      return all.filter((node) => node.getBoundingClientRect().right > width + 1).map((node) => node.outerHTML.slice(0, 120));
    }, PHONE.width);
    assert.deepEqual(wide, []);
    assert(await page.evaluate((width) => document.scrollingElement.scrollWidth <= width, PHONE.width));
  }, PHONE);
}

test("every control has a name, in light and in dark", async () => {
  const page = await open(browser);
  try {
    for (const scheme of ["light", "dark"]) {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      if (scheme === "light") await enter(page);
      for (const hash of ["#/", "#/replications", "#/rules", "#/queue", "#/queue/rep_jobs", "#/nodes", "#/new"]) {
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
