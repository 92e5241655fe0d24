// Requests to the service's public API.

const API = new URL("../", document.baseURI);
let onUnauthorized = () => {};

export class ApiError extends Error {
  constructor(status, error, reason, hint = "") {
    super(reason);
    Object.assign(this, { status, error, reason, hint });
  }
}

// What happens when the service no longer accepts the session.
export function whenUnauthorized(listener) {
  onUnauthorized = listener;
}

// Browsers take such segments out of a URL, and would ask for something else.
export const isLost = (part) => part === "" || part === "." || part === "..";

export function path(...parts) {
  if (parts.some(isLost)) throw new ApiError(0, "bad_request", "No browser can ask for this address; curl --path-as-is can");
  return parts.map(encodeURIComponent).join("/");
}

export function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// `parse` reads the text of the response. `login` is a name and a password for this request alone, in place of the session.
export async function request(url, { method = "GET", json, signal, login, parse = JSON.parse } = {}) {
  const headers = { accept: "application/json" };
  if (login) headers.authorization = `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(login.join(":"))))}`;
  if (json !== undefined) headers["content-type"] = "application/json";
  const body = json === undefined ? undefined : JSON.stringify(json);
  let response;
  try {
    response = await fetch(new URL(url, API), {
      method, headers, body, signal, credentials: login ? "omit" : "same-origin", cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", `No response from ${API.host}`);
  }
  const answer = await response.text().then((text) => parse(text)).catch(() => null);
  if (response.ok) return answer;
  // A 401 of _session itself means a wrong password.
  if (response.status === 401 && url !== "_session" && !login) onUnauthorized();
  throw new ApiError(response.status, answer?.error ?? "error", answer?.reason ?? response.statusText, answer?.hint);
}

// For a request that may find nothing.
export function orElse(value) {
  return (error) => {
    if (error.status === 404) return value;
    throw error;
  };
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

// Why a request failed and what to do about it.
export function explain({ status, reason }) {
  if (status === 0) return `${sentence(reason)} Check that the service is running, then try again.`;
  if (status === 401) return `${sentence(reason)} Log in as a server administrator.`;
  if (status === 404) return "It no longer exists. Go back to the list.";
  if (status === 409) return "The document was changed in the meantime. Check the new version, then try again.";
  if (status === 503) return /try again/i.test(reason) ? reason : `${sentence(reason)} Wait a moment, then try again.`;
  if (status >= 500) return `Internal error (status ${status}). The cause is in the service's log.`;
  return reason ? sentence(reason) : `The service answered with status ${status}.`;
}

// The replicator databases, by name.
export async function databases() {
  const names = await request("_all_dbs");
  return names.filter((name) => name === "_replicator" || name.endsWith("/_replicator"));
}
