// Polling, which stops while the tab is hidden or the user has paused it.

import { ApiError } from "./api.js";
import { $, put } from "./dom.js";

const SLOWDOWN_MAX = 15;
const polls = new Set();
let paused = false;

function show(problem) {
  $("live").className = `live ${problem ? "down" : paused ? "paused" : ""}`;
  $("live").setAttribute("aria-pressed", String(!paused));
  put($("live-text"), problem ? "Unavailable" : paused ? "Paused" : "Live");
}

export function refresh() {
  for (const poll of polls) poll.now();
}

export function stopPolling() {
  for (const poll of polls) poll.stop();
}

export function togglePaused() {
  paused = !paused;
  show();
  if (!paused) refresh();
}

// Runs `work` now and every `ms`, less often while it fails. An error of the caller's goes to `failed`; an outage of
// the service is shown in the bar.
export function poll(ms, work, failed = () => {}) {
  let timer, aborter, errors = 0;
  const self = {
    async now() {
      self.halt();
      const { signal } = (aborter = new AbortController());
      try {
        await work(signal);
        if (signal.aborted) return;
        errors = 0;
        show();
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        errors += 1;
        if (error.status === 0 || error.status >= 500) show(error);
        else failed(error);
      }
      if (!paused && !document.hidden) timer = setTimeout(self.now, ms * Math.min(2 ** errors, SLOWDOWN_MAX));
    },
    halt() {
      clearTimeout(timer);
      aborter?.abort();
    },
    stop() {
      self.halt();
      polls.delete(self);
    },
  };
  polls.add(self);
  self.now();
  return self;
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) for (const poll of polls) poll.halt();
  else if (!paused) refresh();
});
