// The dashboard: an operator's view of the service, on its public API alone.
//
// Whatever comes from a server is set as text, never as markup. Lists are read a page at a time; nothing is asked for
// while the tab is hidden. Elements are in index.html as templates, their changing parts marked by `data-` names.

const API = new URL("../", document.baseURI);
const PAGE_ROWS = 50;
const STATES = ["running", "pending", "crashing", "failed", "completed"];
const COLLATES_LAST = "\u{10ffff}";

// ---------------------------------------------------------------------------------------------- elements

const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Sets text, and nothing when it is the same: a selection in it stays.
function put(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

// A copy of a template, and what it marks by name.
function use(template) {
  const root = el("div", { class: `view ${template.slice(2)}` });
  root.append($(template).content.cloneNode(true));
  const parts = { root };
  for (const node of root.querySelectorAll("*")) for (const name of Object.keys(node.dataset)) parts[name] ??= node;
  return parts;
}

// Makes the children of a parent those of the items; what is there already is updated in place and keeps the focus.
// `make` sees an item once, `update` every time.
const keyedRows = new WeakMap();
function keyed(parent, items, key, make) {
  const before = keyedRows.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const row = before.get(key(item)) ?? make(item);
    row.update(item);
    after.set(key(item), row);
  }
  for (const [id, row] of before) if (after.get(id) !== row) row.node.remove();
  let at = parent.firstElementChild;
  for (const { node } of after.values()) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  keyedRows.set(parent, after);
}

// ---------------------------------------------------------------------------------------------- words

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const number = (value) => (typeof value === "number" ? whole.format(value) : "–");
const brief = (value) => (typeof value !== "number" ? "–" : Math.abs(value) < 10_000 ? whole.format(value) : short.format(value));
const rate = (value) => (typeof value !== "number" ? "–" : value > 0 && value < 10 ? value.toFixed(1) : brief(value));

