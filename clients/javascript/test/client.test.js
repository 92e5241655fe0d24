import assert from "node:assert/strict";
import { after, before, beforeEach, test } from "node:test";
import { Client, ServiceError, UnreachableError } from "davenport-jobs";
import { Client as BrowserClient } from "../index.js";
import { Service } from "../support/service.js";

let service, client, type;
let made = 0;
before(async () => {
  service = await Service.begin();
  client = new Client(service.url);
});
after(() => service.end());
beforeEach(() => client.putType((type = `t${(made += 1)}`), { timeout_sec: 1, retry: { limit: 0 } }));

const refused = (status) => (error) => error instanceof ServiceError && error.status === status;

test("jobs are added, read and removed", async () => {
  assert.equal(await client.enqueue(type, { n: 1.5 }, { id: "a b/ü?", class: "urgent", tenant: "acme", key: "k" }), "a b/ü?");
  const unnamed = await client.enqueue(type, null, { delay_sec: 3600 });
  await client.enqueue(type, [], { id: "later", due: "2099-01-31T08:00:00+01:00" });
  await client.enqueue(type, 2, { id: "later", on_exists: "keep" });
  const job = await client.get(type, "later");
  assert.deepEqual([job.state, job.due, job.data], ["pending", "2099-01-31T07:00:00.000Z", []]);
  assert.deepEqual((await client.get(type, "a b/ü?")).data, { n: 1.5 });
  const first = await client.list(type, { state: "pending", limit: 2, data: true });
  const second = await client.list(type, { state: "pending", limit: 2, after: first.next });
  assert.deepEqual([...first.jobs, ...second.jobs].map((job) => job.id).sort(), [unnamed, "a b/ü?", "later"].sort());
  assert.ok("data" in first.jobs[0] && second.next === null);
  await client.remove(type, "later");
  await assert.rejects(client.get(type, "later"), refused(404));
  assert.equal((await client.typeInfo(type)).counts.pending, 2);
  assert.ok((await client.types()).some((one) => one.type === type));
});

test("ids and names that are lost in URLs are refused", () => {
  const calls = [(id) => client.remove(type, id), client.schedule, client.removeSchedule, client.runSchedule, client.revokeToken];
  for (const id of ["", ".", ".."]) for (const call of calls) assert.throws(() => call(id), /lost in URLs/);
});

test("many jobs have an answer each", async () => {
  const rows = await client.enqueueMany(type, [{ data: 1, id: "one" }, { data: 2, id: "_bad" }, { data: 3 }]);
  assert.deepEqual(rows.map((row) => row.ok ?? row.error), [true, "bad_request", true]);
});

test("calls at the same time share a request, and have an answer each", async () => {
  let requests = 0;
  const counting = new BrowserClient(service.url, { headers: { Authorization: `Basic ${btoa("root:s3cret")}` }, fetch: (...args) => ((requests += 1), fetch(...args)) });
  const calls = Array.from({ length: 600 }, (_, n) => counting.enqueue(type, n, { id: `n${n}` }));
  assert.deepEqual(await Promise.all(calls), Array.from({ length: 600 }, (_, n) => `n${n}`));
  assert.equal(requests, 2);
  const some = [["_bad"], ["good"], ["unknown", { nonsense: 1 }]].map(([id, more]) => counting.enqueue(type, 1, { id, ...more }));
  const ends = await Promise.allSettled(some);
  assert.deepEqual(ends.map(({ value, reason }) => value ?? reason.status), [400, "good", 400]);
  assert.match(ends[0].reason.reason, /begin with/);
  await counting.putType(type, { max_pending: 602 });
  const room = await Promise.allSettled([1, 2, 3].map((n) => counting.enqueue(type, n)));
  // Together they are refused; alone, the first is not. `max_pending` is not exact, so the others may find room too.
  assert.ok(room.some(({ status }) => status === "fulfilled"));
  for (const { reason } of room) assert.ok(!reason || reason.status === 429, String(reason));
  await assert.rejects(counting.enqueue(type, 1n), TypeError);
});

test("a repeated run of a schedule adds one job", async () => {
  await client.putSchedule(type, { type, every_sec: 3_600, job: { data: 1 } });
  const ids = [];
  for (const idempotency_key of ["monday", "monday", "tuesday"]) ids.push(await client.runSchedule(type, { idempotency_key }));
  assert.deepEqual([ids[0], new Set(ids).size], [ids[1], 2]);
  assert.equal((await client.typeInfo(type)).counts.pending, 2);
  await client.removeSchedule(type);
});

