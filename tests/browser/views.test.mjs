// The addresses of the dashboard's views, and the loading of its modules.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, before } from "node:test";
import { click, fill, launch, shows, story } from "./browser.mjs";
import { serveProxy } from "./proxy.mjs";
import { PASSWORD, Service } from "./service.mjs";

const ID = "orders/2024 & more";
let service, browser, job;
before(async () => {
  [service, browser] = await Promise.all([Service.start(), launch()]);
  await service.request(`/_replicator/${encodeURIComponent(ID)}`, { method: "PUT", json: service.replication({ paused: true }) });
  ({ job_id: job } = await service.request(`/_scheduler/docs/_replicator/${encodeURIComponent(ID)}`));
});
after(async () => { await browser?.close(); await service?.stop(); });

const dashboard = (name, work) => story(name, () => browser, work);

async function login(page) {
  await fill(page, "[name=name]", "root");
  await fill(page, "[name=password]", PASSWORD);
  await page.keyboard.press("Enter");
}

const VIEWS = [
  ["overview", "Overview", () => "#/", "Overview"],
  ["list", "Replications", () => "#/replications?states=paused&sort=id&descending=true", "Replications"],
  ["jobs of the first version", "Replications", () => "#/jobs?states=paused", "Replications"],
  ["documents of the first version", "Replications", () => "#/docs?q=orders&database=_replicator", "Replications"],
  ["rules", "Rules", () => "#/rules?state=dead", "Rules"],
  ["remotes", "Remotes", () => "#/remotes", "Remotes"],
  ["nodes", "Nodes", () => "#/nodes", "Nodes"],
  ["create", "Create", () => "#/new", "Create replication"],
  ["job", "Replications", () => `#/job/${encodeURIComponent(job)}`, ID],
  ["document", "Replications", () => `#/doc/_replicator/${encodeURIComponent(ID)}`, ID],
  ["unknown", "Overview", () => "#/toString/1", "Overview"],
];
for (const [view, tab, hash, heading] of VIEWS) {
  dashboard(`a deep link to the view ${view} survives login and reload`, async (page) => {
    const url = String(new URL(`/_dashboard/${hash()}`, service.url));
    const isShown = async () => {
      await shows(page, "h1", heading);
      await shows(page, "[aria-current=page]", tab);
      assert.equal(page.url(), url);
    };
    await page.goto(url);
    await shows(page, "h1", "Davenport");
    await login(page);
    await isShown();
    await page.reload();
    await isShown();
  });
}

// Serves some of the dashboard's files as another version of the service would.
async function otherVersion(page, files, work) {
  const other = { files, revalidated: [] };
  const proxy = await serveProxy(service, (request, response) => {
    const name = request.url.replace(/^\/_dashboard\//, "");
    if (request.headers["if-none-match"] === '"other"') other.revalidated.push(name);
    if (!Object.hasOwn(other.files, name)) return false;
    response.writeHead(200, { "content-type": "text/javascript", etag: '"other"', "cache-control": "no-cache" });
    response.end(other.files[name]);
    return true;
  });
  try {
    await page.goto(`${proxy.url}_dashboard/`);
    await work(other);
  } finally {
    proxy.stop();
  }
}

dashboard("modules of an older version in the cache are not used after an upgrade", async (page) => {
  const old = {
    "app.js": 'import { version } from "./lib/format.js"; document.getElementById("main").textContent = version;',
    "lib/format.js": 'export const version = "an older version";',
  };
  await otherVersion(page, old, async (other) => {
    await shows(page, "main", "an older version");
    other.files = {};
    await page.reload();
    await login(page);
    await shows(page, "h1", "Overview");
    // They were in the cache.
    assert.deepEqual(other.revalidated.sort(), Object.keys(old));
  });
});

dashboard("the page says when its modules do not fit together", async (page) => {
  await otherVersion(page, { "lib/format.js": "export {};" }, async (other) => {
    await shows(page, "main", "a script failed to load; reload the page");
    assert.match(page.complaints.join(), /does not provide an export/);
    page.complaints.length = 0;
    other.files = {};
    await page.reload();
    await login(page);
    await shows(page, "h1", "Overview");
  });
});

// Passes requests on to the demo's source, until it takes connections and never answers.
class Hanging {
  static async before(url) {
    const server = createServer(async (request, response) => {
      if (hanging.hangs) return;
      const chunks = [];
      for await (const chunk of request) chunks.push(chunk);
      const body = chunks.length ? Buffer.concat(chunks) : undefined;
      const answer = await fetch(new URL(request.url, url), { method: request.method, headers: { ...request.headers, connection: "close" }, body }).catch(() => null);
      if (!answer) return response.destroy();
      response.writeHead(answer.status, { "content-type": answer.headers.get("content-type") ?? "text/plain" });
      for await (const chunk of answer.body ?? []) if (!hanging.hangs) response.write(chunk);
      response.end();
    });
    const hanging = { hangs: false, server };
    await once(server.listen(0, "127.0.0.1"), "listening");
    hanging.url = `http://127.0.0.1:${server.address().port}`;
    return hanging;
  }
}

dashboard("a server that hangs is one line of the overview", async (page) => {
  const hanging = await Hanging.before(service.source);
  try {
    const source = service.endpoint(service.source.replace(/^https?:\/\/[^/]+/, hanging.url));
    for (const id of ["one", "two"]) {
      const target = service.endpoint(service.target.replace(/orders\/?$/, `hanging-${id}`));
      await service.request(`/_replicator/hanging-${id}`, { method: "PUT", json: { source, target, create_target: true, continuous: true, connection_timeout: 2000 } });
    }
    await page.goto(String(new URL("/_dashboard/", service.url)));
    await login(page);
    await shows(page, "h1", "Overview");
    hanging.hangs = true;
    await shows(page, ".attention li", `${hanging.url} ×2`);
    await shows(page, ".attention li .badge", "unreachable");
    assert.equal(await page.$$eval(".attention li", (rows) => rows.length), 1);
    // The link leads to the two.
    await click(page, ".attention .cause");
    await shows(page, ".rows tbody tr:nth-child(2) .badge", "unreachable");
    assert.equal(await page.$$eval(".rows tbody tr", (rows) => rows.length), 2);
  } finally {
    hanging.server.close();
    hanging.server.closeAllConnections();
  }
});