function bytes(value) {
  if (typeof value !== "number") return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${unit > 0 && value < 10 ? value.toFixed(1) : whole.format(value)} ${units[unit]}`;
}

function span(seconds) {
  if (typeof seconds !== "number") return "–";
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

const seconds = (iso) => (Date.now() - Date.parse(iso)) / 1000;
const ago = (iso) => (!iso || Number.isNaN(Date.parse(iso)) ? "–" : seconds(iso) < 2 ? "now" : `${span(seconds(iso))} ago`);
const local = (iso) => (!iso || Number.isNaN(Date.parse(iso)) ? "" : new Date(iso).toLocaleString());
const path = (...parts) => parts.map(encodeURIComponent).join("/");

// What a job does, as one word. Idle and paused are states of their own to who looks.
function stateOf(item) {
  if (item.info?.paused && item.state === "pending") return "paused";
  return item.state === "running" && item.info?.idle ? "idle" : item.state;
}

function errorOf(item) {
  if (typeof item.info === "string") return [item.info, ""];
  return ["crashing", "failed"].includes(item.state) ? [item.info?.error ?? "", item.info?.reason ?? ""] : ["", ""];
}

// The first that matches says what to do.
const HINTS = [
  [/duplicate|already (started|running)/i, "Another replication does the same. Delete one of the two; this one is tried again when the other is gone."],
  [/unauthorized|forbidden|auth_error|session_request/i, "Check this endpoint's user and password, and that the user may read the source or write to the target."],
  [/db_not_found|could not open/i, "Create the database on that server, or make the replication with create_target if it is the target's."],
  [/nxdomain|could not resolve/i, "Check the host's name, and the name service of the machines that run replications."],
  [/filter_fetch_error/i, "Check that the design document and its filter are on the source."],
  [/tls|certificate|unknown_ca|hostname/i, "Check the server's certificate and its name; a private authority has to be known to the nodes."],
  [/max_backoff|429/i, "The server asks for fewer requests. The replication goes on slower by itself."],
  [/egress|denied|not allowed/i, "The service may not connect there; its administrator allows hosts in the configuration."],
  [/no_progress/i, "The source says that it has changes and sends none. A proxy that holds answers back is the usual reason."],
  [/checkpoint|out of sync/i, "A database was made anew, or the user may not write _local documents. Restart the replication."],
  [/timeout|refused|unreachable|connect|50\d/i, "The server does not answer as it should. The job tries again by itself; look after that server."],
  [/field|must be|invalid|exclusive|endpoint/i, "The document is not one of a replication. Correct it; the job is made again at once."],
];
const hint = (error, reason) => HINTS.find(([pattern]) => pattern.test(`${error} ${reason}`))?.[1] ?? "";

// ---------------------------------------------------------------------------------------------- requests

class Refused extends Error {
  constructor(status, error, reason) {
    super(reason);
    Object.assign(this, { status, error, reason });
  }
}

async function request(url, { method = "GET", json, signal } = {}) {
  const headers = { accept: "application/json" };
  if (json !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(url, API), {
      method, headers, signal, body: json === undefined ? undefined : JSON.stringify(json), credentials: "same-origin", cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "unreachable", "The service does not answer.");
  }
  const body = await response.json().catch(() => null);
  if (response.ok) return body;
  if (response.status === 401 && url !== "_session") session.lost();
  throw new Refused(response.status, body?.error ?? "error", body?.reason ?? response.statusText);
}

const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

// An error and what to do about it.
function explain(error) {
  const { status, reason } = error;
  if (status === 0) return "The service does not answer. Check that it runs; this page goes on trying.";
  if (status === 401) return `${reason} Log in as a server administrator.`;
  if (status === 404) return "It is not there any more. Go back to the list.";
  if (status === 409) return "Somebody changed it meanwhile. Look at it again, then repeat what you did.";
  if (status === 429) return reason;
  if (status === 503) return `${reason} Wait a moment, then try again.`;
  if (status >= 500) return "Something went wrong in the service; its log says what.";
  return reason ?? String(error);
}

function toast(text, kind = "good") {
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Close", on: { click: () => node.remove() } }, "×");
  const node = el("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : "status" }, el("span", {}, text), close);
  $("toasts").append(node);
  if (kind === "good") setTimeout(() => node.remove(), 5000);
}

// What a button does, which cannot be pressed twice meanwhile.
async function act(button, work) {
  button.disabled = true;
  try {
    return await work();
  } catch (error) {
    toast(explain(error), "bad");
    return undefined;
  } finally {
    button.disabled = false;
  }
}

function confirmed(title, text, yes) {
  const dialog = $("confirm");
  put($("confirm-title"), title);
  put($("confirm-text"), text);
  put($("confirm-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

// ---------------------------------------------------------------------------------------------- polling

const live = {
  paused: false,
  polls: new Set(),
  show(problem) {
    $("live").className = `live ${problem ? "down" : this.paused ? "paused" : ""}`;
    $("live").setAttribute("aria-pressed", String(!this.paused));
    put($("live-text"), problem ? "No answer" : this.paused ? "Paused" : "Live");
  },
  toggle() {
    this.paused = !this.paused;
    this.show();
    if (!this.paused) this.now();
  },
  now: () => live.polls.forEach((poll) => poll.now()),
  stop: () => live.polls.forEach((poll) => poll.stop()),
};

// Works now and then again and again, while the tab is seen and nobody has paused. Errors make it slower.
function poll(ms, work, failed = () => {}) {
  let timer, aborter, errors = 0;
  const self = {
    async now() {
      self.halt();
      const { signal } = (aborter = new AbortController());
      try {
        await work(signal);
        if (signal.aborted) return;
        errors = 0;
        live.show();
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof Refused)) throw error;
        errors += 1;
        if (error.status === 0 || error.status >= 500) live.show(error);
        else failed(error);
      }
      if (!live.paused && !document.hidden) timer = setTimeout(self.now, ms * Math.min(2 ** errors, 15));
    },
    halt() {
      clearTimeout(timer);
      aborter?.abort();
    },
    stop() {
      self.halt();
      live.polls.delete(self);
    },
  };
  live.polls.add(self);
  self.now();
  return self;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) live.polls.forEach((poll) => poll.halt());
  else if (!live.paused) live.now();
});

// ---------------------------------------------------------------------------------------------- charts

// A line or a stack of areas over the last minutes, drawn from the samples it was given.
class Chart {
  static HEIGHT = 168;
  static KEEP_S = 600;
  static GAP_S = 20;

  constructor(figure, { title, series, stacked = false, format }) {
    Object.assign(this, { title, series, stacked, format, samples: [], pointed: null });
    this.values = series.map(() => el("b", {}, "–"));
    const legend = series.map(([name, kind], at) => el("li", { class: kind }, el("i", { "aria-hidden": "true" }), el("span", {}, name), this.values[at]));
    this.when = el("span", { class: "dim" });
    this.picture = svg("svg", { role: "img", height: Chart.HEIGHT });
    figure.replaceChildren(el("figcaption", {}, el("h2", {}, title), this.when, el("ul", { class: "legend" }, ...legend)), this.picture);
    this.picture.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.picture.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  add(values) {
    const now = Date.now() / 1000;
    this.samples.push({ at: now, values });
    while (this.samples[0].at < now - Chart.KEEP_S) this.samples.shift();
    this.draw();
  }

  point(x) {
    this.pointed = x;
    this.draw();
  }

  // The sums that a sample's areas reach.
  tops({ values }) {
    let sum = 0;
    return this.stacked ? values.map((value) => (sum += value)) : values;
  }

  draw() {
    const width = this.picture.clientWidth, last = this.samples.at(-1);
    if (!width || !last) return;
    const left = 46, right = width - 6, top = 8, bottom = Chart.HEIGHT - 22;
    const range = Math.max(60, Math.min(Chart.KEEP_S, last.at - this.samples[0].at));
    const max = nice(Math.max(1, ...this.samples.flatMap((sample) => this.tops(sample))));
    const x = (at) => right - ((last.at - at) / range) * (right - left);
    const y = (value) => bottom - (value / max) * (bottom - top);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      parts.push(svg("line", { class: "rule", x1: left, x2: right, y1: y(max * share), y2: y(max * share) }));
      parts.push(svg("text", { class: "tick", x: left - 6, y: y(max * share) + 4, "text-anchor": "end" }, this.format(max * share)));
    }
    for (const share of [1, 0.5, 0]) {
      const anchor = share === 1 ? "start" : share === 0 ? "end" : "middle";
      const text = share === 0 ? "now" : `−${span(range * share)}`;
      parts.push(svg("text", { class: "tick", x: right - share * (right - left), y: Chart.HEIGHT - 5, "text-anchor": anchor }, text));
    }
    for (const run of this.runs()) parts.push(...this.areas(run, x, y));
    const shown = this.pointed === null ? last : this.nearest(this.pointed, x);
    if (this.pointed !== null) parts.push(svg("line", { class: "cross", x1: x(shown.at), x2: x(shown.at), y1: top, y2: bottom }));
    this.picture.replaceChildren(...parts);
    this.values.forEach((node, at) => put(node, this.format(shown.values[at])));
    put(this.when, this.pointed === null ? "" : `${span(Date.now() / 1000 - shown.at)} ago`);
    const spoken = this.series.map(([name], at) => `${name} ${this.format(last.values[at])}`);
    this.picture.setAttribute("aria-label", `${this.title}, now: ${spoken.join(", ")}`);
  }

  areas(run, x, y) {
    const join = (points) => points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join("L");
    return this.series.flatMap(([, kind], at) => {
      const edge = run.map((sample) => [sample.at, this.tops(sample)[at]]);
      const floor = run.map((sample) => [sample.at, this.stacked && at > 0 ? this.tops(sample)[at - 1] : 0]);
      const area = svg("path", { class: `area ${kind}`, d: `M${join(edge)}L${join(floor.reverse())}Z` });
      return this.stacked || at === 0 ? [area, svg("path", { class: `line ${kind}`, d: `M${join(edge)}` })] : [svg("path", { class: `line ${kind}`, d: `M${join(edge)}` })];
    });
  }

  // The samples, cut where nobody looked.
  runs() {
    const runs = [];
    let before = -Infinity;
    for (const sample of this.samples) {
      if (sample.at - before > Chart.GAP_S) runs.push([]);
      runs.at(-1).push(sample);
      before = sample.at;
    }
    return runs;
  }

  nearest(px, x) {
    const distance = (sample) => Math.abs(x(sample.at) - px);
    return this.samples.reduce((best, sample) => (distance(sample) < distance(best) ? sample : best));
  }
}

// The next round number.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
}

// ---------------------------------------------------------------------------------------------- parts

function badge(state) {
  return el("span", { class: `badge ${state}` }, state);
}

// An endpoint: its host, and its database, which tells one from another.
function endpoint(node, url) {
  node.title = url ?? "";
  const match = /^(https?:\/\/)([^/]+)\/(.*?)\/?$/.exec(url ?? "");
  const [host, db] = match ? [match[2], match[3]] : [url ?? "not given", ""];
  if (node.dataset.shown === url) return;
  node.dataset.shown = url;
  node.replaceChildren(el("span", { class: "dim" }, host, db ? "/" : ""), el("span", {}, db));
}

function addressOf(item) {
  if (item.job_id) return `#/job/${encodeURIComponent(item.job_id)}`;
  return `#/doc/${path(item.database, item.doc_id)}`;
}

