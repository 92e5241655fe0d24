// Client and worker for Davenport's job queue, for Node and browsers.

// Before each further try, in milliseconds. All requests can be repeated: jobs are added with an `Idempotency-Key`.
const PAUSES = [0, 100, 500, 2_000];
const UNAVAILABLE = [502, 503, 504];
const BEATS_MAX = 500;
// Between heartbeats with progress, between tries to reach the service, and to give back jobs when a worker stops.
const PROGRESS_MS = 1_000, UNREACHABLE_MS = 5_000, LAST_MS = 10_000;

/** The service refused a request. */
export class ServiceError extends Error {
  constructor(status, error, reason, retryAfter) {
    super(`${status} ${error}: ${reason}`);
    Object.assign(this, { name: "ServiceError", status, error, reason, retryAfter });
  }
}

/** The service cannot be reached. */
export class UnreachableError extends Error {
  name = "UnreachableError";
}

/** Thrown by a handler: the job is to run again, which is not a failure. */
export class Again extends Error {
  constructor(delay_sec = 0) {
    super("again");
    this.delay_sec = delay_sec;
  }
}

/** Thrown by a handler: the run failed with this error, any JSON, and is retried after this delay. */
export class Failed extends Error {
  constructor(error, delay_sec) {
    super("failed");
    Object.assign(this, { error, delay_sec });
  }
}

/** Why a handler's `signal` is aborted: the job is no longer this worker's, or the worker stops. */
export class Halted extends Error {
  name = "Halted";
}

// Browsers have `randomUUID` in secure contexts only, and Node 18 has no `crypto`.
const uuid = () => globalThis.crypto?.randomUUID?.() ?? [1, 2, 3].map(() => Math.random().toString(36).slice(2)).join("-");

const sleep = (ms, signal) =>
  new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const timer = setTimeout(end, ms);
    signal?.addEventListener("abort", end);
    function end() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    }
  });

function path(parts, query = {}) {
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const search = new URLSearchParams(given.filter(([, value]) => value !== undefined)).toString();
  return ["/_jobs", ...parts.map(encodeURIComponent)].join("/") + (search && `?${search}`);
}

const schedule = (name) => `/_schedules/${encodeURIComponent(name)}`;

async function read(response) {
  const text = await response.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    // From a proxy.
    throw new ServiceError(Math.max(response.status, 400), "unexpected_response", text.slice(0, 200));
  }
  if (response.ok) return answer;
  const after = Number(response.headers.get("retry-after"));
  throw new ServiceError(response.status, answer.error, answer.reason, after || undefined);
}

export class Client {
  #servers;
  #at = 0;
  #headers;
  #timeout;
  #fetch;

