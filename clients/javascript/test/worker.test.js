import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { hostname } from "node:os";
import { after, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Again, Client, Failed, Halted, ServiceError, UnreachableError, Worker } from "davenport-jobs";
import { Proxy, Service, program, until } from "../support/service.js";

const PROGRAM = `
import { Client, Worker } from "davenport-jobs";
const [url, type, name] = process.argv.slice(1);
const handle = async ({ data, attempt }) => {
  await new Promise((resolve) => setTimeout(resolve, data * 1000));
  return attempt;
};
await new Worker(new Client(url), type, handle, { concurrency: 2, name }).run();
`;
const log = { warn() {}, error() {} };

let service, client, type;
let made = 0;
before(async () => {
  service = await Service.begin();
  client = new Client(service.url);
});
after(() => service.end());
beforeEach(() => client.putType((type = `t${(made += 1)}`), { timeout_sec: 1, retry: { limit: 2, delay_sec: 0 } }));

/** Runs a worker while `body` runs. */
async function working(handler, body, options) {
  const worker = new Worker(client, type, handler, { log, ...options });
  const ran = worker.run({ signals: false });
  try {
    return await body();
  } finally {
    worker.stop();
    await ran;
  }
}
const end = (id) => client.wait(type, id, { timeout_sec: 60 });
const run = async (handler, options) => working(handler, async () => end(await client.enqueue(type, 1)), options);
const state = (id) => client.get(type, id).then((job) => job.state);

test("what a handler returns is the result", async () => {
  const ids = (await client.enqueueMany(type, [1, 2, 3, 4, 5].map((data) => ({ data })))).map((row) => row.id);
  const ends = await working(({ data }) => data * data, () => Promise.all(ids.map(end)), { concurrency: 2 });
  assert.deepEqual(ends.map(({ result }) => result), [1, 4, 9, 16, 25]);
});

test("handlers run concurrently", async () => {
  let [here, all] = [0, undefined];
  const together = new Promise((resolve) => (all = resolve));
  const handle = async () => (++here === 3 && all(), together);
  const ids = (await client.enqueueMany(type, [1, 2, 3].map((data) => ({ data })))).map((row) => row.id);
  await working(handle, () => Promise.all(ids.map(end)), { concurrency: 3 });
});

test("failures are retried until the job is dead", async () => {
  const errors = [undefined, new RangeError("first"), new Failed({ message: "second" }, 0), "third"];
  const job = await run(({ attempt }) => Promise.reject(errors[attempt]));
  assert.deepEqual([job.state, job.error], ["dead", { message: "third", type: "string" }]);
  assert.deepEqual(job.attempts.map(({ reason }) => reason).slice(0, 2), ["first", "second"]);
});

test("a bad delay costs no error", async () => {
  for (const delay_sec of [-1, 1e12]) {
    const job = await run(() => Promise.reject(new Failed("no route", delay_sec, { retry: false })));
    assert.deepEqual([job.state, job.error], ["dead", "no route"]);
  }
});

test("a worker has a job at a time at least", () => {
  for (const concurrency of [0, -1, NaN]) assert.throws(() => new Worker(client, type, () => {}, { concurrency }), RangeError);
});

test("a job may run again", async () => {
  const job = await run(({ attempt, failures }) => {
    if (attempt === 1) throw new Again();
    return failures;
  });
  assert.equal(job.result, 0);
  assert.equal(job.worker, `${hostname()}:${process.pid}`);
});

test("results that cannot be stored are failures", async () => {
  await client.putType(type, { max_data_bytes: 1_000, retry: { limit: 0 } });
  const large = await run(() => "x".repeat(1_001));
  assert.equal(large.state, "dead");
  assert.match(large.error, /max_data_bytes/);
  assert.equal((await run(() => 1n)).state, "dead");
});

test("failures whose error cannot be stored are failures", async () => {
  await client.putType(type, { max_data_bytes: 50, retry: { limit: 0 } });
  const job = await run(() => "x".repeat(51));
  assert.deepEqual([job.state, job.error], ["dead", null]);
  await client.putType(type, { max_data_bytes: 50 });
  const refused = await run(() => Promise.reject(new Failed("x".repeat(51), undefined, { retry: false })));
  assert.deepEqual([refused.state, refused.attempts.length], ["dead", 1]);
});