// A row of a list, of jobs or of documents.
function replicationRow() {
  const state = el("td", { class: "state" });
  const name = el("a", { class: "name" });
  const [source, target] = [el("span", { class: "end" }), el("span", { class: "end" })];
  const error = el("span", { class: "why" });
  const cell = (label, kind = "num") => el("td", { class: kind, "data-label": label });
  const [docs, pending, lag, written, place] = [cell("Docs/s"), cell("Pending"), cell("Lag"), cell("Written"), cell("Node", "place")];
  const route = el("span", { class: "route" }, source, el("span", { class: "arrow", "aria-label": "to" }, "→"), target);
  const node = el("tr", {}, state, el("td", { class: "what" }, name, route, error), docs, pending, lag, written, place);
  node.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !String(getSelection())) name.click();
  });
  let shown;
  return {
    node,
    update(item) {
      if (shown !== stateOf(item)) state.replaceChildren(badge((shown = stateOf(item))));
      name.href = addressOf(item);
      put(name, item.doc_id ?? item.id ?? item.job_id);
      endpoint(source, item.source);
      endpoint(target, item.target);
      const [what, reason] = errorOf(item);
      const times = item.error_count > 1 ? ` (${number(item.error_count)} times)` : "";
      put(error, what && `${what}${reason ? `: ${reason}` : ""}${times}`);
      const info = typeof item.info === "object" ? item.info : null;
      put(docs, item.state === "running" ? rate(info?.docs_per_second) : "–");
      put(pending, brief(info?.changes_pending));
      put(lag, item.state === "running" ? span(info?.lag_seconds) : "–");
      put(written, brief(info?.docs_written));
      if (info?.doc_write_failures > 0) put(error, error.textContent || `${number(info.doc_write_failures)} ${info.doc_write_failures === 1 ? "document was" : "documents were"} not taken`);
      put(place, item.node ?? (item.last_updated ? ago(item.last_updated) : "–"));
    },
  };
}

async function databases(signal) {
  const names = await request("_all_dbs", { signal });
  return names.filter((name) => name === "_replicator" || name.endsWith("/_replicator"));
}

// ---------------------------------------------------------------------------------------------- overview

