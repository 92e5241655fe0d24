// Between the form of a replication and its document.

const NUMBERS = [
  "worker_processes", "worker_batch_size", "http_connections", "connection_timeout", "retries_per_request",
  "checkpoint_interval",
];
const TEXTS = ["source_proxy", "target_proxy", "on_write_failure", "filter_where"];
const SWITCHES = ["continuous", "create_target", "skip_deleted", "skip_design_docs", "winning_revs_only"];

const WHAT = ["doc_ids", "selector", "filter", "query_params"];
// A new document has none of these, and so begins anew.
const RESULTS = /^_replication_/;

// The document as entered: the service validates it. Text that is not JSON where JSON is expected is sent as a string.
// Members of the document `before` that the form does not have stay as they are.
export function documentOf(form, before = {}) {
  const text = (name) => form.elements[name].value.trim();
  const json = (name) => {
    try {
      return JSON.parse(text(name));
    } catch {
      return text(name);
    }
  };
  const replaced = ["source", "target", ...SWITCHES, ...TEXTS, ...NUMBERS, ...WHAT, "since_seq", "use_checkpoints"];
  const kept = ([name]) => !replaced.includes(name) && !RESULTS.test(name);
  const doc = Object.fromEntries(Object.entries(before).filter(kept));
  for (const side of ["source", "target"]) if (text(side)) doc[side] = endpointOf(form, side, text(side), before[side]);
  for (const name of SWITCHES) if (form.elements[name].checked) doc[name] = true;
  for (const name of TEXTS) if (text(name)) doc[name] = text(name);
  for (const name of NUMBERS) {
    if (text(name)) doc[name] = Number.isNaN(Number(text(name))) ? text(name) : Number(text(name));
  }
  if (text("since_seq")) doc.since_seq = json("since_seq");
  if (form.elements.no_checkpoints.checked) doc.use_checkpoints = false;
  const what = form.elements.what.value;
  if (what === "doc_ids") doc.doc_ids = text("doc_ids").split("\n").map((id) => id.trim()).filter(Boolean);
  if (what === "selector") doc.selector = json("selector");
  if (what === "filter") {
    doc.filter = text("filter");
    if (text("query_params")) doc.query_params = json("query_params");
  }
  return doc;
}

// An empty password leaves the one of the document as it is.
function endpointOf(form, side, url, before) {
  const username = form.elements[`${side}_user`].value.trim();
  const password = form.elements[`${side}_password`].value || before?.auth?.basic?.password || "";
  const rest = typeof before === "object" ? before : {};
  const { basic, ...auth } = rest.auth ?? {};
  if (username) return { ...rest, url, auth: { ...auth, basic: { username, password } } };
  // Whoever takes the user away means the password, too.
  const left = { ...rest, url, auth };
  if (Object.keys(auth).length === 0) delete left.auth;
  return Object.keys(left).length > 1 ? left : url;
}

// Shows a document in the form. Passwords are not shown.
export function fillForm(form, doc) {
  const set = (name, value) => {
    if (value !== undefined && value !== null) form.elements[name].value = typeof value === "object" ? JSON.stringify(value) : value;
  };
  for (const side of ["source", "target"]) {
    set(side, typeof doc[side] === "object" ? doc[side].url : doc[side]);
    set(`${side}_user`, doc[side]?.auth?.basic?.username);
    if (doc[side]?.auth?.basic?.password) form.elements[`${side}_password`].placeholder = "unchanged";
  }
  for (const name of SWITCHES) form.elements[name].checked = doc[name] === true;
  for (const name of [...TEXTS, ...NUMBERS, "since_seq"]) set(name, doc[name]);
  form.elements.no_checkpoints.checked = doc.use_checkpoints === false;
  form.elements.what.value = ["doc_ids", "selector", "filter"].find((name) => doc[name]) ?? "all";
  if (Array.isArray(doc.doc_ids)) set("doc_ids", doc.doc_ids.join("\n"));
  for (const name of ["selector", "filter", "query_params"]) set(name, doc[name]);
}

// Plain names, and URLs of this service in front of a cluster: the cluster's databases, which are used with the rights of
// whoever saves the document. A session ends before the replication does, so that takes the password.
const isOwn = (text) => text !== "" && (!text.includes("://") || (URL.canParse(text) && new URL(text).host === location.host));

export function ownLogin(form, name) {
  const password = form.elements.own_password.value;
  return ["source", "target"].some((side) => isOwn(form.elements[side].value.trim())) && password ? [name, password] : undefined;
}

// Shows only the fields that the others need.
export function showWhat(form) {
  const own = ["source", "target"].some((side) => isOwn(form.elements[side].value.trim()));
  form.querySelector("[data-own]").hidden = !own;
  for (const part of form.querySelectorAll("[data-what]")) part.hidden = part.dataset.what !== form.elements.what.value;
}

// The field that an error of the service is about, or null.
export function fieldOf({ status, reason }, form) {
  if (status === 409) return "id";
  const value = (name) => form.elements[name].value.trim();
  if (/endpoint/i.test(reason)) return ["source", "target"].find((side) => !isServerUrl(value(side))) ?? "source";
  const named = /`(\w+)`/.exec(reason)?.[1];
  if (named === "view") return "query_params";
  if (named === "use_checkpoints") return "no_checkpoints";
  if (named && form.elements[named]) return named;
  if (/proxy/i.test(reason)) {
    const source = value("source_proxy");
    return source && !/^(https?|socks5):\/\/[^/]/i.test(source) ? "source_proxy" : "target_proxy";
  }
  if (/filter/i.test(reason)) return "filter";
  if (/query_param|value must be a string/i.test(reason)) return "query_params";
  if (/document id|_id\b|docid/i.test(reason)) return "id";
  return form.elements.what.value === "selector" ? "selector" : null;
}

const isServerUrl = (text) => /^https?:\/\/[^/]/i.test(text) && URL.canParse(text);

export function markInvalid(control, message) {
  control.after(message);
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", message.id);
  control.closest("details")?.setAttribute("open", "");
  control.focus();
}

export function clearInvalid(control) {
  if (!control.hasAttribute("aria-invalid")) return;
  document.getElementById(control.getAttribute("aria-describedby"))?.remove();
  control.removeAttribute("aria-invalid");
  control.removeAttribute("aria-describedby");
}
