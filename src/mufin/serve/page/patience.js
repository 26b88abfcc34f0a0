// What to do when the service is busy or away: say so kindly, wait, ask again.

import { Offline } from "./api.js";
import { h, say } from "./dom.js";

const ATTEMPTS = 6;
const PAUSES = [2, 4, 8, 15, 30];

/**
 * Run a task; while the service is busy (429, 503) or away, show that in `host` and try again.
 * @template T
 * @param {() => Promise<T>} task
 * @param {HTMLElement} host
 * @param {{signal?: AbortSignal, repeatable?: boolean}} [options] repeatable: may be sent again though it may have arrived
 * @returns {Promise<T>}
 */
export async function patiently(task, host, { signal, repeatable = true } = {}) {
  for (let attempt = 0; ; attempt++) {
    try {
      const answer = await task();
      clearNotice(host);
      return answer;
    } catch (error) {
      const pause = pauseAfter(error, attempt, repeatable);
      if (pause === null) throw error;
      await waiting(host, error, pause, signal);
    }
  }
}

/** Seconds until the next attempt, or null where there is no sense in one. */
function pauseAfter(error, attempt, repeatable) {
  if (error instanceof Offline) return repeatable ? PAUSES[Math.min(attempt, PAUSES.length - 1)] : null;
  const busy = error.status === 429 || error.status === 503;
  return busy && attempt < ATTEMPTS ? error.retryAfter ?? PAUSES[0] : null;
}

/** Show the reason and count down; done at zero or at a click, and an AbortError when no longer wanted. */
function waiting(host, error, seconds, signal) {
  const away = error instanceof Offline;
  const title = away ? "The server does not answer" : "One moment, please";
  const reason = away
    ? "Is it still running? Nothing is lost; this page looks again by itself."
    : "More questions arrived than can be answered at once. Yours is asked again by itself.";
  return new Promise((resolve, reject) => {
    const left = h("span", { "aria-hidden": "true" });
    const tick = () => {
      left.textContent = `Again in ${seconds} s`;
      if (seconds-- <= 0) finish();
    };
    const timer = setInterval(tick, 1000);
    const finish = () => {
      clearInterval(timer);
      signal?.removeEventListener("abort", stop);
      resolve();
    };
    const stop = () => {
      clearInterval(timer);
      reject(new DOMException("no longer wanted", "AbortError"));
    };
    signal?.addEventListener("abort", stop);
    const now = h("button", { type: "button", class: "quiet", onclick: finish }, "Try now");
    show(host, away ? "away" : "busy", title, reason, h("p", { class: "actions" }, left, now));
    tick();
  });
}

/** Show an error that waiting does not mend. */
export function showError(host, error, ...actions) {
  if (error.name === "AbortError") return;
  if (error instanceof Offline) show(host, "away", "The server does not answer", "Is it still running?", ...actions);
  else show(host, "wrong", error.title ?? "That did not work", error.detail || error.message, ...actions);
}

/** @param {"busy" | "away" | "wrong" | "good"} kind */
export function show(host, kind, title, text, ...more) {
  host.replaceChildren(h("div", { class: `notice ${kind}` }, h("strong", {}, title), text && h("p", {}, text), ...more));
  say(`${title}. ${text}`);
}

export const clearNotice = (host) => host.replaceChildren();
