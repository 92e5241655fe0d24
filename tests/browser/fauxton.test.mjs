// Fauxton, which takes the service for a CouchDB.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { click, fill, launch, shows, story } from "./browser.mjs";
import { serveFauxton } from "./fauxton.mjs";
import { PASSWORD, Service } from "./service.mjs";

let service, fauxton, browser;
before(async () => {
  [service, browser] = await Promise.all([Service.start(), launch()]);
  fauxton = await serveFauxton(service);
});
after(async () => { await browser?.close(); await fauxton?.stop(); await service?.stop(); });

// What the service could not answer.
function answers(page) {
  const bad = [];
  page.on("response", (response) => {
    const { pathname } = new URL(response.url());
    if (response.status() >= 500) bad.push(`${response.status()} ${response.request().method()} ${pathname}`);
  });
  return bad;
}

async function enter(page) {
  await page.goto(`${fauxton.url}#login`);
  await fill(page, "#username", "root");
  await fill(page, "#password", PASSWORD);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !location.hash.includes("login"));
}

const go = (page, hash) => page.evaluate((hash) => { location.hash = hash; }, hash);

story("Fauxton logs in, makes a replication in its form, and shows its state", () => browser, async (page) => {
  const bad = answers(page);
  await enter(page);
  await go(page, "#/replication");
  await shows(page, ".replication__empty-row", "There is no replicator-db activity");

  await click(page, 'a[href="#/replication/_create"]');
  await page.waitForSelector("#replication-source");
  await page.select("select#replication-source", "REPLICATION_SOURCE_REMOTE");
  await fill(page, ".replication__remote-connection-url", service.source.replace(/\/$/, ""));
  await page.select("#select-replication-source-auth", "BASIC_AUTH");
  await fill(page, "#replication-source-auth-username", "admin");
  await fill(page, "#replication-source-auth-password", service.peerPassword);
  await page.select("select#replication-target", "REPLICATION_TARGET_NEW_REMOTE_DATABASE");
  const targets = await page.$$(".replication__remote-connection-url");
  assert.equal(targets.length, 2);
  await targets[1].type(service.target.replace(/orders\/?$/, "by-fauxton"));
  await page.select("#select-replication-target-auth", "BASIC_AUTH");
  await fill(page, "#replication-target-auth-username", "admin");
  await fill(page, "#replication-target-auth-password", service.peerPassword);
  await fill(page, ".replication__doc-name-input", "made-by-fauxton");
  await click(page, "#replicate");

  await page.waitForFunction(() => location.hash === "#/replication");
  const made = await service.request("/_replicator/made-by-fauxton");
  assert.deepEqual([made.create_target, made.owner], [true, "root"]);
  await until("completed");
  await page.reload();
  await shows(page, ".replication__table-row", /by-fauxton[^]*[Cc]ompleted/);
  assert.deepEqual(bad, []);
});

story("Fauxton shows what fails, and deletes it", () => browser, async (page) => {
  const bad = answers(page);
  await service.request("/_replicator/fails", { method: "PUT", json: { source: service.endpoint(service.source.replace(/orders\/?$/, "nowhere")), target: service.endpoint(service.target) } });
  await until("crashing", "fails");
  await enter(page);
  await go(page, "#/replication");
  await shows(page, ".replication__table-row", /nowhere[^]*[Rr]etrying/);
  // The document in its editor, and the lists of databases and tasks.
  await go(page, "#/database/_replicator/fails");
  await shows(page, ".ace_content", /nowhere/);
  await go(page, "#/database/_replicator/_all_docs");
  await shows(page, "#dashboard-content", /fails/);
  await go(page, "#/_all_dbs");
  await shows(page, "#dashboard-content", /_replicator/);
  await go(page, "#/activetasks");
  await shows(page, "#dashboard-content", /No active tasks|Replication/i);

  await go(page, "#/replication");
  const row = await page.waitForFunction(() => [...document.querySelectorAll(".replication__table-row")].find((row) => /nowhere/.test(row.innerText)));
  await row.$("input[type=checkbox]").then((box) => box.click());
  await click(page, ".bulk-select-trash");
  await page.waitForFunction(() => [...document.querySelectorAll(".modal button, .modal a")].some((node) => /delete/i.test(node.textContent)));
  await page.evaluate(() => [...document.querySelectorAll(".modal button, .modal a")].find((node) => /delete/i.test(node.textContent)).click());
  await page.waitForFunction(() => ![...document.querySelectorAll(".replication__table-row")].some((row) => /nowhere/.test(row.innerText)));
  await assert.rejects(service.request("/_replicator/fails"), /404/);
  assert.deepEqual(bad, []);
});

async function until(state, id = "made-by-fauxton") {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const row = await service.request(`/_scheduler/docs/_replicator/${id}`);
    if (row.state === state) return;
    assert(Date.now() < deadline, JSON.stringify(row));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
