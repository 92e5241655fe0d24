// Elements. What a server sends is set as text, never as markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Leaves an unchanged text alone, so that polling does not clear the user's selection.
export function put(node, text) {
  const wanted = String(text ?? "");
  if (node.textContent !== wanted) node.textContent = wanted;
}

// A copy of a template of index.html, with its `data-` elements by name.
export function use(template) {
  const root = el("div", { class: `view ${template.slice(2)}` });
  root.append($(template).content.cloneNode(true));
  const parts = { root };
  for (const node of root.querySelectorAll("*")) {
    for (const name of Object.keys(node.dataset)) parts[name] ??= node;
  }
  return parts;
}

// Makes the children of `parent` match `items`. Existing rows are updated in place, so they keep the focus.
// `make` is called once per key, the row's `update` on every call.
const keyedRows = new WeakMap();
export function keyed(parent, items, key, make) {
  const before = keyedRows.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const row = before.get(key(item)) ?? make(item);
    row.update(item);
    after.set(key(item), row);
  }
  for (const [id, row] of before) if (after.get(id) !== row) row.node.remove();
  let at = parent.firstElementChild;
  for (const { node } of after.values()) {
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  keyedRows.set(parent, after);
}
