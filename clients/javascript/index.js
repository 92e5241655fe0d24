// Client and worker for Davenport's job queue, for Node and browsers.

// Before each further try, in milliseconds. Requests can be repeated, as jobs are added with an `Idempotency-Key`; only tokens are
// made once.
const PAUSES = [0, 100, 500, 2_000];
const UNAVAILABLE = [502, 503, 504];
// For calls that share a request: how many, about how long, and how many such requests at a time. Heartbeats follow only
// the first.
const CALLS_MAX = 500, CALLS_LENGTH_MAX = 1_000_000, REQUESTS_MAX = 8;
// Between heartbeats with progress, between tries to reach the service, and for last reports when a worker stops.
const PROGRESS_MS = 500, UNREACHABLE_MS = 5_000, LAST_MS = 10_000;
// How long a feed may be silent; the service sends something every 20 s.
const SILENT_MS = 60_000;

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

/** Thrown by a handler: the run failed with this error, any JSON, and is retried after this delay, or not at all. */
export class Failed extends Error {
  constructor(error, delay_sec, { retry } = {}) {
    super("failed");
    Object.assign(this, { error, delay_sec, retry });
  }
}

/** Why a handler's `signal` is aborted: the job is no longer this worker's, or the worker stops. */
export class Halted extends Error {
  name = "Halted";
}

// Browsers have `randomUUID` in secure contexts only, and Node 18 has no `crypto`.
const uuid = () => globalThis.crypto?.randomUUID?.() ?? [1, 2, 3].map(() => Math.random().toString(36).slice(2)).join("-");

const listening = new WeakMap();

/** Calls `end` after this time, and when the signal is aborted, until what this returns is called. */
function after(ms, signal, end) {
  const timer = setTimeout(end, ms);
  let ends = listening.get(signal);
  if (signal && !ends) {
    listening.set(signal, (ends = new Set()));
    // One listener, however many wait: Node warns of more than ten.
    signal.addEventListener("abort", () => ends.forEach((end) => end()));
  }
  ends?.add(end);
  return () => (clearTimeout(timer), ends?.delete(end));
}

const sleep = (ms, signal) =>
  new Promise((resolve) => {
    const cancel = after(signal?.aborted ? 0 : ms, signal, () => resolve(cancel()));
  });

function path(parts, query = {}, root = "_jobs") {
  // URL normalization removes such a segment, so the request would address something else.
  if (parts.some((part) => ["", ".", ".."].includes(part))) throw new TypeError("ids and names cannot be empty, `.` or `..`: they are lost in URLs");
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const search = new URLSearchParams(given.filter(([, value]) => value !== undefined)).toString();
  return ["", root, ...parts.map(encodeURIComponent)].join("/") + (search && `?${search}`);
}

const schedule = (name) => path([name], {}, "_schedules");

/**
 * Calls made at about the same time share a request, as the service makes a request durable in about the same time whatever its
 * size. `send` gets what was given to the calls, and resolves with an answer for each; errors among them reject their call.
 */
