// The form of a replication: to create one, or to edit the document of one.

import { databases, explain, path, request } from "../lib/api.js";
import { el, put, use } from "../lib/dom.js";
import { clearInvalid, documentOf, fieldOf, fillForm, markInvalid, ownLogin, showWhat } from "../lib/form.js";
import { toast } from "../lib/messages.js";
import { user } from "../lib/session.js";

export function create() {
  const view = replicationForm("Create replication", async (form) => {
    const database = form.elements.database.value;
    const { id } = await save(database, form.elements.id.value.trim(), documentOf(form), ownLogin(form, user()));
    toast(`Created ${id}.`);
    location.hash = `#/doc/${path(database, id)}`;
  });
  fillDatabases(view.form.elements.database);
  return { title: "Create replication", root: view.root, focus: view.form.elements.source };
}

// In place of the page's other parts until it is saved or cancelled: `done` is called with whether it was saved.
export async function edit({ database, doc_id: id }, done) {
  const url = path(database, id);
  const before = await request(url);
  const view = replicationForm("Save changes", async (form) => {
    await request(url, { method: "PUT", json: documentOf(form, before), login: ownLogin(form, user()) });
    toast(`Saved ${id}.`);
    done(true);
  });
  put(view.formTitle, `Edit ${id}`);
  put(view.formIntro, "The replication starts again with the changes. It continues from its last checkpoint if source, target "
    + "and filter are the same.");
  view.place.remove();
  fillForm(view.form, before);
  showWhat(view.form);
  view.cancel.addEventListener("click", (event) => { event.preventDefault(); done(false); });
  return view;
}

function replicationForm(submit, save) {
  const view = use("t-new"), { form } = view;
  put(view.submit, submit);
  form.addEventListener("change", () => showWhat(form));
  form.addEventListener("input", ({ target }) => { clearInvalid(target); showWhat(form); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    form.querySelectorAll("[aria-invalid]").forEach(clearInvalid);
    view.formError.hidden = true;
    view.submit.disabled = true;
    try {
      await save(form);
    } catch (error) {
      showError(view, error);
    } finally {
      view.submit.disabled = false;
    }
  });
  return view;
}

async function fillDatabases(select) {
  const names = await databases().catch(() => []);
  const all = new Set(["_replicator", ...names]);
  select.replaceChildren(...[...all].map((name) => el("option", { value: name }, name)));
}

// Creates the database, too, when this is its first document.
async function save(database, id, json, login) {
  const write = () => request(id ? path(database, id) : path(database), { method: id ? "PUT" : "POST", json, login });
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
  const isNew = view.form.contains(view.place);
  const text = error.status === 409 && isNew ? taken : rejected && error.status !== 409 ? error.reason : explain(error);
  if (field && view.form.elements[field]) {
    const message = el("span", { class: "field-error", id: `error-${field}` }, text, el("small", {}, error.hint));
    markInvalid(view.form.elements[field], message);
    return;
  }
  view.formError.hidden = false;
  put(view.formError, `Cannot save the replication. ${text} ${rejected ? error.hint : ""}`);
  view.formError.scrollIntoView({ block: "center" });
}