function overview() {
  const view = use("t-overview");
  const throughput = new Chart(view.throughput, { title: "Documents per second", series: [["written", "rate"]], format: rate });
  const kinds = ["running", "idle", "pending", "paused", "crashing"];
  const states = new Chart(view.states, { title: "Jobs by state", series: kinds.map((kind) => [kind, kind]), stacked: true, format: brief });
  const tiles = [...["running", "idle", "pending", "paused", "crashing"].map((state) => [state, `#/jobs?states=${state}`]), ["failed", "#/docs?states=failed"], ["completed", "#/docs?states=completed"]];
  const about = { jobs: {} };

  poll(2000, async (signal) => {
    const summary = await request("_scheduler/summary", { signal });
    const jobs = (about.jobs = summary.jobs);
    const shown = { ...jobs, running: jobs.running - jobs.idle, pending: jobs.pending - jobs.paused };
    keyed(view.tiles, tiles.map(([state, href]) => ({ state, href, count: shown[state] })), ({ state }) => state, tile);
    view.exact.hidden = !summary.sampled;
    put(view.exact, "There are too many jobs to look at each: rates and nodes are estimated from a part of them.");
    throughput.add([summary.docs_per_second]);
    states.add(kinds.map((kind) => shown[kind]));
    const most = Math.max(1, ...summary.nodes.map((node) => node.running));
    keyed(view.nodes, summary.nodes.map((node) => ({ ...node, most })), ({ node }) => node, nodeRow);
    view.noNodes.hidden = summary.nodes.length > 0;
    view.nodes.parentElement.hidden = summary.nodes.length === 0;
    if (about.asked === undefined || jobs.crashing + jobs.failed !== about.asked) {
      about.asked = jobs.crashing + jobs.failed;
      attention.now();
    }
  });

  const attention = poll(15_000, async (signal) => {
    const { crashing = 0, failed = 0 } = about.jobs;
    const [jobs, docs] = await Promise.all([
      crashing ? request("_scheduler/jobs?states=crashing&limit=4", { signal }).then((page) => page.jobs) : [],
      failed ? request("_scheduler/docs/_replicator?states=failed&limit=4", { signal }).then((page) => page.docs, (error) => { if (error.status === 404) return []; throw error; }) : [],
    ]);
    keyed(view.attention, [...jobs, ...docs], addressOf, attentionRow);
    view.calm.hidden = jobs.length + docs.length > 0;
    view.moreCrashing.hidden = crashing <= jobs.length;
    view.moreFailed.hidden = failed <= docs.length;
  });
  return { title: "Overview", root: view.root };
}

function tile({ state, href }) {
  const count = el("strong");
  const node = el("li", { class: state }, el("a", { href }, count, el("span", {}, state)));
  return { node, update: (item) => { put(count, brief(item.count)); node.classList.toggle("none", !item.count); } };
}

function nodeRow() {
  const cells = ["Running", "Idle", "Docs/s", "Data/s", "Largest lag"].map((label) => el("td", { class: "num", "data-label": label }));
  const name = el("span"), meter = el("meter", { min: 0, "aria-label": "Share of the busiest node" });
  return {
    node: el("tr", {}, el("th", { scope: "row" }, name, meter), ...cells),
    update(item) {
      put(name, item.node);
      [meter.max, meter.value] = [item.most, item.running];
      const texts = [number(item.running), number(item.idle), rate(item.docs_per_second), `${bytes(item.bytes_per_second)}`, span(item.lag_seconds_max)];
      cells.forEach((cell, at) => put(cell, texts[at]));
    },
  };
}

function attentionRow() {
  const name = el("a"), why = el("span", { class: "why" }), help = el("span", { class: "dim small" }), mark = el("span");
  return {
    node: el("li", {}, mark, el("div", {}, name, why, help)),
    update(item) {
      mark.replaceChildren(badge(stateOf(item)));
      name.href = addressOf(item);
      put(name, item.doc_id ?? item.id ?? item.job_id);
      const [error, reason] = errorOf(item);
      put(why, `${error}${reason ? `: ${reason}` : ""}`);
      put(help, hint(error, reason));
    },
  };
}

// ---------------------------------------------------------------------------------------------- lists

const LISTS = {
  jobs: {
    title: "Jobs",
    search: "Search by a part of the source's or target's URL",
    states: ["running", "idle", "pending", "paused", "crashing"],
    everywhere: "All databases",
    total: (rows) => `${number(rows)} that are not finished`,
    empty: "No job matches. Jobs that are finished are listed under Documents.",
    url: ({ q, database, states }, at) => `_scheduler/jobs${query({ limit: PAGE_ROWS, endpoint: q, database, states, bookmark: at })}`,
    rows: (page) => page.jobs,
    next: (page) => page.bookmark,
  },
  docs: {
    title: "Documents",
    search: "Search by the beginning of the id",
    states: STATES,
    total: (rows) => `${number(rows)} in this database`,
    empty: "No document matches.",
    url({ q, database, states }, at) {
      const from = at?.startkey ?? q;
      const keys = { startkey: from && JSON.stringify(from), endkey: q && JSON.stringify(q + COLLATES_LAST) };
      return `_scheduler/docs/${encodeURIComponent(database || "_replicator")}${query({ limit: PAGE_ROWS, states, ...keys, bookmark: at?.bookmark })}`;
    },
    rows: (page) => page.docs,
    next(page) {
      if (page.bookmark) return { bookmark: page.bookmark };
      return page.docs.length === PAGE_ROWS ? { startkey: `${page.docs.at(-1).doc_id}\0` } : undefined;
    },
  },
};
// What the service calls the states that only this page tells apart.
const ASKED = { idle: "running", paused: "pending" };

