// Retry while the service is busy or unreachable, and show notices.

import { Offline } from "./api.js";
import { h, say } from "./dom.js";

const MAX_RETRIES = 6; // while the service is busy
const PAUSES = [2, 4, 8, 15, 30]; // seconds between retries

/**
 * Run a task; while the service is busy (429, 503) or unreachable, show a notice in `host` and retry.
 * @template T
 * @param {() => Promise<T>} task
 * @param {HTMLElement} host
 * @param {{signal?: AbortSignal, repeatable?: boolean}} [options] repeatable: may be sent again even if the first request arrived
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

/** Seconds until the next attempt, or null if a retry would not help. */
function pauseAfter(error, attempt, repeatable) {
  if (error instanceof Offline) return repeatable ? PAUSES[Math.min(attempt, PAUSES.length - 1)] : null;
  const busy = error.status === 429 || error.status === 503;
  return busy && attempt < MAX_RETRIES ? error.retryAfter ?? PAUSES[0] : null;
}

/** Show the reason and a countdown; resolve at zero or on a click, reject with an AbortError when aborted. */
function waiting(host, error, seconds, signal) {
  const away = error instanceof Offline;
  const title = away ? "The server does not respond" : "The server is busy";
  const reason = away
    ? "Is it still running? Nothing is lost; this page retries automatically."
    : "There are too many requests at the moment. Yours is retried automatically.";
  return new Promise((resolve, reject) => {
    const left = h("span", { "aria-hidden": "true" });
    const tick = () => {
      left.textContent = `Retrying in ${seconds} s`;
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
      reject(new DOMException("aborted", "AbortError"));
    };
    signal?.addEventListener("abort", stop);
    const now = h("button", { type: "button", class: "quiet", onclick: finish }, "Retry now");
    show(host, away ? "away" : "busy", title, reason, h("p", { class: "actions" }, left, now));
    tick();
  });
}

/** Show an error that a retry would not fix. */
export function showError(host, error, ...actions) {
  if (error.name === "AbortError") return;
  if (error instanceof Offline) show(host, "away", "The server does not respond", "Is it still running?", ...actions);
  else show(host, "wrong", error.title ?? "Something went wrong", error.detail || error.message, ...actions);
}

/** @param {"busy" | "away" | "wrong" | "good"} kind */
export function show(host, kind, title, text, ...more) {
  host.replaceChildren(h("div", { class: `notice ${kind}` }, h("strong", {}, title), text && h("p", {}, text), ...more));
  say(`${title}. ${text}`);
}

export const clearNotice = (host) => host.replaceChildren();