test("progress that cannot be stored costs no job", async () => {
  await client.putType(type, { max_data_bytes: 100, timeout_sec: 1 });
  const handle = async (job) => {
    // Three times as long as a silent worker has.
    for (let nth = 0; nth < 30; nth += 1) {
      if (job.data === "loud") job.report("x".repeat(101));
      await sleep(100);
    }
    return job.attempt;
  };
  const ids = [await client.enqueue(type, "loud"), await client.enqueue(type, "quiet")];
  const ends = await working(handle, () => Promise.all(ids.map(end)), { concurrency: 2 });
  assert.deepEqual(ends.map(({ result }) => result), [1, 1]);
});

test("a job that was given up runs elsewhere", async () => {
  const stopped = await Service.begin();
  try {
    const adder = new Client(stopped.url);
    await adder.putType("t", { timeout_sec: 1, retry: { delay_sec: 0 } });
    let release;
    const [released, givenUp] = [new Promise((resolve) => (release = resolve)), new AbortController()];
    const handle = async ({ attempt, signal }) => {
      if (attempt > 1) return attempt;
      signal.addEventListener("abort", () => givenUp.abort());
      await released;
    };
    const id = await adder.enqueue("t", 1);
    const worker = new Worker(adder, "t", handle, { log, concurrency: 2 });
    const ran = worker.run({ signals: false });
    await until(async () => (await adder.get("t", id)).state === "running");
    stopped.process.kill("SIGSTOP");
    await until(() => givenUp.signal.aborted);
    stopped.process.kill("SIGCONT");
    assert.equal((await adder.wait("t", id, { timeout_sec: 60 })).result, 2);
    release();
    worker.stop();
    await ran;
  } finally {
    await stopped.end();
  }
});

test("runs that end at the same time share a request, and one that is refused ends alone", async () => {
  await client.putType(type, { max_data_bytes: 1_000, retry: { limit: 0 } });
  let [here, all, requests] = [0, undefined, 0];
  const together = new Promise((resolve) => (all = resolve));
  const handle = async ({ data }) => (++here === 20 && all(), await together, data === 7 ? "x".repeat(1_001) : data);
  const send = client.finish;
  client.finish = (...args) => ((requests += 1), send.apply(client, args));
  try {
    const ids = (await client.enqueueMany(type, Array.from({ length: 20 }, (_, data) => ({ data })))).map((row) => row.id);
    const ends = await working(handle, () => Promise.all(ids.map(end)), { concurrency: 20 });
    assert.deepEqual(ends.map(({ state, result }) => result ?? state), ids.map((_, n) => (n === 7 ? "dead" : n)));
  } finally {
    client.finish = send;
  }
  // All, each alone, and the failure.
  assert.ok(requests <= 23, `${requests} requests`);
});

const claimed = (id) => ({ id, lock: "l", data: 1, attempt: 1, failures: 0 });
const ended = (ends) => ({ results: ends.map(({ id }) => ({ id, status: "ok" })), jobs: [], timeout_sec: 30 });

test("the end of a run is repeated after a pause while the worker stops", async () => {
  const ends = [];
  const refusing = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: async (type, jobs) => {
      ends.push(Date.now());
      if (ends.length === 1) throw new ServiceError(500, "planted", "planted");
      return ended(jobs);
    },
  };
  const worker = new Worker(refusing, type, () => worker.stop(), { log });
  await worker.run({ signals: false });
  assert.equal(ends.length, 2);
  assert.ok(ends[1] - ends[0] > 1_000, `tried again after ${ends[1] - ends[0]} ms`);
});

/** Node warns of more than ten. */
test("ends that wait to be repeated alone share a listener", { timeout: 30_000 }, async () => {
  let [waiting, listeners] = [0];
  const refusing = {
    claim: async (type, name, { count }) => ({ jobs: Array.from({ length: count }, (_, nth) => claimed(`${nth}`)), timeout_sec: 60 }),
    finish: async (type, jobs, { claim, signal }) => {
      if (jobs.length > 1) throw new ServiceError(400, "planted", "planted");
      if (claim === 0) return ended(jobs);
      const look = () => {
        listeners = getEventListeners(signal, "abort").length;
        worker.stop();
      };
      if (++waiting === 20) setImmediate(look);
      throw new UnreachableError("planted");
    },
  };
  const worker = new Worker(refusing, type, () => {}, { log, concurrency: 20 });
  await worker.run({ signals: false });
  assert.equal(listeners, 1);
});