function list(name, parameters) {
  const kind = LISTS[name], view = use("t-list");
  const filter = { q: parameters.get("q") ?? "", database: parameters.get("database") ?? "", states: (parameters.get("states") ?? "").split(",").filter(Boolean) };
  const pages = [undefined];
  let next;

  put(view.title, kind.title);
  put(view.searchLabel, kind.search);
  view.search.placeholder = kind.search;
  view.search.value = filter.q;
  view.search.title = "Press / to get here";
  for (const label of ["State", "Replication", "Docs/s", "Pending", "Lag", "Written", name === "jobs" ? "Node" : "Node or last change"]) {
    view.columns.append(el("th", { scope: "col", class: ["State", "Replication"].includes(label) || label.startsWith("Node") ? null : "num" }, label));
  }
  for (const state of kind.states) {
    const input = el("input", { type: "checkbox", value: state, on: { change: () => {
      filter.states = [...view.states.querySelectorAll("input:checked")].map((checked) => checked.value);
      changed();
    } } });
    input.checked = filter.states.includes(state);
    view.states.append(el("label", { class: `chip ${state}` }, input, el("span", {}, state)));
  }

  const rows = poll(4000, async (signal) => {
    const asked = { ...filter, states: [...new Set(filter.states.map((state) => ASKED[state] ?? state))].join(",") };
    const page = await request(kind.url(asked, pages.at(-1)), { signal });
    const wanted = (item) => filter.states.length === 0 || filter.states.includes(stateOf(item)) || (name === "docs" && filter.states.includes(item.state));
    const items = kind.rows(page).filter(wanted);
    next = kind.next(page);
    put(view.total, kind.total(page.total_rows));
    keyed(view.rows, items, (item) => item.job_id ?? `${item.database}/${item.doc_id}`, replicationRow);
    view.root.querySelector("table").hidden = items.length === 0;
    empty(items.length ? "" : next ? "None on this page. Go on to the next." : page.total_rows ? kind.empty : "There is no replication yet.");
    view.previous.disabled = pages.length === 1;
    view.next.disabled = !next;
    put(view.page, `Page ${pages.length}`);
  }, (error) => {
    view.root.querySelector("table").hidden = true;
    empty(error.status === 404 ? "This database is not there. It is made with the first replication." : explain(error));
  });

  function empty(text) {
    view.empty.hidden = !text;
    put(view.empty, text);
  }
  function turn(pageChange) {
    pageChange();
    rows.now();
    scrollTo({ top: 0 });
  }
  function changed() {
    pages.length = 1;
    history.replaceState(null, "", `#/${name}${query({ q: filter.q, database: filter.database, states: filter.states.join(",") })}`);
    rows.now();
  }
  view.next.addEventListener("click", () => turn(() => next && pages.push(next)));
  view.previous.addEventListener("click", () => turn(() => pages.length > 1 && pages.pop()));
  let typing;
  view.search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter.q = view.search.value.trim(); changed(); }, 250);
  });
  view.filters.addEventListener("submit", (event) => event.preventDefault());
  view.database.addEventListener("change", () => { filter.database = view.database.value; changed(); });
  databases().then((names) => fill(view.database, names, filter.database, kind.everywhere), () => fill(view.database, [], filter.database, kind.everywhere));
  return { title: kind.title, root: view.root };
}

function fill(select, names, chosen, everywhere) {
  const all = new Set([...(names.length ? names : ["_replicator"]), ...(chosen ? [chosen] : [])]);
  const options = [...all].map((name) => el("option", { value: name }, name));
  if (everywhere) options.unshift(el("option", { value: "" }, everywhere));
  select.replaceChildren(...options);
  if (chosen) select.value = chosen;
}

// ---------------------------------------------------------------------------------------------- one replication

const FIGURES = [
  ["Written", (info) => number(info.docs_written)],
  ["Pending", (info) => number(info.changes_pending)],
  ["Lag", (info, item) => (item.state === "running" ? span(info.lag_seconds) : "–")],
  ["Docs/s", (info, item) => (item.state === "running" ? rate(info.docs_per_second) : "–")],
  ["Data/s", (info, item) => (item.state === "running" ? bytes(info.bytes_per_second) : "–")],
  ["Read", (info) => number(info.docs_read)],
  ["Not taken", (info) => number(info.doc_write_failures)],
  ["Checked", (info) => number(info.revisions_checked)],
  ["Missing", (info) => number(info.missing_revisions_found)],
  ["Filtered out", (info) => number(info.docs_filtered)],
  ["Attachments", (info) => number(info.attachments_copied)],
  ["Bytes written", (info) => bytes(info.bytes_written)],
];

