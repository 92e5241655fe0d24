// The administrator who is logged in.

import { explain, request, whenUnauthorized } from "./api.js";

let name = null;
let changed = () => {};

export const user = () => name;

// Reads the session. `listener` is called whenever a session begins, or ends with a message for the login form.
export async function startSession(listener) {
  changed = listener;
  whenUnauthorized(() => {
    if (name !== null) end("Your session has expired. Log in to return to this page.");
  });
  try {
    const { userCtx } = await request("_session");
    if (userCtx.name) begin(userCtx.name, userCtx.roles);
    else end();
  } catch (error) {
    end(`Cannot read the session. ${explain(error)}`);
  }
}

export async function login(given, password) {
  const answer = await request("_session", { method: "POST", json: { name: given, password } });
  begin(answer.name ?? given, answer.roles);
}

export async function logout() {
  name = null;
  await request("_session", { method: "DELETE" }).catch(() => {});
  end();
}

function begin(someone, roles) {
  if (!roles.includes("_admin")) {
    end(`${someone} is not a server administrator. Log in with an administrator account.`);
    return;
  }
  name = someone;
  changed();
}

function end(message = "") {
  name = null;
  changed(message);
}
