// The page of rules and deliveries, with a receiver that refuses calls and then takes them, and one that is overloaded.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before } from "node:test";
import { PHONE, click, fill, launch, shows, story } from "./browser.mjs";
import { PASSWORD, Service } from "./service.mjs";

let service, browser, receiver, overloaded, status = 410;
async function answering(code) {
  const server = createServer((_, response) => { response.writeHead(code()); response.end("so it is"); });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return server;
}
before(async () => {
  // Two endpoints: calls to one that fails are put off.
  [receiver, overloaded] = await Promise.all([answering(() => status), answering(() => 503)]);
  [service, browser] = await Promise.all([Service.start({ follow: true }), launch()]);
  const [url, waiting] = [receiver, overloaded].map((server) => `http://bob:s3cr3t@127.0.0.1:${server.address().port}/\${change.id}`);
  await service.request("/_rules", { method: "PUT" });
  await service.request("/_rules/hook", { method: "PUT", json: { type: "on_change", db_name: "^orders$", url, method: "post", block: false, trigger: { min_interval_sec: 5 } } });
  await service.request("/_rules/wait", { method: "PUT", json: { type: "on_change", db_name: "^orders$", url: waiting, method: "post" } });
  const copy = { type: "replicator", source: service.endpoint(service.source), target: service.endpoint(service.target.replace(/orders\/?$/, "ruled")), create_target: true };
  await service.request("/_rules/copy", { method: "PUT", json: copy });
  const source = service.endpoint(service.source.replace(/orders\/?$/, "${name}"));
  const remote = { type: "remote", source, databases: ["none_*"], url: service.endpoint(service.target.replace(/orders\/?$/, "${name}")) };
  await service.request("/_rules/mirror", { method: "PUT", json: remote });
  // Spiegel's own documents, which are not rules, fill more than a page before its rule.
  await service.request("/spiegel", { method: "PUT" });
  const listeners = Array.from({ length: 200 }, (_, n) => ({ _id: `listener${n}`, type: "change_listener", db_name: `db${n}` }));
  await service.request("/spiegel/_bulk_docs", { method: "POST", json: { docs: listeners } });
  await service.request("/spiegel/zhook", { method: "PUT", json: { type: "on_change", db_name: "^none$", url } });
});
after(async () => { await browser?.close(); await service?.stop(); for (const server of [receiver, overloaded]) { server?.close(); server?.closeAllConnections(); } });

const row = (name) => `.rules tbody tr:nth-child(${["copy", "hook", "wait"].indexOf(name) + 1})`;

async function enter(page, hash) {
  await page.goto(String(new URL(`/_dashboard/${hash}`, service.url)));
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
}

story("remotes are paused and started", () => browser, async (page) => {
  const remote = ".remotes tbody tr:first-child";
  await enter(page, "#/remotes");
  await shows(page, `${remote} th`, "mirror");
  await shows(page, `${remote} .badge`, "up to date");
  await click(page, `${remote} button`);
  await shows(page, "#toasts", "Paused mirror.");
  await shows(page, `${remote} .badge`, "paused");
  await click(page, `${remote} button`);
  await shows(page, "#toasts", "Resumed mirror.");
  await shows(page, `${remote} .badge`, "up to date");
  await click(page, `${remote} button:last-child`);
  await shows(page, "#toasts", "Started 0 replications of mirror.");
});

story("a remote that does not exist is reported once", () => browser, async (page) => {
  await enter(page, "#/remotes?name=nope");
  await shows(page, ".card:last-child .calm", "There is no such remote.");
  assert.equal(await page.$eval("#toasts", (toasts) => toasts.innerText), "");
  await page.goto(String(new URL("/_dashboard/#/remotes?name=mirror", service.url)));
  await shows(page, ".card:last-child .calm", "No replications yet.");
});

for (const [where, table] of [["remotes", ".remotes"], ["rules", ".rules"]]) {
  story(`a phone shows the URLs of ${where} at full width`, () => browser, async (page) => {
    await enter(page, `#/${where}`);
    await shows(page, `${table} tbody tr:first-child .end`, /http/);
    const widths = await page.$eval(`${table} tbody tr:first-child`, (row) => [row.querySelector("th"), row.querySelector("td:has(> .end)")].map((cell) => cell.offsetWidth));
    assert.equal(widths[0], widths[1]);
    const cells = await page.$$eval(`${table} tbody tr:first-child td`, (all) => all.map((cell) => cell.offsetWidth));
    assert(Math.min(...cells) > 50, String(cells));
  }, PHONE);
}

story("rules are paused and triggered, and dead calls are made again or removed", () => browser, async (page) => {
  await enter(page, "#/rules?state=dead");
  await shows(page, `${row("hook")} th`, "hook");
  await shows(page, ".rules tbody tr:nth-child(4)", /^zhook\s+spiegel/);
  await shows(page, row("hook"), /POST http:\/\/127\.0\.0\.1:\d+\/\$\{change\.id\}/);
  await shows(page, `${row("copy")} .badge`, /running|idle|pending/);
  await shows(page, ".deliveries tbody tr", /^hook\s+_rules\s+orders\/\S+\s+demo · 1-[0-9a-f]{10}\s+POST/);
  await shows(page, ".deliveries tbody tr", /dead\s+1\s+410 in/);
  await shows(page, `${row("wait")} .badge`, "failing");
  await shows(page, `${row("wait")} .why`, /orders: 503 in \d+ ms/);

  await click(page, `${row("copy")} button:last-child`);
  await shows(page, "#toasts", "Triggered copy in 1 database");
  await click(page, `${row("hook")} button`);
  await shows(page, `${row("hook")} .badge`, "paused");
  await shows(page, `${row("hook")} button`, "Resume");
  await click(page, `${row("hook")} button`);
  await shows(page, `${row("hook")} .badge`, "active");

  status = 200;
  await click(page, ".deliveries tbody tr:first-child button");
  await shows(page, "#toasts", "The call is made again.");
  await page.select("[data-calls]", "delivered");
  await shows(page, ".deliveries tbody tr", /delivered\s+2\s+200 in/);

  await click(page, ".deliveries tbody tr:first-child button:last-child");
  await shows(page, "#confirm-text", "It can no longer be replayed.");
  await click(page, "#confirm-yes");
  await shows(page, "#toasts", "Removed the call of hook.");
  await shows(page, "[data-no-calls]", "No delivered calls.");
});