function shared(send, requests = REQUESTS_MAX) {
  const waiting = [];
  let sending = 0;
  async function flush() {
    if (sending === requests || waiting.length === 0) return;
    let [count, length] = [0, 0];
    while (count < Math.min(waiting.length, CALLS_MAX) && length < CALLS_LENGTH_MAX) length += waiting[count++].item?.length ?? 0;
    const calls = waiting.splice(0, count);
    sending += 1;
    try {
      const answers = await send(calls.map(({ item }) => item));
      calls.forEach(({ resolve, reject }, nth) => (answers[nth] instanceof Error ? reject : resolve)(answers[nth]));
    } catch (error) {
      for (const { reject } of calls) reject(error);
    }
    sending -= 1;
    queueMicrotask(flush);
  }
  return (item) =>
    new Promise((resolve, reject) => {
      waiting.push({ item, resolve, reject });
      // After the calls of others that the same answer woke.
      if (waiting.length === 1) queueMicrotask(flush);
    });
}

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
  #adding = new Map();

  /** With several URLs, the next is used when one fails. */
  constructor(urls, { headers = {}, timeout_sec = 30, fetch = globalThis.fetch } = {}) {
    this.#servers = [urls].flat().map((text) => {
      const url = new URL(text);
      if (!/^https?:$/.test(url.protocol)) throw new TypeError("the URL of the service must begin with http:// or https://");
      const login = [url.username, url.password].map(decodeURIComponent).join(":");
      const authorization = url.username ? { Authorization: `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(login)))}` } : {};
      return { base: url.origin + url.pathname.replace(/\/$/, ""), authorization };
    });
    if (!this.#servers.length) throw new TypeError("give at least one URL of the service");
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
  runSchedule = (name, { idempotency_key = uuid() } = {}) =>
    this.send("POST", `${schedule(name)}/_run`, { headers: { "Idempotency-Key": idempotency_key } }).then((answer) => answer.id);
  removeSchedule = (name) => this.send("DELETE", schedule(name)).then(() => {});
  schedules = (query) => this.send("GET", path([], query, "_schedules"));
  schedule = (name) => this.send("GET", schedule(name));
  makeToken = (token) => this.send("POST", "/_tokens", { body: token, isRepeatable: false }).then((answer) => answer.token);
  tokens = () => this.send("GET", "/_tokens").then((answer) => answer.tokens);
  revokeToken = (name) => this.send("DELETE", path([name], {}, "_tokens")).then(() => {});
  beat = (type, jobs, options) => this.send("POST", path([type, "_beat"]), { ...options, body: { jobs } });

  /** Adds a job and resolves with its id. Calls made while others are under way share a request. */
  async enqueue(type, data, { idempotency_key, ...rest } = {}) {
    const text = JSON.stringify({ ...rest, data });
    if (idempotency_key !== undefined) return (await this.#add(type, text, idempotency_key)).id;
    if (!this.#adding.has(type)) this.#adding.set(type, shared((texts) => this.#addShared(type, texts)));
    return this.#adding.get(type)(text);
  }

  /** Adds up to 500 jobs, of which some may be refused. */
  async enqueueMany(type, jobs, { idempotency_key } = {}) {
    return (await this.#add(type, JSON.stringify({ jobs }), idempotency_key)).results;
  }

  async #addShared(type, texts) {
    const alone = (text) => this.#add(type, text).then(({ id }) => id, (error) => error);
    if (texts.length === 1) return [await alone(texts[0])];
    try {
      const { results } = await this.#add(type, `{"jobs":[${texts}]}`);
      // What is refused is tried alone, for an answer of its own.
      return Promise.all(results.map((row, nth) => (row.ok ? row.id : alone(texts[nth]))));
    } catch (error) {
      if (![400, 413, 429].includes(error.status)) throw error;
      return Promise.all(texts.map(alone));
    }
  }

  #add(type, text, key = uuid()) {
    return this.send("POST", path([type]), { text, headers: { "Idempotency-Key": key } });
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
  retryDead(type, error) {
    return this.send("POST", path([type, "_retry"]), { body: { state: "dead", error }, wait_sec: 20 });
  }

  /** The present states of jobs, then each change, until all are finished, dead or removed. Throws if the service stops before. */
  async *follow(type, ids, { signal } = {}) {
    let [text, isOver, timer, reader, decoder] = ["", false];
    const silent = new UnreachableError("the feed has fallen silent: follow the jobs again");
    const silence = () => new Promise((_, reject) => (timer = setTimeout(reject, SILENT_MS, silent)));
    const soon = (answer) => Promise.race([answer, silence()]).finally(() => clearTimeout(timer));
    try {
      const response = await soon(this.#request("GET", path([type, "_feed"], { ids }), { signal, stream: true }));
      if (!response.ok) await soon(read(response));
      [reader, decoder] = [response.body.getReader(), new TextDecoder()];
      for (let piece = await soon(reader.read()); !piece.done; piece = await soon(reader.read())) {
        const lines = (text + decoder.decode(piece.value, { stream: true })).split("\n");
        text = lines.pop();
        // The last event has an id.
        isOver ||= lines.some((line) => line.startsWith("id:"));
        for (const line of lines) if (line.startsWith("data:")) yield JSON.parse(line.slice(5));
      }
      if (!isOver) throw new UnreachableError("the service has ended the feed: follow the jobs again");
    } finally {
      // It fails if the feed has.
      await reader?.cancel().catch(() => {});
    }
  }

  /** Makes a request. Rejects with a ServiceError, or an UnreachableError. */
  async send(method, path, { body, text = body === undefined ? undefined : JSON.stringify(body), headers, wait_sec = 0, timeout_sec = Infinity, signal, isRepeatable = true } = {}) {
    for (let tried = 0; ; tried += 1) {
      const [at, limit] = [this.#at, new AbortController()];
      const allowed = Math.min(timeout_sec * 1_000, this.#timeout) + wait_sec * 1_000;
      const cancel = after(allowed, signal, () => limit.abort(new Error("timed out")));
      try {
        signal?.throwIfAborted();
        return await read(await this.#request(method, path, { body: text, headers, signal: limit.signal, isRepeatable }));
      } catch (error) {
        signal?.throwIfAborted();
        const isRefused = error instanceof ServiceError;
        if (isRefused && !UNAVAILABLE.includes(error.status)) throw error;
        // Unless another request has moved on from it already.
        if (this.#at === at) this.#at = (at + 1) % this.#servers.length;
        if (!isRepeatable || tried === PAUSES.length) throw isRefused ? error : new UnreachableError(`cannot reach ${this.#servers[at].base}: ${error.cause ?? error}`, { cause: error });
      } finally {
        cancel();
      }
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
  #halting;
  #halted;

  constructor({ id, data, attempt, failures, progress }) {
    Object.assign(this, { id, data, attempt, failures, progress });
  }

  /** Aborted when the job is no longer this worker's. Made when it is wanted, as it takes longer than all else here. */
  get signal() {
    if (!this.#halting) {
      this.#halting = new AbortController();
      if (this.#halted) this.#halting.abort(new Halted(this.#halted));
    }
    return this.#halting.signal;
  }

  /** Stores progress, any JSON, with the next heartbeat: within about a second. */
  report(progress) {
    if (this.#halted) throw new Halted(this.#halted);
    this.#news = { progress };
  }

  static halt(job, why) {
    job.#halted ??= why;
    job.#halting?.abort(new Halted(why));
  }

  static isHalted = (job) => job.#halted !== undefined;

  /** Progress for a heartbeat. */
  static news = (job) => job.#news;

  static sent(job, news) {
    if (job.#news === news) job.#news = undefined;
  }
}

const isPassing = (error) =>
  error instanceof UnreachableError || (error instanceof ServiceError && (error.status >= 500 || [408, 429].includes(error.status)));

/** Runs `handler` for jobs of a type, `concurrency` at a time. What it resolves with is the result. */
export class Worker {
  // Until the service knows how they ended.
  #runs = new Set();
  #stopping = new AbortController();
  #over = new AbortController();
  // Whether runs go back to the queue at once, as `grace_sec` is over.
  #released = false;
  // What the service promised last; at first, the shortest that a type can have. Earlier promises to jobs may be shorter.
  #timeout = 1_000;
  #ends = shared((ends) => this.#end(ends));
  #claims = shared((slots) => this.#claim(slots.length), 1);

  constructor(client, type, handler, { concurrency = 1, name, wait_sec = 60, grace_sec = 30, log = console } = {}) {
    name ??= `javascript:${uuid()}`;
    if (!(concurrency >= 1)) throw new RangeError(`concurrency must be at least 1, not ${concurrency}`);
    Object.assign(this, { client, type, handler, concurrency, name, wait_sec, grace_sec, log });
  }

  /** Claims no more jobs; running ones have `grace_sec` to end. */
  stop = () => this.#stopping.abort();

  /** Works until `stop`, SIGTERM or SIGINT. Rejects if the service refuses to give jobs. */
  async run({ signals = true } = {}) {
    // The next signal ends the process.
    for (const name of signals ? ["SIGTERM", "SIGINT"] : []) globalThis.process?.once?.(name, this.stop);
    const beats = this.#beats();
    const slots = Promise.allSettled(Array.from({ length: this.concurrency }, () => this.#slot())).finally(() => this.#over.abort());
    while (!this.#stopping.signal.aborted) await sleep(2 ** 31 - 1, this.#stopping.signal);
    await sleep(this.grace_sec * 1_000, this.#over.signal);
    this.#released = true;
    // One whose slot does not work on it yet has no `release`.
    for (const run of this.#runs) run.release?.();
    await sleep(LAST_MS, this.#over.signal);
    this.#over.abort();
    await beats;
    for (const name of ["SIGTERM", "SIGINT"]) globalThis.process?.off?.(name, this.stop);
    for (const slot of await slots) if (slot.status === "rejected") throw slot.reason;
  }

  /** Works on one job after another. The end of one and the claim of the next are one request. */
  async #slot() {
    try {
      for (let run, ended; ended || !this.#stopping.signal.aborted; ) {
        const next = ended && (await this.#ends(ended));
        this.#runs.delete(run);
        run = next ?? (await this.#claims());
        ended = run && (await this.#work(run));
      }
    } finally {
      // All end if one is refused.
      this.stop();
    }
  }

  /** Waits for jobs, for as many slots. */
  async #claim(count) {
    const { signal } = this.#stopping;
    try {
      if (!signal.aborted) return this.#begin(await this.client.claim(this.type, this.name, { count, wait_sec: this.wait_sec, signal }));
    } catch (error) {
      if (!signal.aborted) await this.#passes(error);
    }
    return [];
  }

  /** Ends runs and, unless this stops, claims a job for each of their slots. Resolves with the jobs that there are. */
  async #end(ends) {
    const [stopping, over] = [this.#stopping.signal, this.#over.signal];
    while (!over.aborted && ends.length > 0) {
      const [claim, signal] = stopping.aborted ? [0, over] : [ends.length, stopping];
      try {
        const reply = await this.client.finish(this.type, ends, { claim, worker: this.name, signal });
        const lost = reply.results.filter(({ status }) => status === "halt");
        for (const { id } of lost) this.log.warn(`${id} is no longer this worker's: the end of its run was ignored`);
        return this.#begin(reply);
      } catch (error) {
        // Whether the runs have ended is unknown then; repeating their ends does no harm.
        if (signal.aborted) continue;
        if (isPassing(error) || [401, 403, 404].includes(error.status)) {
          await this.#passes(error);
        } else if (ends.length > 1) {
          // It may be the fault of one of them.
          return (await Promise.all(ends.map((end) => this.#end([end])))).flat();
        } else {
          ends = this.#refused(ends[0], error);
        }
      }
    }
    return [];
  }

  /** Throws an error that another try does not mend; else resolves when to try again. */
  async #passes(error) {
    if (!isPassing(error)) throw error;
    this.log.warn(`${error.message}; trying again`);
    const { signal } = this.#stopping;
    // While the worker stops, ends of runs are still retried; its signal no longer cuts the pause short.
    await sleep(UNREACHABLE_MS * (0.5 + Math.random() / 2), signal.aborted ? this.#over.signal : signal);
  }

  /** How a run ends instead, for example because its result is too large. */
  #refused({ id, lock, outcome, error, delay_sec, retry }, { status, reason, message }) {
    this.log.error(`cannot end the run of ${id} as ${outcome}: ${message}`);
    if (outcome !== "failed") return [{ id, lock, outcome: "failed", error: String(reason ?? message).slice(0, 1_000) }];
    // A bad delay is a bad request; an error that is refused is more often too large, or no JSON.
    if (delay_sec !== undefined && (status === 400 || error === undefined)) return [{ id, lock, outcome, error, retry }];
    return error === undefined ? [] : [{ id, lock, outcome, delay_sec, retry }];
  }

  #begin({ jobs, timeout_sec }) {
    this.#timeout = timeout_sec * 1_000;
    const held = { promised: this.#timeout, heldUntil: performance.now() + this.#timeout };
    const runs = jobs.map((claimed) => ({ claimed, job: new Job(claimed), ...held, isLost: false, release: undefined, beating: undefined }));
    for (const run of runs) this.#runs.add(run);
    return runs;
  }

  /** Runs the handler; resolves with how it ended, or nothing if the job was lost. */
  async #work(run) {
    const { job, claimed: { id, lock } } = run;
    const ended = await new Promise((resolve) => {
      run.release = () => resolve({ outcome: "again" });
      if (this.#released) run.release();
      else this.#handle(job).then(resolve);
    });
    // For handlers that go on although they were released, and for what they still use.
    Job.halt(job, "the run has ended");
    if (run.isLost) return void this.log.warn(`${id} is no longer this worker's: its run was halted`);
    while (Job.news(job) && ended.outcome !== "done" && !this.#over.signal.aborted) {
      // The next run starts from it.
      await (run.beating ?? this.#beat([run]));
      if (Job.news(job)) await sleep(PROGRESS_MS, this.#over.signal);
    }
    return { id, lock, ...ended };
  }

  async #handle(job) {
    try {
      return { outcome: "done", result: await this.handler(job) };
    } catch (error) {
      if (Job.isHalted(job)) return {};
      if (error instanceof Again) return { outcome: "again", delay_sec: error.delay_sec };
      if (error instanceof Failed) return { outcome: "failed", error: error.error, delay_sec: error.delay_sec, retry: error.retry };
      this.log.error(`${job.id} failed:`, error);
      return { outcome: "failed", error: { message: error?.message ?? String(error), type: error?.name ?? typeof error } };
    }
  }

  async #beats() {
    for (let beaten = performance.now(); !this.#over.signal.aborted; ) {
      const pause = Math.min(PROGRESS_MS, this.#timeout / 6);
      await sleep(pause, this.#over.signal);
      const now = performance.now();
      // Another worker may have it by now.
      for (const run of [...this.#runs].filter(({ heldUntil }) => now > heldUntil)) {
        run.isLost = true;
        Job.halt(run.job, "the job is lost");
      }
      // This worker would throw away the results of those that are lost. No heartbeat overtakes another.
      const held = [...this.#runs].filter(({ isLost, beating }) => !isLost && !beating);
      const isDue = now - beaten >= this.#least(held) / 3 - pause;
      if (isDue) beaten = now;
      const runs = held.filter(({ job }) => isDue || Job.news(job));
      while (runs.length > 0) this.#beat(runs.splice(0, CALLS_MAX));
    }
  }

  /** The shortest timeout that the service may have promised to these jobs. */
  #least = (runs) => runs.reduce((least, { promised }) => Math.min(least, promised), this.#timeout);

  #beat(runs) {
    const beating = this.#sendBeats(runs).finally(() => runs.forEach((run) => (run.beating = undefined)));
    runs.forEach((run) => (run.beating = beating));
    return beating;
  }

  async #sendBeats(runs, withProgress = true) {
    const [sent, { signal }] = [performance.now(), this.#over];
    const news = runs.map(({ job }) => (withProgress ? Job.news(job) : undefined));
    const beats = runs.map(({ claimed: { id, lock } }, nth) => ({ id, lock, ...news[nth] }));
    try {
      const { jobs, timeout_sec } = await this.client.beat(this.type, beats, { timeout_sec: this.#least(runs) / 3_000, signal });
      // Older versions of the service omit it.
      if (timeout_sec) this.#timeout = timeout_sec * 1_000;
      jobs.forEach(({ id, status, reason }, nth) => {
        const run = runs[nth];
        if (reason) this.log.warn(`progress of ${id} was refused: ${reason}`);
        Job.sent(run.job, news[nth]);
        run.job.superseded = status === "again";
        Object.assign(run, { promised: this.#timeout, heldUntil: status === "halt" ? 0 : sent + this.#timeout });
      });
    } catch (error) {
      if (signal.aborted) return;
      this.log.warn(`heartbeats of ${runs.length} jobs: ${error.message}`);
      if (isPassing(error) || !news.some(Boolean)) return;
      // Progress that is refused is not sent again, and does not cost the worker its jobs.
      runs.forEach(({ job }, nth) => Job.sent(job, news[nth]));
      await this.#sendBeats(runs, false);
    }
  }
}