test("heartbeats of many runs are sent together", { timeout: 30_000 }, async () => {
  let [given, here, all, both] = [0, 0, undefined, undefined];
  const [sizes, allHere, together] = [[], new Promise((resolve) => (all = resolve)), new Promise((resolve) => (both = resolve))];
  const many = {
    claim: async (type, name, { count }) => ({ jobs: Array.from({ length: count }, () => claimed(`${given++}`)), timeout_sec: 30 }),
    finish: async (type, jobs) => ended(jobs),
    beat: async (type, jobs) => {
      if (sizes.push(jobs.length) === 2) both();
      await together;
      return { jobs: jobs.map(({ id }) => ({ id, status: "held" })) };
    },
  };
  const handle = async (job) => {
    if (++here === 501) all();
    await allHere;
    job.report(1);
    await together;
    worker.stop();
  };
  const worker = new Worker(many, type, handle, { log, concurrency: 501 });
  await worker.run({ signals: false });
  assert.deepEqual(sizes, [500, 1]);
});

const held = (jobs) => ({ jobs: jobs.map(({ id }) => ({ id, status: "held" })) });

test("progress is stored before a run ends", { timeout: 30_000 }, async () => {
  const requests = [];
  const unsteady = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: async (type, jobs) => (requests.push(jobs[0].outcome), ended(jobs)),
    beat: async (type, jobs) => {
      if (requests.push(jobs[0].progress) < 4) throw new UnreachableError("planted");
      return held(jobs);
    },
  };
  const handle = (job) => {
    job.report(50);
    worker.stop();
    throw new Again();
  };
  const worker = new Worker(unsteady, type, handle, { log });
  await worker.run({ signals: false });
  assert.deepEqual(requests, [50, 50, 50, 50, "again"]);
});

test("reports of a job do not overtake each other", { timeout: 30_000 }, async () => {
  let [begun, mayEnd] = [];
  const [beating, slow, stored] = [new Promise((resolve) => (begun = resolve)), new Promise((resolve) => (mayEnd = resolve)), []];
  const late = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: async (type, jobs) => ended(jobs),
    beat: async (type, jobs) => {
      if (jobs[0].progress === "older") await (begun(), slow);
      if (jobs[0].progress) stored.push(jobs[0].progress);
      return held(jobs);
    },
  };
  const handle = async (job) => {
    job.report("older");
    await beating;
    job.report("newer");
    // Later than the next heartbeat would be.
    setTimeout(mayEnd, 750);
    worker.stop();
    throw new Again();
  };
  const worker = new Worker(late, type, handle, { log });
  await worker.run({ signals: false });
  assert.deepEqual(stored, ["older", "newer"]);
});

test("heartbeats that hang do not delay others", { timeout: 30_000 }, async () => {
  let [given, hanging, others] = [0];
  const [hangs, beaten] = [new Promise((resolve) => (hanging = resolve)), new Promise((resolve) => (others = resolve))];
  const partly = {
    claim: async () => (given++ > 0 && (await hangs), { jobs: [claimed(`${given}`)], timeout_sec: 60 }),
    finish: async (type, jobs) => ended(jobs),
    beat: async (type, jobs) => {
      if (jobs[0].id === "1") await (hanging(), beaten);
      others();
      return held(jobs);
    },
  };
  const handle = async (job) => (job.report(1), await beaten, worker.stop());
  const worker = new Worker(partly, type, handle, { log, concurrency: 2 });
  await worker.run({ signals: false });
});

test("a worker that is stopped gives up its last reports", { timeout: 30_000 }, async () => {
  const away = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: (type, jobs, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason))),
  };
  const worker = new Worker(away, type, () => worker.stop(), { log, grace_sec: 0.1 });
  await worker.run({ signals: false });
});

test("a job that a worker gets once it has released its runs goes back", { timeout: 9_000 }, async () => {
  const ends = [];
  const late = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: async (type, jobs) => {
      ends.push(...jobs.map(({ id, outcome }) => [id, outcome]));
      if (ends.length > 1) return ended(jobs);
      worker.stop();
      await sleep(500);
      return { ...ended(jobs), jobs: [claimed("b")] };
    },
  };
  const handle = ({ id }) => id === "b" && new Promise(() => {});
  const worker = new Worker(late, type, handle, { log, grace_sec: 0.1 });
  await worker.run({ signals: false });
  assert.deepEqual(ends, [["a", "done"], ["b", "again"]]);
});

