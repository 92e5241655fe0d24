// Spiegel's own stress test: the first of 1,000 databases gets messages, one after the other, and 999 rules replicate it to
// the others. For each message: the time until all databases have it, and CouchDB's processor time until it is idle again.
// One line of JSON per figure. The CouchDB must be on this machine, without a database `_global_changes`.
//
//   COUCHDB=http://USER:PASSWORD@127.0.0.1:5984 COUCHDB_PID=… SPIEGEL=DIRECTORY node stress.mjs spiegel [DATABASES [MESSAGES]]
//   COUCHDB=…                                   COUCHDB_PID=… DAVENPORT=PROGRAM node stress.mjs davenport [DATABASES [MESSAGES]]
//
// SPIEGEL is a checkout of redgeoff/spiegel 1.2.0 with its dependencies (`npm install --omit=dev --legacy-peer-deps`).

import { createRequire } from "node:module";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";

const require = createRequire(import.meta.url);
const [who, databases = 1000, messages = 5] = [process.argv[2], ...process.argv.slice(3).map(Number)];
const withUser = process.env.COUCHDB.replace(/\/$/, "");
const { protocol, host, username, password } = new URL(withUser);
const couch = `${protocol}//${host}`;
const basic = (user, word) => "Basic " + Buffer.from(`${user}:${word}`).toString("base64");
const authorization = basic(username, password);
const prefix = `stress-${process.pid}-`;
const name = (n) => `${prefix}user_${n}`;
const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const MESSAGE_MAX_MS = 900_000;

