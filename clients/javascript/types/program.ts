// Only compiled: what a program may write, and with `@ts-expect-error` what it may not.
import { Again, Client, Failed, Halted, ServiceError, UnreachableError, Worker } from "davenport-jobs";
import type { Change, Ended, Job, JobInfo, TypeInfo } from "davenport-jobs";

const client = new Client(["http://a:1", "http://b:1"], { headers: { Authorization: "Bearer x" }, timeout_sec: 5 });

export async function requests(): Promise<void> {
  await client.putType("mail", { retry: { limit: null }, limits: { partner: { max: 10, per_sec: 1 } }, shares: { acme: 300 }, sealed: true });
  const id: string = await client.enqueue("mail", { to: "bob" }, { class: "urgent", idempotency_key: "order-1" });
  await client.enqueueMany("mail", [{ data: 1, on_exists: "keep" }]);
  const job: JobInfo = await client.wait("mail", id, { timeout_sec: 10, signal: AbortSignal.timeout(1_000) });
  const why: string | undefined = job.attempts?.[0]?.reason ?? undefined;
  const retried = await client.retryDead("mail", why);
  const [count, goesOn]: [number, boolean] = [retried.count, retried.running ?? false];
  const types: TypeInfo[] = await client.types();
  const { next } = await client.list("mail", { state: "dead", limit: count });
  for await (const change of client.follow("mail", [id])) states(change);
  await client.putSchedule("nightly", { type: "mail", job: { data: null }, cron: "0 2 * * *", catch_up: "all" });
  const token: string = await client.makeToken({ name: "adder", rights: ["enqueue"] });
  console.log(goesOn, types[0]?.settings?.retry.limit, next, token);
  // @ts-expect-error: there is no such state
  await client.list("mail", { state: "lost" });
  // @ts-expect-error: nor such a right
  await client.makeToken({ name: "adder", rights: ["fly"] });
  // @ts-expect-error: a schedule names its type
  await client.putSchedule("nightly", { job: { data: null } });
}

export async function byHand(): Promise<void> {
  const { jobs } = await client.claim("mail", "by-hand", { count: 2, wait_sec: 60 });
  const ends: Ended[] = jobs.map(({ id, lock }): Ended => ({ id, lock, outcome: "failed", error: "no such user", retry: false }));
  const beats = await client.beat("mail", jobs);
  const { results } = await client.finish("mail", ends, { claim: 1, worker: "by-hand" });
  console.log(beats.jobs[0]?.status === "halt", results[0]?.status === "repeated");
}

function states(change: Change): boolean {
  // @ts-expect-error: there is no such state
  if (change.state === "lost") return false;
  return change.state === "removed";
}

const worker = new Worker<{ to: string }>(client, "mail", async (job: Job<{ to: string }>) => {
  if (job.superseded) throw new Again(1);
  if (!job.data.to) throw new Failed({ code: 7 }, 60, { retry: false });
  job.report({ percent: 50 });
  await fetch("http://a:1", { signal: job.signal });
  // @ts-expect-error: the data has no such member
  return job.data.from;
}, { concurrency: 4, log: console });

worker.run({ signals: false }).catch((error: unknown) => {
  if (error instanceof ServiceError) console.error(error.status, error.reason, error.retryAfter?.toFixed());
  if (error instanceof UnreachableError || error instanceof Halted) worker.stop();
});