test("the end of a run that waits for an answer is repeated without a claim when the worker stops", { timeout: 9_000 }, async () => {
  const claims = [];
  const slow = {
    claim: async () => ({ jobs: [claimed("a")], timeout_sec: 60 }),
    finish: (type, jobs, { claim, signal }) => {
      if (claims.push(claim) > 1) return ended(jobs);
      setImmediate(() => worker.stop());
      return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    },
  };
  const worker = new Worker(slow, type, () => {}, { log });
  await worker.run({ signals: false });
  assert.deepEqual(claims, [1, 0]);
});

test("answers to claims do not delay heartbeats of earlier jobs", async () => {
  const ends = [];
  let claims = 0;
  const told = {
    claim: async () => (claims++ === 0 ? { jobs: [claimed("a")], timeout_sec: 1 } : (await sleep(50), { jobs: [], timeout_sec: 60 })),
    finish: async (type, jobs) => (ends.push(...jobs.map(({ outcome }) => outcome)), ended(jobs)),
    beat: async (type, jobs) => ({ jobs: jobs.map(({ id }) => ({ id, status: "held" })), timeout_sec: 1 }),
  };
  const handle = () => sleep(3_000).then(() => worker.stop());
  const worker = new Worker(told, type, handle, { log, concurrency: 2 });
  await worker.run({ signals: false });
  assert.deepEqual(ends, ["done"]);
});

test("heartbeats keep a job and store progress", async () => {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const handle = async (job) => (job.report({ percent: 50 }), released);
  await working(handle, async () => {
    const id = await client.enqueue(type, 1);
    for await (const { progress } of client.follow(type, [id])) if (progress?.percent === 50) break;
    // Three times as long as a silent worker has.
    await sleep(3_000);
    assert.equal(await state(id), "running");
    release(1);
    assert.equal((await end(id)).attempts.length, 1);
  });
});

test("the next attempt knows the progress", async () => {
  const job = await run(async (job) => {
    if (job.attempt > 1) return job.progress;
    job.report(7);
    await until(async () => (await client.get(type, job.id)).progress);
    throw new Error("later");
  });
  assert.equal(job.result, 7);
});

test("progress is kept however a run ends", async () => {
  const handle = async (job) => {
    const position = (job.progress ?? 0) + 1;
    // Some are stored by a heartbeat while the handler runs.
    for (let part = 0.25; part <= 1; part += 0.25) {
      job.report(position - 1 + part);
      await sleep(position === 3 ? 200 : 1);
    }
    if (job.attempt < 4) throw [new Again(), new Failed("later", 0), new Again()][job.attempt - 1];
    return position;
  };
  const job = await run(handle);
  assert.deepEqual([job.result, job.attempts.length], [4, 4]);
});

test("a changed timeout costs no job", async () => {
  const handle = async ({ data, attempt }) => (await sleep(data), attempt);
  for (const [earlier, later] of [[6, 1], [1, 60]]) {
    await client.putType(type, { timeout_sec: earlier });
    const check = async () => {
      const id = await client.enqueue(type, 5_000);
      await until(async () => (await state(id)) === "running");
      await client.putType(type, { timeout_sec: later });
      // The claim of another job tells the worker of a longer timeout.
      if (later > earlier) assert.equal((await end(await client.enqueue(type, 0))).result, 1);
      assert.equal((await end(id)).result, 1, `${earlier} to ${later}`);
    };
    await working(handle, check, { concurrency: 2 });
  }
});

/** Runs a worker until the job has ended, through a frontend that hangs: in one run. */
async function runsOnce(worker, proxy, id) {
  const ran = worker.run({ signals: false });
  try {
    assert.deepEqual((await end(id)).attempts.map(({ outcome }) => outcome), ["done"]);
  } finally {
    worker.stop();
    proxy.end();
    await ran;
  }
}

test("heartbeats go to the next frontend if one hangs", async () => {
  const proxy = await Proxy.begin(service);
  await client.putType(type, { timeout_sec: 3 });
  const id = await client.enqueue(type, 1);
  const handle = async ({ attempt }) => {
    proxy.hangs = true;
    await sleep(6_000);
    return attempt;
  };
  const worker = new Worker(new Client([proxy.url, service.url]), type, handle, { log });
  await runsOnce(worker, proxy, id);
});

test("a run is kept until the next frontend knows how it ended", async () => {
  const proxy = await Proxy.begin(service);
  const id = await client.enqueue(type, 1);
  const handle = ({ attempt }) => ((proxy.hangs = true), attempt);
  // Longer than a silent worker has.
  const worker = new Worker(new Client([proxy.url, service.url], { timeout_sec: 4 }), type, handle, { log });
  await runsOnce(worker, proxy, id);
});

