// The dashboard: an operator's view of the service, built on its public API. The elements of the views are templates in
// index.html. Modules are imported statically only: a page that stays open during an upgrade keeps one version.

import { isLost } from "./lib/api.js";
import { $, put } from "./lib/dom.js";
import { listenForKeys } from "./lib/keys.js";
import { togglePaused } from "./lib/live.js";
import { parse, show } from "./lib/router.js";
import { isAdmin, logout, startSession, user } from "./lib/session.js";
import { create } from "./views/create.js";
import { loginForm } from "./views/login.js";
import { nodes } from "./views/nodes.js";
import { overview } from "./views/overview.js";
import { remotes } from "./views/remotes.js";
import { replicationOfDocument, replicationOfJob } from "./views/replication.js";
import { replications } from "./views/replications.js";
import { queueJob } from "./views/queue_job.js";
import { queueType } from "./views/queue_type.js";
import { queueTypes } from "./views/queue_types.js";
import { rules } from "./views/rules.js";
import { schedules } from "./views/schedules.js";

const LIST = { tab: "replications", make: ({ parameters }) => replications(parameters) };
const queue = ({ parts: [type = "", id], parameters }) => {
  if (isLost(type)) return queueTypes(parameters);
  return id ? queueJob(type, id) : queueType(type, parameters);
};
const VIEWS = {
  "": { tab: "overview", make: () => overview() },
  replications: LIST,
  // Bookmarks of the first version.
  jobs: LIST,
  docs: LIST,
  job: { tab: "replications", make: ({ parts }) => replicationOfJob(...parts) },
  doc: { tab: "replications", make: ({ parts }) => replicationOfDocument(...parts) },
  remotes: { tab: "remotes", make: ({ parameters }) => remotes(parameters) },
  rules: { tab: "rules", make: ({ parameters }) => rules(parameters) },
  queue: { tab: "queue", make: queue },
  schedules: { tab: "queue", make: () => schedules() },
  nodes: { tab: "nodes", make: () => nodes() },
  new: { tab: "new", make: () => create() },
};

function showLogin(message) {
  $("bar").hidden = true;
  show(() => loginForm(message));
}

function showView(navigated) {
  if (!user()) return;
  const asked = parse(location.hash);
  // Other views are of administrators.
  const allowed = isAdmin() ? Object.hasOwn(VIEWS, asked.name) : asked.name === "queue";
  const route = allowed ? asked : parse(isAdmin() ? "" : "queue");
  const { tab, make } = VIEWS[route.name];
  put($("user"), user());
  $("bar").hidden = false;
  for (const link of document.querySelectorAll("[data-view]")) {
    link.hidden = !isAdmin() && link.dataset.view !== "queue";
    if (link.dataset.view === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const view = show(() => make(route));
  // A screen reader goes on at the new view.
  if (navigated && !view.focus) $("main").focus({ preventScroll: true });
}

$("live").addEventListener("click", togglePaused);
$("help-open").addEventListener("click", () => $("help").showModal());
$("logout").addEventListener("click", logout);
addEventListener("hashchange", () => showView(true));
listenForKeys(() => Boolean(user()));
startSession((message) => (user() ? showView(false) : showLogin(message)));