test("a repeated request adds nothing twice", async () => {
  for (const _ of [1, 2]) await client.enqueue(type, 1, { idempotency_key: "order-1" });
  await client.enqueue(type, 1);
  assert.equal((await client.typeInfo(type)).counts.pending, 2);
});

test("a full queue says when to come again", async () => {
  await client.putType(type, { max_pending: 1 });
  await client.enqueue(type, 1);
  await assert.rejects(client.enqueue(type, 2), (error) => error.status === 429 && error.retryAfter > 0);
});

test("a worker can be written by hand", async () => {
  await client.enqueueMany(type, [0, 1, 2].map((data) => ({ data })));
  const { jobs: [{ id, lock, attempt }], timeout_sec } = await client.claim(type, "by-hand", { wait_sec: 30 });
  assert.deepEqual([attempt, timeout_sec], [1, 1]);
  assert.equal((await client.beat(type, [{ id, lock, progress: 50 }])).jobs[0].status, "held");
  assert.equal((await client.get(type, id)).progress, 50);
  const done = { id, lock, outcome: "done", result: { n: 1 } };
  const reply = await client.finish(type, [done], { claim: 5, worker: "by-hand" });
  assert.deepEqual([reply.results[0].status, reply.jobs.length], ["ok", 2]);
  assert.equal((await client.finish(type, [done])).results[0].status, "repeated");
  assert.equal((await client.beat(type, [{ id, lock }])).jobs[0].status, "halt");
  const { state, result } = await client.wait(type, id);
  assert.deepEqual([state, result], ["finished", { n: 1 }]);
});

test("dead jobs are retried", async () => {
  await client.enqueueMany(type, ["a", "b", "c"].map((id) => ({ id, data: 0 })));
  const { jobs } = await client.claim(type, "w", { count: 3, wait_sec: 30 });
  const errors = { a: "one", b: "one", c: "two" };
  await client.finish(type, jobs.map(({ id, lock }) => ({ id, lock, outcome: "failed", error: errors[id] })));
  assert.equal((await client.wait(type, "a")).state, "dead");
  assert.deepEqual(await client.retryDead(type, "one"), { ok: true, count: 2 });
  await client.retry(type, "c");
  await client.pause(type);
  const { counts, paused } = await client.typeInfo(type);
  assert.deepEqual([counts.pending, counts.dead, paused], [3, 0, true]);
  await client.resume(type);
});

test("changes are followed", async () => {
  const seen = client.follow(type, [await client.enqueue(type, 0), await client.enqueue(type, 0)]);
  assert.equal((await seen.next()).value.state, "pending");
  const { jobs } = await client.claim(type, "w", { count: 2, wait_sec: 30 });
  await client.finish(type, jobs.map(({ id, lock }) => ({ id, lock, outcome: "done", result: "ok" })));
  let last;
  for await (const change of seen) last = change;
  assert.deepEqual([last.state, last.result], ["finished", "ok"]);
  await assert.rejects(client.follow(type, ["none"]).next(), refused(404));
});

test("followers learn that the service stops", async () => {
  for (const signal of ["SIGTERM", "SIGKILL"]) {
    const stopped = await Service.begin();
    try {
      const adder = new Client(stopped.url);
      await adder.putType("t", {});
      const seen = adder.follow("t", [await adder.enqueue("t", 1)]);
      assert.equal((await seen.next()).value.state, "pending");
      stopped.process.kill(signal);
      await assert.rejects(seen.next());
    } finally {
      await stopped.end();
    }
  }
});

test("an aborted claim takes no job", async () => {
  const aborts = new AbortController();
  const claims = [1, 2, 3].map(() => client.claim(type, "gone", { wait_sec: 60, signal: aborts.signal }));
  // They wait by then, as requests are handled in order of their arrival.
  await client.typeInfo(type);
  aborts.abort();
  for (const claim of await Promise.allSettled(claims)) assert.equal(claim.status, "rejected");
  await client.enqueue(type, 1, { id: "a" });
  const { jobs: [job] } = await client.claim(type, "w", { wait_sec: 60 });
  assert.deepEqual([job.id, job.failures], ["a", 0]);
});

test("schedules add jobs", async () => {
  const next = await client.putSchedule(`every-${type}`, { type, job: { data: 7 }, every_sec: 3600 });
  assert.ok(new Date(next) > new Date());
  const id = await client.runSchedule(`every-${type}`);
  assert.equal((await client.get(type, id)).data, 7);
  await client.removeSchedule(`every-${type}`);
  await assert.rejects(client.runSchedule(`every-${type}`), refused(404));
});