test("a removed job is halted", async () => {
  let halted;
  const ended = new Promise((resolve) => (halted = resolve));
  const handle = ({ signal }) => new Promise((resolve) => signal.addEventListener("abort", () => resolve(halted(signal.reason))));
  await working(handle, async () => {
    const id = await client.enqueue(type, 1);
    await until(async () => (await state(id)) === "running");
    await client.remove(type, id);
    assert.ok((await ended) instanceof Halted);
  });
});

test("a handler that first asks for the signal of a removed job finds it aborted", async () => {
  let asked;
  const ended = new Promise((resolve) => (asked = resolve));
  const handle = async (job) => {
    await until(() => {
      try {
        job.report("working");
      } catch (error) {
        return asked([error, job.signal.aborted, job.signal.reason]) ?? true;
      }
    });
  };
  await working(handle, async () => {
    const id = await client.enqueue(type, 1);
    await until(async () => (await state(id)) === "running");
    await client.remove(type, id);
    const [error, aborted, reason] = await ended;
    assert.ok(aborted && error instanceof Halted && reason instanceof Halted);
  });
});

test("newer data supersedes a run", async () => {
  const handle = async (job) => {
    if (job.data === "old") {
      await client.enqueue(type, "new", { id: job.id });
      await until(() => job.superseded);
    }
    return job.data;
  };
  await working(handle, async () => {
    await client.enqueue(type, "old", { id: "a" });
    await until(async () => (await client.get(type, "a")).result === "new");
  });
});

test("a stopped worker gives back what it cannot end", async () => {
  const id = await client.enqueue(type, 1);
  // The service says "running" before the worker has the job.
  let begun = false;
  const hang = () => ((begun = true), new Promise(() => {}));
  await working(hang, () => until(() => begun), { grace_sec: 0.1 });
  const job = await client.get(type, id);
  assert.deepEqual([job.state, job.failures, job.attempts.at(-1).outcome], ["pending", 0, "again"]);
});

test("a refused worker ends", async () => {
  const worker = new Worker(client, "none", () => {}, { log, concurrency: 2 });
  await assert.rejects(worker.run(), ServiceError);
});

test("a signal drains", async () => {
  const [id, later] = [await client.enqueue(type, 1.5), await client.enqueue(type, 0, { delay_sec: 1 })];
  const worker = program(PROGRAM, service.url, type, "drained");
  await until(async () => (await state(id)) === "running");
  assert.equal(await worker.end("SIGTERM"), 0);
  assert.equal((await client.get(type, id)).result, 1);
  assert.deepEqual((await client.get(type, later)).attempts, []);
});

test("the jobs of a killed worker run elsewhere", async () => {
  const id = await client.enqueue(type, 2);
  const killed = program(PROGRAM, service.url, type, "killed");
  await until(async () => (await state(id)) === "running");
  await killed.end("SIGKILL");
  const job = await working(({ attempt }) => attempt, () => end(id), { name: "other" });
  assert.deepEqual(job.attempts.map(({ worker, outcome }) => [worker, outcome]), [["killed", "silent"], ["other", "done"]]);
  assert.equal(job.result, 2);
});

test("a killed service and killed workers lose no job", async () => {
  const fragile = await Service.begin();
  const adder = new Client(fragile.url);
  await adder.putType("t", { timeout_sec: 1, retry: { delay_sec: 0, limit: null } });
  const start = (name) => program(PROGRAM, fragile.url, "t", name);
  const workers = [start("w0"), start("w1")];
  const ids = [];
  try {
    for (const kill of [0, 1, 2]) {
      const rows = await adder.enqueueMany("t", Array.from({ length: 40 }, () => ({ data: 0.01 })));
      ids.push(...rows.map((row) => row.id));
      await fragile.kill();
      await workers[kill % 2].end("SIGKILL");
      await fragile.start();
      workers[kill % 2] = start(`after${kill}`);
    }
    for (const id of ids) assert.equal((await adder.wait("t", id, { timeout_sec: 60 })).state, "finished");
    assert.deepEqual((await adder.typeInfo("t")).counts, { pending: 0, running: 0, finished: 120, dead: 0 });
  } finally {
    for (const worker of workers) await worker.end("SIGKILL");
    await fragile.end();
  }
});
