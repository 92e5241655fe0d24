// The work of `davenport bench queue`, done by queues people use today: PRODUCERS add JOBS jobs, each
// acknowledged when it is durable, while WORKERS take one job at a time and complete it. One line of
// JSON a figure, as every bench of ours prints.
//
//   node peers.mjs PEER JOBS PRODUCERS WORKERS

import { setMaxListeners } from "node:events";
import net from "node:net";

const [peer, count, producers, workers] = [process.argv[2], ...process.argv.slice(3).map(Number)];
// The first time does not count: programs become faster while they run, some more than others.
const warmUp = 0.25;
let jobs = Math.ceil(count * warmUp);
const payload = { text: "x".repeat(100) };
const batch = 100;

/** Runs `count` loops side by side. */
const all = (count, loop) => Promise.all(Array.from({ length: count }, (_, n) => loop(n)));

/** Numbers from a shared counter, so that exactly JOBS jobs are made, `step` at a time. */
function tickets(step) {
  let next = 0;
  return () => (next < jobs ? ((next += step), Math.min(step, jobs - next + step)) : 0);
}

/** Resolves when `done` has been called JOBS times. */
function finishLine() {
  let left = jobs;
  let resolve;
  const reached = new Promise((r) => (resolve = r));
  return { reached, done: (n = 1) => (left -= n) <= 0 && resolve() };
}

function report(kase, seconds) {
  if (jobs < count) return;
  const line = { bench: "queue", who: peer, case: kase, metric: "full_cycle_per_s", value: Math.round(jobs / seconds), unit: "1/s" };
  console.log(JSON.stringify(line));
}

async function timed(kase, work) {
  const start = performance.now();
  await work();
  report(kase, (performance.now() - start) / 1000);
}

async function postgres() {
  const { default: pg } = await import("pg");
  const connect = async () => {
    const client = new pg.Client({ connectionString: process.env.PG_URL });
    await client.connect();
    return client;
  };
  const setup = await connect();
  await setup.query(`drop table if exists jobs;
    create table jobs (id bigserial primary key, state text not null default 'pending', data jsonb, locked_at timestamptz);
    create index jobs_pending on jobs (id) where state = 'pending'`);
  await setup.end();
  const [adders, takers] = [await all(producers, connect), await all(workers, connect)];
  const next = tickets(1);
  const { reached, done } = finishLine();
  let over = false;
  await timed("one_by_one", async () => {
    const adding = all(producers, async (n) => {
      while (next()) await adders[n].query({ name: "add", text: "insert into jobs (data) values ($1)", values: [payload] });
    });
    const taking = all(workers, async (n) => {
      while (!over) {
        const claim = await takers[n].query({
          name: "claim",
          text: `update jobs set state = 'running', locked_at = now() where id =
            (select id from jobs where state = 'pending' order by id for update skip locked limit 1) returning id, data`,
        });
        if (claim.rowCount === 0) {
          await new Promise((r) => setTimeout(r, 1));
          continue;
        }
        await takers[n].query({ name: "finish", text: "update jobs set state = 'done' where id = $1", values: [claim.rows[0].id] });
        done();
      }
    });
    await reached;
    over = true;
    await Promise.all([adding, taking]);
  });
  await Promise.all([...adders, ...takers].map((client) => client.end()));
}

async function bullmq() {
  const { Queue, Worker } = await import("bullmq");
  const connection = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT), maxRetriesPerRequest: null };
  const queue = new Queue("bench", { connection });
  await queue.obliterate({ force: true });
  const next = tickets(1);
  const { reached, done } = finishLine();
  const worker = new Worker("bench", async () => {}, { connection, concurrency: workers, autorun: false, removeOnComplete: { count: 0 } });
  worker.on("completed", () => done());
  await worker.waitUntilReady();
  await timed("one_by_one", async () => {
    worker.run();
    await all(producers, async () => {
      while (next()) await queue.add("job", payload);
    });
    await reached;
  });
  await worker.close();
  await queue.close();
}

async function redis() {
  const { default: Redis } = await import("ioredis");
  const connect = () => new Redis({ host: "127.0.0.1", port: Number(process.env.REDIS_PORT) });
  const clients = Array.from({ length: producers + workers }, connect);
  await clients[0].del("waiting", "running");
  const next = tickets(1);
  const { reached, done } = finishLine();
  let over = false;
  const text = JSON.stringify(payload);
  await timed("one_by_one", async () => {
    const adding = all(producers, async (n) => {
      while (next()) await clients[n].lpush("waiting", `${Math.random()}${text}`);
    });
    const taking = all(workers, async (n) => {
      const client = clients[producers + n];
      while (!over) {
        const job = await client.blmove("waiting", "running", "RIGHT", "LEFT", 1);
        if (job === null) continue;
        await client.lrem("running", 1, job);
        done();
      }
    });
    await reached;
    over = true;
    await Promise.all([adding, taking]);
  });
  clients.forEach((client) => client.disconnect());
}

