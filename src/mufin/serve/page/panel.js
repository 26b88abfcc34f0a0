// The panel of one label: beside the page on wide screens, over it on narrow ones.

import { byId, h, icon } from "./dom.js";
import { fillPanel } from "./explain.js";
import { change } from "./route.js";

const wideScreen = matchMedia("(min-width: 70rem)");
const dialog = /** @type {HTMLDialogElement} */ (byId("panel"));
let shown = ""; // the label and the query it is explained for
let running = null;
let opener = null;
let silent = false; // closed by the page, not by the user: the address is already up to date

/**
 * @param {{label: string, text?: string, query: import("./api.js").Query | null, hit: import("./api.js").Hit | null}} subject
 */
export function openPanel(subject) {
  const key = JSON.stringify([subject.label, subject.query, subject.hit?.score]);
  if (key === shown && dialog.open) return;
  shown = key;
  if (!dialog.contains(document.activeElement)) opener = document.activeElement;
  running?.abort();
  running = new AbortController();
  const title = h("h2", { id: "panel-title", tabindex: -1 }, subject.hit?.text || subject.text || subject.label);
  const body = h("div", { class: "panel-body" });
  const close = h("button", { type: "button", class: "remove", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"));
  dialog.replaceChildren(h("header", {}, title, close), body);
  place();
  title.focus({ preventScroll: true });
  dialog.scrollTop = 0;
  fillPanel(title, body, subject, running.signal);
}

export function closePanel() {
  if (!dialog.open) return;
  silent = true;
  dialog.close();
}

function place() {
  if (dialog.open) {
    if (dialog.matches(":modal") !== wideScreen.matches) return;
    silent = true;
    dialog.close();
  }
  byId("stage").classList.add("with-panel");
  if (wideScreen.matches) dialog.show();
  else dialog.showModal();
}

wideScreen.addEventListener("change", () => dialog.open && place());

dialog.addEventListener("close", () => {
  // The close event arrives late: by then the panel may be open again in its other position.
  const byPage = silent;
  silent = false;
  if (dialog.open) return;
  byId("stage").classList.remove("with-panel");
  running?.abort();
  shown = "";
  if (!byPage) change({ label: null });
  if (opener?.isConnected && document.activeElement === document.body) opener.focus({ preventScroll: true });
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && dialog.open && !dialog.matches(":modal") && !document.querySelector("dialog:modal")) dialog.close();
});

// Close the modal panel on a click outside it.
dialog.addEventListener("click", (event) => {
  if (event.target === dialog && dialog.matches(":modal")) dialog.close();
});