test("any request can be made", async () => {
  assert.equal((await client.send("GET", "/_session")).userCtx.name, "root");
});

test("addresses are checked, and the next is used when one fails", async () => {
  for (const url of ["localhost:5985", "ftp://localhost", []]) assert.throws(() => new Client(url), TypeError);
  await assert.rejects(new Client("http://127.0.0.1:1").types(), UnreachableError);
  await assert.rejects(new Client(service.base).types(), refused(401));
  assert.equal(await new Client(["http://127.0.0.1:1", service.url]).enqueue(type, 1, { id: "a" }), "a");
});

test("a late failure does not change the server", async () => {
  const asked = [];
  let fail;
  const fetch = async (url) => {
    asked.push(new URL(url).host);
    if (asked.length === 1) await new Promise((resolve) => (fail = resolve));
    if (!url.startsWith("http://c")) throw new TypeError("planted");
    return new Response('{"types": []}');
  };
  const three = new BrowserClient(["http://a", "http://b", "http://c"], { fetch });
  const late = three.types();
  await three.types();
  fail();
  await late;
  assert.deepEqual(asked, ["a", "a", "b", "c", "c"]);
});

test("a feed that falls silent ends", async ({ mock }) => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const event = new TextEncoder().encode('data:{"id": "a", "state": "pending"}\n\n');
  const fetch = (hasHead) => new Promise((resolve) => hasHead && resolve(new Response(new ReadableStream({ start: (feed) => feed.enqueue(event) }))));
  for (const [hasHead, expected] of [[false, []], [true, ["pending"]]]) {
    const hanging = new BrowserClient("http://a", { fetch: () => fetch(hasHead) });
    const [seen, ticks] = [[], setInterval(() => mock.timers.tick(20_000), 10)];
    const following = async () => {
      for await (const { state } of hanging.follow(type, ["a"])) seen.push(state);
    };
    await assert.rejects(following, UnreachableError).finally(() => clearInterval(ticks));
    assert.deepEqual(seen, expected);
  }
});

test("headers and fetch can be replaced, as in a browser with a cookie", async () => {
  const login = await fetch(`${service.base}/_session`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ name: "root", password: "s3cret" }),
  });
  const cookie = login.headers.get("set-cookie").split(";")[0];
  let requests = 0;
  const browser = new BrowserClient(service.base, { headers: { Cookie: cookie }, fetch: (...args) => ((requests += 1), fetch(...args)) });
  assert.equal((await browser.typeInfo(type)).type, type);
  assert.equal(requests, 1);
  for await (const { state } of browser.follow(type, [await browser.enqueue(type, 1)])) {
    assert.equal(state, "pending");
    break;
  }
  await assert.rejects(browser.get(type, "none"), refused(404));
});

test("schedules are listed page by page", async () => {
  for (const nth of [1, 2, 3]) await client.putSchedule(`${type}-${nth}`, { type, every_sec: 3600, job: { data: nth } });
  const first = await client.schedules({ limit: 2 });
  const second = await client.schedules({ limit: 2, after: first.next });
  assert.deepEqual([...first.schedules, ...second.schedules].map(({ job }) => job.data), [1, 2, 3]);
  assert.equal(second.next, null);
  assert.equal((await client.schedule(`${type}-1`)).every_sec, 3600);
  for (const nth of [1, 2, 3]) await client.removeSchedule(`${type}-${nth}`);
});

test("a token has the rights that it names until it is revoked", async () => {
  const token = await client.makeToken({ name: type, types: [type], rights: ["enqueue"] });
  const adder = new Client(service.url.replace(/root:.*@/, ""), { headers: { Authorization: `Bearer ${token}` } });
  await adder.enqueue(type, 1, { id: "a" });
  await assert.rejects(adder.get(type, "a"), refused(403));
  assert.deepEqual((await client.tokens()).find(({ name }) => name === type).rights, ["enqueue"]);
  await client.revokeToken(type);
  await assert.rejects(adder.enqueue(type, 1), refused(401));
});

test("a run that failed for good is not retried", async () => {
  await client.putType(type, { retry: { limit: 5, delay_sec: 0 } });
  await client.enqueue(type, 1, { id: "a" });
  const { jobs: [{ id, lock }] } = await client.claim(type, "by-hand", { wait_sec: 30 });
  await client.finish(type, [{ id, lock, outcome: "failed", error: "no such user", retry: false }]);
  assert.equal((await client.get(type, "a")).state, "dead");
});
