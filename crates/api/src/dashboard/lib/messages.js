// Messages over the page: toasts, and the dialog that asks before something is deleted.

import { explain } from "./api.js";
import { $, el, put } from "./dom.js";

const TOAST_MS = 5000;

export function toast(text, kind = "good") {
  // A poll that keeps failing reports the same error again and again.
  if ([...$("toasts").children].some((shown) => shown.firstElementChild.textContent === text)) return;
  const dismiss = { click: () => node.remove() };
  const close = el("button", { type: "button", class: "quiet", "aria-label": "Close", on: dismiss }, "×");
  const role = kind === "bad" ? "alert" : "status";
  const node = el("div", { class: `toast ${kind}`, role }, el("span", {}, text), close);
  $("toasts").append(node);
  if (kind === "good") setTimeout(() => node.remove(), TOAST_MS);
}

// Runs `work` for a button, which is disabled meanwhile. `what` says in an error what could not be done.
export async function act(button, what, work) {
  button.disabled = true;
  try {
    await work();
  } catch (error) {
    toast(`Cannot ${what}. ${explain(error)}`, "bad");
  } finally {
    button.disabled = false;
  }
}

// `no` is what happens instead.
export function confirmed(title, text, yes, no = "Cancel") {
  const dialog = $("confirm");
  put($("confirm-title"), title);
  put($("confirm-text"), text);
  put($("confirm-yes"), yes);
  put($("confirm-no"), no);
  $("confirm-yes").classList.toggle("danger", /^(Delete|Cancel|Remove)/.test(yes));
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
