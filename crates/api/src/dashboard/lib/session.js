// The user who is logged in: an administrator, or a reader of jobs.

import { explain, request, whenUnauthorized } from "./api.js";

let name = null;
let admin = false;
let changed = () => {};

export const user = () => name;
// Whether the user may change anything. The service checks it again.
export const isAdmin = () => admin;

// Reads the session. `listener` is called whenever a session begins, or ends with a message for the login form.
export async function startSession(listener) {
  changed = listener;
  whenUnauthorized(() => {
    if (name !== null) end("Your session has expired. Log in to return to this page.");
  });
  try {
    const { userCtx } = await request("_session");
    if (userCtx.name) await begin(userCtx.name, userCtx.roles);
    else end();
  } catch (error) {
    end(`Cannot read the session. ${explain(error)}`);
  }
}

export async function login(given, password) {
  const answer = await request("_session", { method: "POST", json: { name: given, password } });
  await begin(answer.name ?? given, answer.roles);
}

export async function logout() {
  name = null;
  await request("_session", { method: "DELETE" }).catch(() => {});
  end();
}

async function begin(someone, roles) {
  admin = roles.includes("_admin");
  if (!admin && (await request("_jobs?limit=1")).types.length === 0) {
    end(`${someone} is not a server administrator, and has no role that may read jobs. Log in with another account.`);
    return;
  }
  name = someone;
  changed();
}

function end(message = "") {
  name = null;
  changed(message);
}
