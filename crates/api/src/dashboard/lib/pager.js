// The buttons between the pages of a listing with a cursor. `read` is called to read another page.

import { put } from "./dom.js";

export function pager(view, read) {
  const cursors = [undefined];
  let after;
  const turn = () => { read(); scrollTo({ top: 0 }); };
  view.next.addEventListener("click", () => after && cursors.push(after) && turn());
  view.previous.addEventListener("click", () => cursors.length > 1 && cursors.pop() !== null && turn());
  return {
    cursor: () => cursors.at(-1),
    first() { cursors.length = 1; },
    // `next` is the cursor of the next page, if there is one.
    show(next) {
      after = next;
      view.previous.disabled = cursors.length === 1;
      view.next.disabled = !next;
      view.pager.hidden = cursors.length === 1 && !next;
      put(view.page, `Page ${cursors.length}`);
    },
  };
}