function ask(method, url, body, as = authorization) {
  return new Promise((resolve, reject) => {
    const data = body === undefined ? "" : JSON.stringify(body);
    const headers = { authorization: as, "content-type": "application/json", "content-length": Buffer.byteLength(data) };
    const request = http.request(url, { method, headers, agent }, (response) => {
      let text = "";
      response.on("data", (part) => (text += part));
      response.on("end", () => resolve({ status: response.statusCode, body: /^[[{]/.test(text) ? JSON.parse(text) : text }));
    });
    request.on("error", reject);
    request.end(data);
  });
}

/** Calls `work` for each number below `count`, some side by side. */
async function each(count, work) {
  let next = 0;
  const loop = async () => {
    while (next < count) await work(next++);
  };
  await Promise.all(Array.from({ length: 16 }, loop));
}

/** CPU seconds of a process. */
function cpu(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

function report(metric, value, unit) {
  const load = Number(readFileSync("/proc/loadavg", "utf8").split(" ")[0]);
  console.log(JSON.stringify({ bench: "spiegel", who, metric, value: Math.round(value * 1000) / 1000, unit, load }));
}

/** Waits until CouchDB has used less than 5 % of a core for 3 s. */
async function quiet() {
  for (let calm = 0; calm < 3; ) {
    const before = cpu(process.env.COUCHDB_PID);
    await sleep(1000);
    calm = cpu(process.env.COUCHDB_PID) - before < 0.05 ? calm + 1 : 0;
  }
}

/** Databases that were updated. */
let seen = new Set();
function follow() {
  const path = `${couch}/_db_updates?feed=continuous&heartbeat=10000&since=now`;
  const request = http.get(path, { headers: { authorization } }, (response) => {
    let rest = "";
    response.on("data", (part) => {
      const lines = (rest + part).split("\n");
      rest = lines.pop();
      for (const line of lines.filter((line) => line.trim())) {
        const row = JSON.parse(line);
        if (row.type === "updated" && row.db_name.startsWith(prefix)) seen.add(row.db_name);
      }
    });
    response.on("error", () => {});
  });
  request.on("error", () => {});
  return request;
}

const rules = () =>
  Array.from({ length: databases - 1 }, (_, n) => ({
    _id: `rule-${n}`,
    type: "replicator",
    source: `${withUser}/${name(0)}`,
    target: `${withUser}/${name(n + 1)}`,
  }));

/** As Spiegel's stress test runs it: two listeners and replicators of each kind, default options. */
async function spiegel() {
  require(`${process.env.SPIEGEL}/src/utils.js`).setCouchDBConfig(withUser);
  const Runner = require(`${process.env.SPIEGEL}/test/stress/runner.js`);
  const runner = new Runner();
  Object.assign(runner, { _dbName: `${prefix}spiegel`, _namespace: prefix.replaceAll("-", "_"), _url: withUser });
  await runner.start();
  await ask("POST", `${couch}/${runner._dbName}/_bulk_docs`, { docs: rules() });
  const stop = async () => {
    await Promise.race([runner.stop(), sleep(20_000)]);
    await ask("DELETE", `${couch}/${runner._dbName}`);
  };
  return { pid: process.pid, stop };
}

async function davenport() {
  const dir = mkdtempSync("/tmp/stress-");
  writeFileSync(`${dir}/config.toml`, `[sources.main]\nurl = "${withUser}"\n`);
  const store = ["--config", `${dir}/config.toml`, "--store", `lmdb:${dir}/store`];
  const listen = ["--listen", "127.0.0.1:0", "--admin", "stress:stress", "--set", "log.level=error"];
  const node = spawn(process.env.DAVENPORT, ["serve", ...store, ...listen], { stdio: ["ignore", "pipe", "inherit"] });
  const url = await new Promise((resolve) => {
    let text = "";
    node.stdout.on("data", (part) => {
      text += part;
      if (text.includes("davenport is ready")) resolve(/listens on (http:\S+)/.exec(text)[1]);
    });
  });
  const own = basic("stress", "stress");
  await ask("PUT", `${url}/spiegel`, undefined, own);
  const begun = Date.now();
  const written = await ask("POST", `${url}/spiegel/_bulk_docs`, { docs: rules() }, own);
  const refused = written.body.find((row) => row.error);
  if (refused) throw new Error(JSON.stringify(refused));
  const sleeps = async () => {
    const { body } = await ask("GET", `${url}/_metrics`, undefined, own);
    return Number(/^davenport_replicator_jobs_sleeps_total (\S+)/m.exec(body)?.[1] ?? 0);
  };
  while ((await sleeps()) < databases - 1) await sleep(500);
  report("first_runs_s", (Date.now() - begun) / 1000, "s");
  const stop = async () => {
    node.kill("SIGTERM");
    await new Promise((resolve) => node.on("exit", resolve));
    rmSync(dir, { recursive: true });
  };
  return { pid: node.pid, stop };
}

async function send(n, pid) {
  seen = new Set();
  const [couchBefore, ownBefore, begun] = [cpu(process.env.COUCHDB_PID), cpu(pid), Date.now()];
  await ask("POST", `${couch}/${name(0)}`, { msg: `this is sample message ${n}`, created_at: new Date().toISOString() });
  while (seen.size < databases) {
    await sleep(20);
    if (Date.now() - begun > MESSAGE_MAX_MS) throw new Error(`only ${seen.size} databases got the message`);
  }
  report("message_s", (Date.now() - begun) / 1000, "s");
  await quiet();
  report("couchdb_cpu_s", cpu(process.env.COUCHDB_PID) - couchBefore, "s");
  report("own_cpu_s", cpu(pid) - ownBefore, "s");
}

const created = await ask("PUT", `${couch}/_global_changes`);
if (created.status === 412) throw new Error("this CouchDB has a database _global_changes; use another one");
let started;
const feed = follow();
try {
  await each(databases, (n) => ask("PUT", `${couch}/${name(n)}`));
  started = await (who === "spiegel" ? spiegel() : davenport());
  await quiet();
  for (let n = 1; n <= messages; n++) await send(n, started.pid);
  let incomplete = 0;
  await each(databases, async (n) => {
    const { body } = await ask("GET", `${couch}/${name(n)}`);
    if (body.doc_count !== messages) incomplete++;
  });
  report("incomplete_databases", incomplete, "databases");
} finally {
  feed.destroy();
  await started?.stop();
  await each(databases, (n) => ask("DELETE", `${couch}/${name(n)}`));
  await ask("DELETE", `${couch}/_global_changes`);
}
process.exit(0);
