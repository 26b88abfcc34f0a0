// The form for a new label: texts, images, an id, and the token if the server needs one.

import { addLabel, token } from "./api.js";
import { h, icon } from "./dom.js";
import { chooser, fitting, thumbnails } from "./pictures.js";
import { patiently, showError } from "./patience.js";

/** @param {any} model @param {(id: string, texts: string[], pictures: Blob[]) => void} onAdded */
export function addForm(model, onAdded) {
  const limits = model.limits;
  let pictures = [];
  let named = false; // whether the user typed the id; otherwise it is made from the first text

  const words = h("textarea", { id: "new-texts", rows: 2, required: model.modalities === "text", placeholder: "walnut desk" });
  const id = h("input", { id: "new-id", type: "text", autocomplete: "off", spellcheck: "false", required: true, maxlength: 200 });
  const chips = h("ul", { class: "chips", "aria-label": "Images of the new label", hidden: true });
  const notices = h("div", { class: "notice-host" });
  const secret = h("input", { id: "token", type: "password", autocomplete: "off", value: token.get(), oninput: () => token.set(secret.value) });
  const guarded = h("p", { class: "field", hidden: !model.needs_token }, h("label", { for: "token" }, "Token"), secret,
    h("small", {}, "This server needs a token for changes. It is kept until you close the tab."));
  const button = h("button", { type: "submit" }, icon("plus"), "Add label");

  const form = h("form", { id: "add-label", class: "card add", "aria-labelledby": "add-title", onsubmit: submit },
    h("h2", { id: "add-title" }, "Add a label"),
    h("p", {}, "It can be recommended immediately, without training."),
    h("p", { class: "field" }, h("label", { for: "new-texts" }, "Texts, one per line"), words),
    model.modalities !== "text" && h("p", { class: "field" }, chooser("Images", take)), chips,
    h("p", { class: "field" }, h("label", { for: "new-id" }, "Id"), id),
    guarded, h("p", {}, button), notices);

  words.addEventListener("input", () => {
    if (!named) id.value = slug(words.value.split("\n")[0]);
  });
  id.addEventListener("input", () => (named = id.value !== ""));

  function render() {
    chips.replaceChildren(...thumbnails(pictures, (i) => ((pictures = pictures.filter((_, n) => n !== i)), render())));
    chips.hidden = !pictures.length;
  }

  async function take(files) {
    try {
      pictures = [...pictures, ...(await fitting(files, limits, pictures.length))];
      render();
    } catch (error) {
      showError(notices, error);
    }
  }

  async function submit(event) {
    event.preventDefault();
    const texts = words.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!texts.length && !pictures.length) return showError(notices, { title: "The label is empty", message: "Add a text or an image." });
    button.disabled = true;
    try {
      await patiently(() => addLabel(id.value.trim(), texts, pictures), notices, { repeatable: false });
      const added = [id.value.trim(), texts, pictures];
      form.reset();
      secret.value = token.get();
      [pictures, named] = [[], false];
      render();
      onAdded(...added);
    } catch (error) {
      if (error.status === 409 && error.detail.includes("exists already")) error.title = "This id is taken";
      showError(notices, error);
      tokenNeeded(error);
    } finally {
      button.disabled = false;
    }
  }

  /** Ask for the token if the server refused a change for lack of it. */
  function tokenNeeded(error) {
    if (error.status !== 401 && error.status !== 403) return;
    guarded.hidden = false;
    secret.focus();
  }

  return { form, take, tokenNeeded };
}

const slug = (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 80);