// `where` is a job by its id, or a document by database and id; each leads to the other.
function replication(where) {
  const view = use("t-job");
  const chart = new Chart(view.chart, { title: "Documents per second", series: [["written", "rate"]], format: rate });
  let item = null;
  // What was written of late: a job that has caught up takes a document now and then, and tells no rate.
  const written = [];
  function rateOf({ state, info }) {
    if (state !== "running" || typeof info?.docs_written !== "number") return 0;
    const now = Date.now() / 1000;
    written.push({ now, docs: info.docs_written });
    while (written[0].now < now - 20) written.shift();
    const since = now - written[0].now;
    return Math.max(info.docs_per_second ?? 0, since < 10 ? 0 : Math.max(0, info.docs_written - written[0].docs) / since);
  }

  async function load(signal) {
    const doc = (database, id) => request(`_scheduler/docs/${path(database, id)}`, { signal });
    const job = (id) => request(`_scheduler/jobs/${encodeURIComponent(id)}`, { signal });
    if (where.doc) {
      const row = await doc(...where.doc);
      return row.job_id ? { ...row, ...(await job(row.job_id)) } : row;
    }
    const row = await job(where.job);
    const missing = (error) => { if (error.status === 404) return {}; throw error; };
    return row.doc_id ? { ...(await doc(row.database, row.doc_id).catch(missing)), ...row } : row;
  }

  const facts = poll(2000, async (signal) => {
    item = await load(signal);
    show(view, item);
    chart.add([rateOf(item)]);
    if (!item.job_id) return;
    const { failures } = await request(`_scheduler/jobs/${encodeURIComponent(item.job_id)}/failures`, { signal });
    showFailures(view, failures);
  }, (error) => {
    if (error.status !== 404) return toast(explain(error), "bad");
    facts.stop();
    view.root.replaceChildren(el("h1", {}, "Not there"), el("p", { class: "empty" }, "There is no such replication any more. ", el("a", { href: "#/jobs" }, "Go to the jobs")));
  });

  const steer = (button, action, done) => button.addEventListener("click", () => item?.job_id && act(button, async () => {
    await request(`_scheduler/jobs/${encodeURIComponent(item.job_id)}/${action()}`, { method: "POST" });
    toast(done());
    await facts.now();
  }));
  steer(view.restart, () => "_restart", () => "It is to run now, its errors forgotten.");
  let pausing;
  steer(view.pause, () => (pausing = item.info?.paused ? "_resume" : "_pause"), () => (pausing === "_pause" ? "Paused. It keeps its checkpoint." : "It goes on from its checkpoint."));
  view.delete.addEventListener("click", () => remove(view.delete, item));
  put(view.name, where.job ?? where.doc[1]);
  return { title: "Replication", root: view.root };
}

async function remove(button, item) {
  if (!item) return;
  const name = item.doc_id ?? item.id ?? item.job_id;
  const title = item.doc_id ? `Delete ${name}?` : "Cancel this replication?";
  if (!(await confirmed(title, "It stops, and what it has copied stays where it is.", item.doc_id ? "Delete it" : "Cancel it"))) return;
  await act(button, async () => {
    if (item.doc_id) {
      const url = path(item.database, item.doc_id);
      const { _rev } = await request(url);
      await request(`${url}${query({ rev: _rev })}`, { method: "DELETE" });
    } else {
      await request("_replicate", { method: "POST", json: { replication_id: item.id ?? item.job_id, cancel: true } });
    }
    toast(item.doc_id ? `${name} is deleted.` : "It is cancelled.");
    location.hash = "#/jobs";
  });
}

