// The form that creates a replication.

import { explain, path, request } from "../lib/api.js";
import { el, put, use } from "../lib/dom.js";
import { advice, clearInvalid, documentOf, fieldOf, markInvalid } from "../lib/form.js";
import { fillDatabases } from "../lib/list.js";
import { toast } from "../lib/messages.js";

export function create() {
  const view = use("t-new"), { form } = view;
  fillDatabases(form.elements.database, "_replicator");
  form.addEventListener("change", () => {
    for (const part of form.querySelectorAll("[data-what]")) {
      part.hidden = part.dataset.what !== form.elements.what.value;
    }
  });
  form.addEventListener("input", ({ target }) => clearInvalid(target));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    form.querySelectorAll("[aria-invalid]").forEach(clearInvalid);
    view.formError.hidden = true;
    view.submit.disabled = true;
    try {
      const database = form.elements.database.value;
      const { id } = await save(database, form.elements.id.value.trim(), documentOf(form));
      toast(`Created ${id}.`);
      location.hash = `#/doc/${path(database, id)}`;
    } catch (error) {
      showError(view, error);
    } finally {
      view.submit.disabled = false;
    }
  });
  return { title: "Create replication", root: view.root, focus: form.elements.source };
}

// Creates the database, too, when this is its first document.
async function save(database, id, json) {
  const write = () => request(id ? path(database, id) : path(database), { method: id ? "PUT" : "POST", json });
  try {
    return await write();
  } catch (error) {
    if (error.status !== 404) throw error;
    await request(path(database), { method: "PUT" });
    return write();
  }
}

function showError(view, error) {
  const rejected = [400, 403, 409].includes(error.status);
  const field = rejected && fieldOf(error, view.form);
  const taken = "A document with this ID already exists. Choose another ID.";
  const text = error.status === 409 ? taken : rejected ? error.reason : explain(error);
  if (field) {
    const message = el("span", { class: "field-error", id: `error-${field}` }, text, el("small", {}, advice(text)));
    markInvalid(view.form.elements[field], message);
    return;
  }
  view.formError.hidden = false;
  put(view.formError, `Cannot create the replication. ${text}`);
  view.formError.scrollIntoView({ block: "center" });
}
