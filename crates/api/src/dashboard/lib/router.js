// From the address's hash to a view: `#/name/part/part?parameters`.

import { $ } from "./dom.js";
import { stopPolling } from "./live.js";

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function parse(hash) {
  const [where, parameters = ""] = hash.replace(/^#?\/?/, "").split("?");
  const [name, ...parts] = where.split("/").map(decoded);
  return { name, parts, parameters: new URLSearchParams(parameters) };
}

export function setTitle(title) {
  document.title = `${title} · Davenport`;
}

// Replaces the current view, whose polls end.
export function show(make) {
  stopPolling();
  const view = make();
  setTitle(view.title);
  $("main").replaceChildren(view.root);
  scrollTo(0, 0);
  view.focus?.focus();
  return view;
}