function show(view, item) {
  const state = stateOf(item), name = item.doc_id ?? item.id ?? item.job_id, info = typeof item.info === "object" ? (item.info ?? {}) : {};
  document.title = `${name} · Davenport`;
  put(view.name, name);
  if (view.state.dataset.state !== state) view.state.replaceChildren(badge((view.state.dataset.state = state)));
  const list = item.doc_id ? [`#/docs${query({ database: item.database })}`, item.database] : ["#/jobs", "Jobs"];
  if (!view.crumbs.firstChild) view.crumbs.append(el("a", { href: list[0] }, list[1]));
  endpoint(view.source, item.source);
  endpoint(view.target, item.target);
  view.restart.disabled = !item.job_id || state === "paused";
  const ended = ["completed", "failed"].includes(item.state);
  view.pause.disabled = !item.job_id || ended;
  put(view.pause, info.paused ? "Resume" : "Pause");
  put(view.delete, item.doc_id ? "Delete" : "Cancel");
  view.delete.disabled = !item.doc_id && ended;

  const [error, reason] = errorOf(item);
  view.alert.hidden = !error;
  put(view.alertError, error);
  put(view.alertReason, reason);
  put(view.alertHint, error && hint(error, reason));

  const done = info.revisions_checked, left = info.changes_pending;
  view.progressBox.hidden = item.state !== "running" || typeof left !== "number" || typeof done !== "number";
  const share = left > 0 ? done / (done + left) : 1;
  view.progress.value = share;
  put(view.progressText, left > 0 ? `${Math.floor(share * 100)} %, ${number(left)} changes to go` : state === "idle" ? "Caught up; waiting for changes" : "Nothing pending");

  const counted = typeof info.docs_written === "number";
  view.figures.hidden = !counted;
  view.chart.hidden = item.state !== "running";
  const figure = ({ title }) => {
    const value = el("dd");
    return { node: el("div", {}, el("dt", {}, title), value), update: ({ text }) => put(value, text) };
  };
  keyed(view.figures, FIGURES.map(([title, text]) => ({ title, text: text(info, item) })), ({ title }) => title, figure);
  showHistory(view, item);
  const facts = [
    ["Job", item.job_id], ["Replication id", item.id], ["Database", item.database], ["Document", item.doc_id], ["Made by", item.user], ["Node", item.node], ["Process", item.pid],
    ["Errors in a row", item.error_count > 0 ? number(item.error_count) : null], ["Made", local(item.start_time)], ["Last change", item.last_updated && `${local(item.last_updated)} (${ago(item.last_updated)})`],
    ["Began at", item.info?.start_seq === undefined ? null : `${item.info.started_from ?? ""} ${JSON.stringify(item.info.start_seq)}`], ["Checkpoint", info.checkpointed_source_seq], ["Source proxy", item.source_proxy], ["Target proxy", item.target_proxy],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  const fact = ([title]) => {
    const value = el("dd");
    return { node: el("div", {}, el("dt", {}, title), value), update: ([, text]) => put(value, text) };
  };
  keyed(view.facts, facts, ([title]) => title, fact);
  put(view.raw, JSON.stringify(item, null, 2));
}

function showHistory(view, item) {
  const events = (item.history ?? []).map((event, at, all) => ({ ...event, key: `${all.length - at} ${event.timestamp} ${event.type}` }));
  keyed(view.history, events, ({ key }) => key, (event) => {
    const when = el("span", { class: "dim" });
    const time = el("time", { datetime: event.timestamp, title: local(event.timestamp) }, when);
    const node = el("li", { class: event.type }, el("b", {}, event.type), time, event.reason ? el("p", { class: "why" }, event.reason) : null);
    return { node, update: () => put(when, ago(event.timestamp)) };
  });
}

function showFailures(view, failures) {
  const newest = [...failures].reverse();
  view.noFailures.hidden = newest.length > 0;
  view.failures.parentElement.hidden = newest.length === 0;
  keyed(view.failures, newest, ({ id, rev, time }) => `${id} ${rev} ${time}`, (failed) => {
    const when = el("td", { "data-label": "When", title: local(failed.time) });
    const cell = (label, text, kind) => el("td", { "data-label": label, class: kind }, text ?? "–");
    const node = el("tr", {}, el("th", { scope: "row" }, failed.id), cell("Revision", failed.rev, "mono"), cell("Error", failed.error), cell("Reason", failed.reason), when);
    return { node, update: () => put(when, ago(failed.time)) };
  });
}

// ---------------------------------------------------------------------------------------------- a new one

const NUMBERS = ["worker_processes", "worker_batch_size", "http_connections", "connection_timeout", "retries_per_request", "checkpoint_interval"];
const TEXTS = ["source_proxy", "target_proxy", "on_write_failure", "filter_where"];
const SWITCHES = ["continuous", "create_target", "skip_deleted", "skip_design_docs", "winning_revs_only"];

// What the form says, unchecked: the service knows best what is wrong. What is no JSON goes as the text it is.
function replicationOf(form) {
  const text = (name) => form.elements[name].value.trim();
  const json = (name) => { try { return JSON.parse(text(name)); } catch { return text(name); } };
  const doc = {};
  for (const side of ["source", "target"]) {
    const username = text(`${side}_user`);
    if (text(side)) doc[side] = username ? { url: text(side), auth: { basic: { username, password: form.elements[`${side}_password`].value } } } : text(side);
  }
  for (const name of SWITCHES) if (form.elements[name].checked) doc[name] = true;
  for (const name of TEXTS) if (text(name)) doc[name] = text(name);
  for (const name of NUMBERS) if (text(name)) doc[name] = Number.isNaN(Number(text(name))) ? text(name) : Number(text(name));
  if (text("since_seq")) doc.since_seq = json("since_seq");
  if (form.elements.no_checkpoints.checked) doc.use_checkpoints = false;
  const what = form.elements.what.value;
  if (what === "doc_ids") doc.doc_ids = form.elements.doc_ids.value.split("\n").map((id) => id.trim()).filter(Boolean);
  if (what === "selector") doc.selector = json("selector");
  if (what === "filter") {
    doc.filter = text("filter");
    if (text("query_params")) doc.query_params = json("query_params");
  }
  return doc;
}

// What to do about messages that do not say it.
const ADVICE = {
  local_endpoints_not_supported: "Give a whole URL, which begins with http:// or https://.",
  "endpoint has an invalid url": "Give a URL as https://couch.example.com/database.",
};

// The field that a validator's message is about.
function fieldOf({ status, reason }, form) {
  if (status === 409) return "id";
  const value = (name) => form.elements[name].value.trim();
  const odd = ["source", "target"].find((side) => !/^https?:\/\/[^/]/i.test(value(side)) || !URL.canParse(value(side)));
  if (/endpoint/i.test(reason)) return odd ?? "source";
  const named = /`(\w+)`/.exec(reason)?.[1];
  if (named === "view") return "query_params";
  if (named === "use_checkpoints") return "no_checkpoints";
  if (named && form.elements[named]) return named;
  if (/proxy/i.test(reason)) return value("source_proxy") && !/^(https?|socks5):\/\/[^/]/i.test(value("source_proxy")) ? "source_proxy" : "target_proxy";
  if (/filter/i.test(reason)) return "filter";
  if (/query_param|value must be a string/i.test(reason)) return "query_params";
  if (/document id|_id\b|docid/i.test(reason)) return "id";
  return form.elements.what.value === "selector" ? "selector" : null;
}

function make() {
  const view = use("t-new"), { form } = view;
  databases().then((names) => fill(form.elements.database, names, "_replicator"), () => fill(form.elements.database, [], "_replicator"));
  const choose = () => form.querySelectorAll("[data-what]").forEach((part) => { part.hidden = part.dataset.what !== form.elements.what.value; });
  form.addEventListener("change", choose);
  form.addEventListener("input", ({ target }) => clear(target));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    form.querySelectorAll("[aria-invalid]").forEach(clear);
    view.formError.hidden = true;
    save();
  });

  async function save() {
    const database = form.elements.database.value, id = form.elements.id.value.trim();
    view.submit.disabled = true;
    try {
      const made = await store(database, id, replicationOf(form));
      toast(`${made.id} is made.`);
      location.hash = `#/doc/${path(database, made.id)}`;
    } catch (error) {
      refuse(error);
    } finally {
      view.submit.disabled = false;
    }
  }

  // The first replication makes the database.
  async function store(database, id, doc) {
    const put = () => request(id ? path(database, id) : path(database), { method: id ? "PUT" : "POST", json: doc });
    try {
      return await put();
    } catch (error) {
      if (error.status !== 404) throw error;
      await request(path(database), { method: "PUT" });
      return put();
    }
  }

  function refuse(error) {
    const said = error.status === 409 ? "There is a document with this id. Choose another one." : [400, 403].includes(error.status) ? error.reason : explain(error);
    const field = [400, 403, 409].includes(error.status) && fieldOf(error, form);
    if (!field) {
      view.formError.hidden = false;
      put(view.formError, said);
      return view.formError.scrollIntoView({ block: "center" });
    }
    const control = form.elements[field];
    const message = el("span", { class: "field-error", id: `error-${field}` }, said, el("small", {}, ADVICE[said] ?? ""));
    control.after(message);
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", message.id);
    control.closest("details")?.setAttribute("open", "");
    control.focus();
  }

  function clear(control) {
    if (!control.hasAttribute?.("aria-invalid")) return;
    $(control.getAttribute("aria-describedby"))?.remove();
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
  }
  return { title: "New replication", root: view.root, focus: form.elements.source };
}