/** A beanstalkd connection: one command at a time, one line of answer, perhaps a body. */
function beanstalk() {
  const socket = net.connect(Number(process.env.BEANSTALK_PORT), "127.0.0.1");
  socket.setNoDelay(true);
  let buffer = "";
  let waiting;
  socket.on("data", (chunk) => {
    buffer += chunk;
    const end = buffer.indexOf("\r\n");
    if (end < 0 || !waiting) return;
    const words = buffer.slice(0, end).split(" ");
    const size = words[0] === "RESERVED" ? end + 2 + Number(words[2]) + 2 : end + 2;
    if (buffer.length < size) return;
    buffer = buffer.slice(size);
    const resolve = waiting;
    waiting = undefined;
    resolve(words);
  });
  return {
    command: (text) => new Promise((resolve) => ((waiting = resolve), socket.write(text))),
    end: () => socket.destroy(),
  };
}

async function beanstalkd() {
  const [adders, takers] = [Array.from({ length: producers }, beanstalk), Array.from({ length: workers }, beanstalk)];
  const body = JSON.stringify(payload);
  const next = tickets(1);
  const { reached, done } = finishLine();
  let over = false;
  await timed("one_by_one", async () => {
    const adding = all(producers, async (n) => {
      while (next()) await adders[n].command(`put 0 0 60 ${body.length}\r\n${body}\r\n`);
    });
    const taking = all(workers, async (n) => {
      while (!over) {
        const [word, id] = await takers[n].command("reserve-with-timeout 1\r\n");
        if (word !== "RESERVED") continue;
        await takers[n].command(`delete ${id}\r\n`);
        done();
      }
    });
    await reached;
    over = true;
    await Promise.all([adding, taking]);
  });
  [...adders, ...takers].forEach((client) => client.end());
}

async function graphile() {
  const { run, makeWorkerUtils, Logger } = await import("graphile-worker");
  const logger = new Logger(() => () => {});
  const options = { connectionString: process.env.PG_URL, logger };
  const utils = await makeWorkerUtils(options);
  await utils.migrate();
  await utils.withPgClient((client) => client.query("truncate graphile_worker._private_jobs"));
  const next = tickets(batch);
  const { reached, done } = finishLine();
  await timed("batched", async () => {
    const running = await run({
      ...options,
      noHandleSignals: true,
      maxPoolSize: workers,
      pollInterval: 20,
      preset: { worker: { concurrentJobs: workers, completeJobBatchDelay: 0, failJobBatchDelay: 0, localQueue: { size: 500, ttl: 60_000 } } },
      taskList: { job: () => done() },
    });
    await all(producers, async () => {
      for (let count = next(); count; count = next()) {
        await utils.addJobs(Array.from({ length: count }, () => ({ identifier: "job", payload })));
      }
    });
    await reached;
    await running.stop();
  });
  await utils.release();
}

/** Davenport over HTTP, with the client that users have: one by one with its `Worker`, as BullMQ; batched with its requests. */
async function davenport() {
  const { Client, Worker } = await import("../../clients/javascript/node.js");
  const client = new Client(process.env.DAVENPORT_URL);
  const settings = { retention_sec: 0 };
  await client.putType("bench-one", settings);
  const one = { next: tickets(1), ...finishLine() };
  // Without a result, as for BullMQ.
  const worker = new Worker(client, "bench-one", () => void one.done(), { concurrency: workers });
  await timed("one_by_one", async () => {
    const working = worker.run();
    await all(producers, async () => {
      while (one.next()) await client.enqueue("bench-one", payload);
    });
    await one.reached;
    worker.stop();
    // Until the last ends are acknowledged.
    await working;
  });

  await client.putType("bench-batched", settings);
  const next = tickets(batch);
  const { reached, done } = finishLine();
  const over = new AbortController();
  setMaxListeners(workers, over.signal);
  await timed("batched", async () => {
    const adding = all(producers, async () => {
      for (let count = next(); count; count = next()) {
        await client.enqueueMany("bench-batched", Array.from({ length: count }, () => ({ data: payload })));
      }
    });
    const ends = ({ jobs }) => jobs.map(({ id, lock }) => ({ id, lock, outcome: "done" }));
    const taking = all(workers, async (n) => {
      const claim = { claim: batch, worker: `w${n}` };
      const { signal } = over;
      while (!signal.aborted) {
        const claimed = client.claim("bench-batched", claim.worker, { count: batch, wait_sec: 30, signal });
        let ended = ends(await claimed.catch(() => ({ jobs: [] })));
        while (ended.length > 0) {
          // Without a wait, so that the end of a job is acknowledged at once.
          const reply = await client.finish("bench-batched", ended, claim);
          done(ended.length);
          ended = ends(reply);
        }
      }
    });
    await reached;
    over.abort();
    await Promise.all([adding, taking]);
  });
}

const work = { postgres, bullmq, redis, beanstalkd, graphile, davenport }[peer];
await work();
jobs = count;
await work();
process.exit(0);
