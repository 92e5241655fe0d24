// The page of rules and deliveries, with a receiver that refuses calls and then takes them.

import { once } from "node:events";
import { createServer } from "node:http";
import { after, before } from "node:test";
import { click, fill, launch, shows, story } from "./browser.mjs";
import { PASSWORD, Service } from "./service.mjs";

let service, browser, receiver, status = 410;
before(async () => {
  receiver = createServer((_, response) => { response.writeHead(status); response.end("so it is"); });
  await once(receiver.listen(0, "127.0.0.1"), "listening");
  [service, browser] = await Promise.all([Service.start({ follow: true }), launch()]);
  const url = `http://bob:s3cr3t@127.0.0.1:${receiver.address().port}/\${change.id}`;
  await service.request("/_rules", { method: "PUT" });
  await service.request("/_rules/hook", { method: "PUT", json: { type: "on_change", db_name: "^orders$", url, method: "post", block: false, trigger: { min_interval_sec: 5 } } });
  const copy = { type: "replicator", source: service.endpoint(service.source), target: service.endpoint(service.target.replace(/orders\/?$/, "ruled")), create_target: true };
  await service.request("/_rules/copy", { method: "PUT", json: copy });
});
after(async () => { await browser?.close(); await service?.stop(); receiver?.close(); receiver?.closeAllConnections(); });

const row = (name) => `.rules tbody tr:nth-child(${name === "copy" ? 1 : 2})`;

story("rules are paused and triggered, and dead calls are made again", () => browser, async (page) => {
  await page.goto(String(new URL("/_dashboard/#/rules?state=dead", service.url)));
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
  await shows(page, `${row("hook")} th`, "hook");
  await shows(page, row("hook"), /POST http:\/\/127\.0\.0\.1:\d+\/\$\{change\.id\}/);
  await shows(page, `${row("copy")} .badge`, /running|idle|pending/);
  await shows(page, ".deliveries tbody tr", /dead\s+1\s+410 in/);

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
});
