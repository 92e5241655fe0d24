/** Any JSON. */
export type Json = unknown;
export type State = "pending" | "running" | "finished" | "dead";

export interface NewJob {
  data: Json;
  id?: string;
  delay_sec?: number;
  /** RFC 3339 */
  due?: string;
  class?: "urgent" | "normal" | "bulk";
  tenant?: string;
  key?: string;
  on_exists?: "replace" | "keep" | "earliest";
}
export interface Added { id: string | null; ok?: true; error?: string; reason?: string }
export interface Claimed {
  id: string;
  lock: string;
  attempt: number;
  failures: number;
  data: any;
  progress?: any;
  deadline: string;
}
export interface Claim { jobs: Claimed[]; timeout_sec: number }
export interface Beat { id: string; lock: string; progress?: Json }
/** Has `error` and `reason` if the progress was refused, and still counts as a heartbeat. */
export interface Beaten { id: string; status: "held" | "halt" | "again"; deadline: string | null; error?: string; reason?: string }
/** Older versions of the service omit `timeout_sec`. */
export interface Beats { jobs: Beaten[]; timeout_sec?: number; drain: boolean }
export interface Ended {
  id: string;
  lock: string;
  outcome: "done" | "failed" | "again";
  result?: Json;
  error?: Json;
  delay_sec?: number;
  /** `false` if a failed job is not to be retried. */
  retry?: boolean;
}
export interface Finish extends Claim { results: { id: string; status: "ok" | "repeated" | "halt" }[] }
export interface Attempt {
  worker: string;
  start: string;
  end: string | null;
  outcome: "done" | "failed" | "again" | "silent" | "returned" | null;
  reason: string | null;
}
/** A job as `get` and `wait` return it. Listings have data, progress, result and error only if asked for them. */
export interface JobInfo {
  id: string;
  type: string;
  state: State;
  due: string;
  created: string;
  finished: string | null;
  expires: string | null;
  attempt: number;
  failures: number;
  worker: string | null;
  waits_for: string | null;
  reason: string | null;
  data?: any;
  progress?: any;
  result?: any;
  error?: any;
  attempts?: Attempt[];
  /** Why its data, progress, result and error are missing, if they cannot be read. */
  unreadable?: string;
}
/** An event of `follow`. A removed job has only `id` and `state`. */
export interface Change {
  id: string;
  state: State | "removed";
  attempt?: number;
  progress?: any;
  result?: any;
  error?: any;
}
export interface Settings {
  timeout_sec?: number;
  retention_sec?: number | null;
  retry?: { limit?: number | null; delay_sec?: number; multiplier?: number; max_delay_sec?: number; jitter?: number };
  limits?: Record<string, number | { max: number; per_sec: number }>;
  shares?: Record<string, number> | null;
  roles?: { enqueue?: string[]; work?: string[]; read?: string[] };
  max_pending?: number | null;
  max_data_bytes?: number;
  sealed?: boolean;
}
export interface Schedule {
  type: string;
  job: Omit<NewJob, "due">;
  cron?: string;
  zone?: string;
  every_sec?: number;
  overlap?: "skip" | "queue";
  catch_up?: "one" | "all" | "none";
}
export interface TypeInfo {
  type: string;
  internal: boolean;
  settings?: Required<Settings>;
  paused?: boolean;
  counts: Record<State, number>;
  totals: Record<string, number>;
  due: number;
  waiting_for_limits: number;
  oldest_due: string | null;
}
export interface ClientOptions {
  headers?: Record<string, string>;
  /** How long a request may take, besides what it waits for. */
  timeout_sec?: number;
  fetch?: typeof fetch;
}
interface Signalled { signal?: AbortSignal }

export class ServiceError extends Error {
  readonly status: number;
  readonly error: string;
  readonly reason: string;
  /** Seconds, if the queue is full. */
  readonly retryAfter?: number;
}
export class UnreachableError extends Error {}
export class Again extends Error {
  constructor(delay_sec?: number);
}
export class Failed extends Error {
  constructor(error: Json, delay_sec?: number, options?: { retry?: boolean });
}
export class Halted extends Error {}
export type Right = "enqueue" | "work" | "read";
export interface NewToken {
  name: string;
  rights: Right[];
  types?: string[];
  expires_sec?: number;
}
export interface TokenInfo {
  name: string;
  types: string[] | null;
  rights: Right[];
  created: string;
  created_by: string;
  expires: string | null;
  expired: boolean;
}
export interface ScheduleInfo extends Schedule {
  name: string;
  next: string;
  skipped: number;
  last: { occurrence: string; id: string | null; error: string | null } | null;
  unreadable?: string;
}