  /** With several URLs, the next is used when one fails. */
  constructor(urls, { headers = {}, timeout_sec = 30, fetch = globalThis.fetch } = {}) {
    this.#servers = [urls].flat().map((text) => {
      const url = new URL(text);
      if (!/^https?:$/.test(url.protocol)) throw new TypeError("the URL of the service must begin with http:// or https://");
      const login = [url.username, url.password].map(decodeURIComponent).join(":");
      const basic = btoa(String.fromCharCode(...new TextEncoder().encode(login)));
      const authorization = url.username ? { Authorization: `Basic ${basic}` } : {};
      return { base: url.origin + url.pathname.replace(/\/$/, ""), authorization };
    });
    this.#headers = headers;
    this.#timeout = timeout_sec * 1_000;
    this.#fetch = (...args) => fetch(...args);
  }

  putType = (type, settings = {}) => this.send("PUT", path([type]), { body: settings }).then(() => {});
  types = () => this.send("GET", path([])).then((answer) => answer.types);
  typeInfo = (type) => this.send("GET", path([type, "_type"]));
  get = (type, id, options) => this.send("GET", path([type, id]), options);
  list = (type, query) => this.send("GET", path([type], query));
  remove = (type, id) => this.send("DELETE", path([type, id])).then(() => {});
  retry = (type, id) => this.send("POST", path([type, id, "_retry"])).then(() => {});
  pause = (type) => this.send("POST", path([type, "_pause"])).then(() => {});
  resume = (type) => this.send("POST", path([type, "_resume"])).then(() => {});
  putSchedule = (name, settings) => this.send("PUT", schedule(name), { body: settings }).then((answer) => answer.next);
  runSchedule = (name) => this.send("POST", `${schedule(name)}/_run`).then((answer) => answer.id);
  removeSchedule = (name) => this.send("DELETE", schedule(name)).then(() => {});
  beat = (type, jobs, options) => this.send("POST", path([type, "_beat"]), { ...options, body: { jobs } });

  /** Adds a job and resolves with its id. */
  async enqueue(type, data, { idempotency_key, ...rest } = {}) {
    return (await this.#add(type, { ...rest, data }, idempotency_key)).id;
  }

  /** Adds up to 500 jobs, of which some may be refused. */
  async enqueueMany(type, jobs, { idempotency_key } = {}) {
    return (await this.#add(type, { jobs }, idempotency_key)).results;
  }

  #add(type, body, key = uuid()) {
    return this.send("POST", path([type]), { body, headers: { "Idempotency-Key": key } });
  }

  claim(type, worker, { count = 1, wait_sec = 0, signal } = {}) {
    return this.send("POST", path([type, "_claim"]), { body: { worker, count, wait_sec }, wait_sec, signal });
  }

  /** Ends runs; with `claim` and `worker`, also claims jobs in the same transaction. */
  finish(type, jobs, { claim = 0, worker, wait_sec = 0, signal } = {}) {
    return this.send("POST", path([type, "_finish"]), { body: { jobs, claim, worker, wait_sec }, wait_sec, signal });
  }

  /** Resolves with a job when it is finished or dead, or as it is when the time is over; up to 60 s. */
  wait(type, id, { timeout_sec = 30, signal } = {}) {
    return this.send("GET", path([type, id, "_wait"], { timeout_sec }), { wait_sec: timeout_sec, signal });
  }

  /** Makes all dead jobs pending, or those with this error. */
  async retryDead(type, error) {
    return (await this.send("POST", path([type, "_retry"]), { body: { state: "dead", error }, wait_sec: 20 })).count;
  }

  /** The present states of jobs, then each change, until all are finished, dead or removed. */
  async *follow(type, ids, { signal } = {}) {
    const response = await this.#request("GET", path([type, "_feed"], { ids }), { signal });
    if (!response.ok) await read(response);
    const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
    let text = "";
    try {
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        const lines = (text + decoder.decode(piece.value, { stream: true })).split("\n");
        text = lines.pop();
        for (const line of lines) if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
      }
    } finally {
      await reader.cancel();
    }
  }

  /** Makes a request. Rejects with a ServiceError, or an UnreachableError. */
  async send(method, path, { body, headers, wait_sec = 0, signal } = {}) {
    const text = body === undefined ? undefined : JSON.stringify(body);
    for (let tried = 0; ; tried += 1) {
      const limit = new AbortController();
      const abort = () => limit.abort(signal.reason);
      const timer = setTimeout(() => limit.abort(new Error("timed out")), this.#timeout + wait_sec * 1_000);
      signal?.addEventListener("abort", abort);
      try {
        signal?.throwIfAborted();
        return await read(await this.#request(method, path, { body: text, headers, signal: limit.signal }));
      } catch (error) {
        signal?.throwIfAborted();
        const isRefused = error instanceof ServiceError;
        if (isRefused && !UNAVAILABLE.includes(error.status)) throw error;
        if (tried === PAUSES.length) {
          const { base } = this.#servers[this.#at];
          throw isRefused ? error : new UnreachableError(`cannot reach ${base}: ${error.cause ?? error}`, { cause: error });
        }
      } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", abort);
      }
      this.#at = (this.#at + 1) % this.#servers.length;
      await sleep(PAUSES[tried] * (0.5 + Math.random() / 2), signal);
    }
  }

  #request(method, path, { headers, ...rest }) {
    const { base, authorization } = this.#servers[this.#at];
    const all = { "Content-Type": "application/json", ...authorization, ...this.#headers, ...headers };
    return this.#fetch(base + path, { method, headers: all, ...rest });
  }
}

