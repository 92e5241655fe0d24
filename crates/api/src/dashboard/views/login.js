// The login form.

import { explain } from "../lib/api.js";
import { $, put, use } from "../lib/dom.js";
import { login } from "../lib/session.js";

export function loginForm(message) {
  const view = use("t-login"), { form } = view;
  const { name, password } = form.elements;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    put(view.error, "");
    view.submit.disabled = true;
    try {
      await login(name.value, password.value);
      $("toasts").replaceChildren();
    } catch (error) {
      put(view.error, error.status === 401 ? error.reason : explain(error));
      password.select();
    } finally {
      view.submit.disabled = false;
    }
  });
  put(view.error, message);
  return { title: "Log in", root: view.root, focus: name };
}