export class Client {
  constructor(urls: string | string[], options?: ClientOptions);
  send(
    method: string,
    path: string,
    options?: Signalled & { body?: Json; headers?: Record<string, string>; wait_sec?: number; timeout_sec?: number; isRepeatable?: boolean },
  ): Promise<any>;
  putType(type: string, settings?: Settings): Promise<void>;
  types(): Promise<TypeInfo[]>;
  typeInfo(type: string): Promise<TypeInfo>;
  enqueue(type: string, data: Json, options?: Omit<NewJob, "data"> & { idempotency_key?: string }): Promise<string>;
  enqueueMany(type: string, jobs: NewJob[], options?: { idempotency_key?: string }): Promise<Added[]>;
  claim(type: string, worker: string, options?: Signalled & { count?: number; wait_sec?: number }): Promise<Claim>;
  /** If there is no answer within `timeout_sec`, the next URL is tried. */
  beat(type: string, jobs: Beat[], options?: Signalled & { timeout_sec?: number }): Promise<Beats>;
  finish(
    type: string,
    jobs: Ended[],
    options?: Signalled & { claim?: number; worker?: string; wait_sec?: number },
  ): Promise<Finish>;
  get(type: string, id: string, options?: Signalled): Promise<JobInfo>;
  wait(type: string, id: string, options?: Signalled & { timeout_sec?: number }): Promise<JobInfo>;
  list(
    type: string,
    query?: { state?: State; limit?: number; after?: string; data?: boolean },
  ): Promise<{ jobs: JobInfo[]; next: string | null }>;
  follow(type: string, ids: string[], options?: Signalled): AsyncGenerator<Change, void>;
  remove(type: string, id: string): Promise<void>;
  retry(type: string, id: string): Promise<void>;
  /** With `running`, the service goes on with the others. */
  retryDead(type: string, error?: string): Promise<{ ok: true; count: number; running?: true }>;
  /** Resolves with when it occurs next. */
  putSchedule(name: string, settings: Schedule): Promise<string>;
  /** Resolves with the id of the job. */
  runSchedule(name: string, options?: { idempotency_key?: string }): Promise<string>;
  removeSchedule(name: string): Promise<void>;
  /** A page of schedules; pass its `next` as `after`. */
  schedules(query?: { limit?: number; after?: string }): Promise<{ schedules: ScheduleInfo[]; next: string | null }>;
  schedule(name: string): Promise<ScheduleInfo>;
  /** Resolves with the text of the token, which is shown only this time: if it is lost, revoke the token. */
  makeToken(token: NewToken): Promise<string>;
  tokens(): Promise<TokenInfo[]>;
  revokeToken(name: string): Promise<void>;
  pause(type: string): Promise<void>;
  resume(type: string): Promise<void>;
}

export interface Job<Data = any> {
  readonly id: string;
  readonly data: Data;
  readonly attempt: number;
  readonly failures: number;
  /** What an earlier attempt reported last. */
  readonly progress: any;
  /** There is newer data: the job will run again, and this run may end early. */
  readonly superseded: boolean;
  /** Aborted when the job is lost. Pass it on to `fetch` and others. */
  readonly signal: AbortSignal;
  /** Stores progress with the next heartbeat. Throws if the job is lost. */
  report(progress: Json): void;
}

export class Worker<Data = any> {
  constructor(
    client: Client,
    type: string,
    handler: (job: Job<Data>) => Json | Promise<Json>,
    options?: {
      concurrency?: number;
      name?: string;
      wait_sec?: number;
      grace_sec?: number;
      log?: Pick<Console, "warn" | "error">;
    },
  );
  run(options?: { signals?: boolean }): Promise<void>;
  stop(): void;
}
