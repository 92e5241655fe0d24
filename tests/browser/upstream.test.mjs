// The dashboard of a frontend in front of a cluster.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { click, fill, launch, shows, story } from "./browser.mjs";
import { Service } from "./service.mjs";

let service, browser;
before(async () => { [service, browser] = await Promise.all([Service.start({ upstream: true }), launch()]); });
after(async () => { await browser?.close(); await service?.stop(); });

story("names of the cluster's databases are accepted in the form as in the API", () => browser, async (page) => {
  await page.goto(new URL("/_dashboard/#/new", service.url));
  await fill(page, "[name=name]", "admin");
  await fill(page, "[name=password]", service.peerPassword);
  await page.keyboard.press("Enter");
  await shows(page, "h1", "Create replication");
  await fill(page, "[name=source]", "orders");
  await fill(page, "[name=target]", "orders-by-name");
  await shows(page, "[data-own]", "used with your rights");
  await fill(page, "[name=own_password]", service.peerPassword);
  await click(page, "[name=create_target]");
  await fill(page, "[name=id]", "by name");
  await click(page, "[data-submit]");
  await shows(page, "h1", "by name");
  await shows(page, ".job-title .badge", "completed");
  const headers = { authorization: `Basic ${btoa(`admin:${service.peerPassword}`)}` };
  const doc = await (await fetch(new URL("/_replicator/by%20name", service.url), { headers })).json();
  assert.deepEqual([doc.source, doc.target], ["orders", "orders-by-name"]);
  // It is edited as it was written.
  await click(page, "[data-edit]");
  await shows(page, ".job .create h1", "Edit by name");
  assert.equal(await page.$eval("[name=source]", (node) => node.value), "orders");
});