/** A job of a handler. `progress` is what an earlier attempt reported last. */
class Job {
  superseded = false;
  #news;
  #changed;

  constructor({ id, data, attempt, failures, progress }, changed) {
    Object.assign(this, { id, data, attempt, failures, progress });
    this.#changed = changed;
  }

  /** Stores progress, any JSON, with the next heartbeat: within about a second. */
  report(progress) {
    this.signal.throwIfAborted();
    this.#news = { progress };
    this.#changed();
  }

  /** Progress for a heartbeat, and how to put it back if it could not be sent. */
  static take(job) {
    const news = job.#news;
    job.#news = undefined;
    return { news, putBack: () => (job.#news ??= news) };
  }
}

const isPassing = (error) =>
  error instanceof UnreachableError || (error instanceof ServiceError && (error.status >= 500 || [408, 429].includes(error.status)));

/** Runs `handler` for jobs of a type, `concurrency` at a time. What it resolves with is the result. */
export class Worker {
  #runs = new Set();
  #stopping = new AbortController();
  // One per slot, as signals warn of many listeners.
  #claiming = [];
  #over = new AbortController();
  #changed = new AbortController();
  #timeout = 30_000;

  constructor(client, type, handler, { concurrency = 1, name, wait_sec = 60, grace_sec = 30, log = console } = {}) {
    const { env = {}, pid } = globalThis.process ?? {};
    name ??= `${env.HOSTNAME ?? "javascript"}:${pid ?? uuid()}`;
    Object.assign(this, { client, type, handler, concurrency, name, wait_sec, grace_sec, log });
  }

  /** Claims no more jobs; running ones have `grace_sec` to end. */
  stop() {
    this.#stopping.abort();
    for (const claiming of this.#claiming) claiming.abort();
  }

  /** Works until `stop`, SIGTERM or SIGINT. Rejects if the service refuses to give jobs. */
  async run({ signals = true } = {}) {
    const drain = () => this.stop();
    // The next signal ends the process.
    for (const name of signals ? ["SIGTERM", "SIGINT"] : []) globalThis.process?.once?.(name, drain);
    const beats = this.#beats();
    this.#claiming = Array.from({ length: this.concurrency }, () => new AbortController());
    if (this.#stopping.signal.aborted) this.stop();
    const slots = Promise.allSettled(this.#claiming.map(({ signal }) => this.#slot(signal)));
    while (!this.#stopping.signal.aborted) await sleep(2 ** 31 - 1, this.#stopping.signal);
    const over = new AbortController();
    const ended = slots.finally(() => over.abort());
    await sleep(this.grace_sec * 1_000, over.signal);
    this.#over.abort();
    for (const run of this.#runs) run.release();
    await sleep(LAST_MS, over.signal);
    this.#wake();
    await beats;
    for (const name of ["SIGTERM", "SIGINT"]) globalThis.process?.off?.(name, drain);
    if (!over.signal.aborted) return;
    for (const slot of await ended) if (slot.status === "rejected") throw slot.reason;
  }

  /** Works on one job after another. The end of one and the claim of the next are one request. */
  async #slot(signal) {
    try {
      for (let run = await this.#next(signal); run; run = await this.#next(signal, await this.#work(run)));
    } finally {
      // All end if one is refused.
      this.stop();
    }
  }

  async #next(signal, ended) {
    const giveUp = Date.now() + this.grace_sec * 1_000 + LAST_MS;
    while (ended || !signal.aborted) {
      const claim = { claim: 1, worker: this.name, wait_sec: this.wait_sec, signal };
      const ends = ended ? [ended.end] : [];
      let reply;
      try {
        // If it is aborted, it is unknown whether the run has ended. Repeating the request does no harm.
        reply = await this.client.finish(this.type, ends, signal.aborted ? {} : claim);
      } catch (error) {
        if (signal.aborted && Date.now() > giveUp) return;
        if (isPassing(error)) {
          this.log.warn(`${error.message}; trying again`);
          await sleep(UNREACHABLE_MS * (0.5 + Math.random() / 2), signal);
        } else if (signal.aborted && !(error instanceof ServiceError || error instanceof TypeError)) {
          // Aborted.
        } else if (ended && ![401, 403, 404].includes(error.status)) {
          ended = this.#refused(ended, error);
        } else {
          throw error;
        }
        continue;
      }
      if (reply.results[0]?.status === "halt") this.log.warn(`${ended.end.id} is no longer this worker's: the end of its run was ignored`);
      ended = undefined;
      if (reply.timeout_sec * 1_000 !== this.#timeout) {
        this.#timeout = reply.timeout_sec * 1_000;
        this.#wake();
      }
      for (const claimed of reply.jobs) return this.#begin(claimed);
    }
  }

  /** How a run ends instead, for example because its result is too large. */
  #refused({ end: { id, lock, outcome } }, error) {
    this.log.error(`cannot end the run of ${id} as ${outcome}: ${error.message}`);
    return outcome === "failed" ? undefined : { end: { id, lock, outcome: "failed", error: String(error.reason ?? error.message).slice(0, 1_000) } };
  }

  #begin(claimed) {
    const [halting, job] = [new AbortController(), new Job(claimed, () => this.#wake())];
    job.signal = halting.signal;
    const run = { claimed, job, heldUntil: Date.now() + this.#timeout, halt: (why) => halting.abort(new Halted(why)) };
    this.#runs.add(run);
    return run;
  }

  /** Runs the handler; resolves with how it ended, or nothing if the job was lost. */
  async #work(run) {
    const { job, claimed: { id, lock } } = run;
    const released = new Promise((resolve) => (run.release = () => resolve({ outcome: "again" })));
    const end = (more) => ({ end: { id, lock, ...more } });
    const worked = (async () => ({ outcome: "done", result: await this.handler(job) }))().catch((error) => {
      if (job.signal.aborted) return {};
      if (error instanceof Again) return { outcome: "again", delay_sec: error.delay_sec };
      if (error instanceof Failed) return { outcome: "failed", error: error.error, delay_sec: error.delay_sec };
      this.log.error(`${id} failed:`, error);
      return { outcome: "failed", error: { message: error?.message ?? String(error), type: error?.name ?? typeof error } };
    });
    const ended = await Promise.race([worked, released]);
    this.#runs.delete(run);
    if (!job.signal.aborted) {
      // For handlers that go on although they were released, and for what they still use.
      run.halt("the run has ended");
      return end(ended);
    }
    this.log.warn(`${id} is no longer this worker's: its run was halted`);
  }

  #wake() {
    this.#changed.abort();
  }

  async #beats() {
    while (!this.#stopping.signal.aborted || this.#runs.size > 0) {
      const period = this.#timeout / 3;
      await sleep(period - Math.min(PROGRESS_MS, period / 2), this.#changed.signal);
      this.#changed = new AbortController();
      const runs = [...this.#runs];
      for (let at = 0; at < runs.length; at += BEATS_MAX) await this.#beat(runs.slice(at, at + BEATS_MAX));
      await sleep(Math.min(PROGRESS_MS, this.#timeout / 6), this.#over.signal);
    }
  }

  async #beat(runs) {
    const [sent, limit] = [Date.now(), new AbortController()];
    const timer = setTimeout(() => limit.abort(new UnreachableError("heartbeats timed out")), this.#timeout / 3);
    const taken = runs.map((run) => Job.take(run.job));
    try {
      const beats = runs.map(({ claimed: { id, lock } }, nth) => ({ id, lock, ...taken[nth].news }));
      const { jobs } = await this.client.beat(this.type, beats, { signal: limit.signal });
      jobs.forEach(({ status }, nth) => {
        runs[nth].job.superseded = status === "again";
        if (status === "halt") runs[nth].halt("the job is lost");
        else runs[nth].heldUntil = sent + this.#timeout;
      });
    } catch (error) {
      this.log.warn(`heartbeats of ${runs.length} jobs: ${error.message}`);
      // Progress that is refused is not sent again.
      if (isPassing(error)) for (const { putBack } of taken) putBack();
    } finally {
      clearTimeout(timer);
    }
    // Another worker may have it by now.
    for (const run of runs) if (Date.now() > run.heldUntil) run.halt("the service cannot be reached");
  }
}
