// Between the form of a replication and its document.

const NUMBERS = [
  "worker_processes", "worker_batch_size", "http_connections", "connection_timeout", "retries_per_request",
  "checkpoint_interval",
];
const TEXTS = ["source_proxy", "target_proxy", "on_write_failure", "filter_where"];
const SWITCHES = ["continuous", "create_target", "skip_deleted", "skip_design_docs", "winning_revs_only"];

// The document as entered: the service validates it. Text that is not JSON where JSON is expected is sent as a string.
export function documentOf(form) {
  const text = (name) => form.elements[name].value.trim();
  const json = (name) => {
    try {
      return JSON.parse(text(name));
    } catch {
      return text(name);
    }
  };
  const doc = {};
  for (const side of ["source", "target"]) if (text(side)) doc[side] = endpointOf(form, side, text(side));
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

function endpointOf(form, side, url) {
  const username = form.elements[`${side}_user`].value.trim();
  const password = form.elements[`${side}_password`].value;
  return username ? { url, auth: { basic: { username, password } } } : url;
}

// What to do about messages of the service that do not say it.
const ADVICE = {
  local_endpoints_not_supported: "Enter a full URL, starting with http:// or https://.",
  "endpoint has an invalid url": "Enter a URL such as https://couch.example.com/database.",
};
export const advice = (reason) => ADVICE[reason] ?? "";

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
