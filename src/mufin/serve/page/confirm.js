// A dialog that asks before something is removed.

import { h } from "./dom.js";

/** @returns {Promise<boolean>} */
export function confirmed(title, text, yes) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    const dialog = h("dialog", { class: "confirm", "aria-labelledby": "confirm-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "confirm-title" }, title),
        h("p", {}, text),
        h("p", { class: "actions" }, h("button", { value: "", class: "quiet", autofocus: true }, "Cancel"), h("button", { value: "yes", class: "danger" }, yes))));
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
      before?.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