// ---------------------------------------------------------------------------------------------- the page

const session = {
  name: null,
  async start() {
    try {
      const { userCtx } = await request("_session");
      if (userCtx.name) return this.open(userCtx.name, userCtx.roles);
    } catch (error) {
      toast(explain(error), "bad");
    }
    return this.login();
  },
  open(name, roles) {
    if (!roles.includes("_admin")) return this.login(`${name} is no server administrator. Log in as one.`);
    this.name = name;
    put($("user"), name);
    $("bar").hidden = false;
    return route();
  },
  lost() {
    if (this.name === null) return;
    this.name = null;
    this.login("You are logged out. Log in again; you come back to this page.");
  },
  login(why = "") {
    live.stop();
    $("bar").hidden = true;
    const view = use("t-login"), { form } = view;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      put(view.error, "");
      view.submit.disabled = true;
      try {
        const { name, roles } = await request("_session", { method: "POST", json: { name: form.elements.name.value, password: form.elements.password.value } });
        $("toasts").replaceChildren();
        this.open(name ?? form.elements.name.value, roles);
      } catch (error) {
        put(view.error, error.status === 401 ? error.reason : explain(error));
        form.elements.password.select();
      } finally {
        view.submit.disabled = false;
      }
    });
    put(view.error, why);
    document.title = "Log in · Davenport";
    $("main").replaceChildren(view.root);
    form.elements.name.focus();
  },
  async logout() {
    this.name = null;
    await request("_session", { method: "DELETE" }).catch(() => {});
    this.login();
  },
};

const VIEWS = {
  "": () => overview(),
  jobs: (_, parameters) => list("jobs", parameters),
  docs: (_, parameters) => list("docs", parameters),
  job: ([id]) => replication({ job: id }),
  doc: ([database, id]) => replication({ doc: [database, id] }),
  new: () => make(),
};
const TABS = { "": "overview", job: "jobs", doc: "docs" };

function route(event) {
  if (!session.name) return;
  const [where, parameters = ""] = location.hash.replace(/^#?\/?/, "").split("?");
  const [name, ...parts] = where.split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  live.stop();
  const made = (VIEWS[name] ?? VIEWS[""])(parts, new URLSearchParams(parameters));
  document.title = `${made.title} · Davenport`;
  $("main").replaceChildren(made.root);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === (TABS[name] ?? name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (made.focus) made.focus.focus();
  else if (event) $("main").focus({ preventScroll: true });
}

// ---------------------------------------------------------------------------------------------- keys

const GO = { o: "#/", j: "#/jobs", d: "#/docs", n: "#/new" };
let going = 0;

function step(by) {
  const links = [...document.querySelectorAll(".rows .name, .attention a")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}

const KEYS = {
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => $("help").showModal(),
  "[": () => document.querySelector("[data-previous]:enabled")?.click(),
  "]": () => document.querySelector("[data-next]:enabled")?.click(),
  g: () => { going = Date.now(); },
  j: () => step(1),
  k: () => step(-1),
  n: () => { location.hash = GO.n; },
  p: () => live.toggle(),
  r: () => live.now(),
};

document.addEventListener("keydown", (event) => {
  if (!session.name || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input:not([type=checkbox], [type=radio]), textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const go = Date.now() - going < 1000 && GO[event.key];
  if (go) {
    going = 0;
    location.hash = go;
  } else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

$("live").addEventListener("click", () => live.toggle());
$("help-open").addEventListener("click", () => $("help").showModal());
$("logout").addEventListener("click", () => session.logout());
addEventListener("hashchange", route);
session.start();
