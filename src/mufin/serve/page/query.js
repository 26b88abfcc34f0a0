// The query form: texts and images, or an item of the catalogue.

import { itemImage } from "./api.js";
import { count, h, icon, say } from "./dom.js";
import { chooser, fitting, thumbnails } from "./pictures.js";
import { clearNotice, showError } from "./patience.js";
import { suggestions } from "./suggest.js";

/**
 * @param {any} model the response of /v1/model
 * @param {{onAsk: (query: import("./api.js").Query) => void, onItem: (id: string) => void, onRandom: () => void}} on
 */
export function composer(model, on) {
  const limits = model.limits;
  const seesPictures = model.modalities !== "text";
  let texts = []; // all but the one in the input
  let pictures = [];

  const input = h("input", {
    id: "asked", type: "text", autocomplete: "off", spellcheck: "false", maxlength: limits.text_chars, enterkeyhint: "search",
    placeholder: model.catalogue ? "Text, or the name of an item" : "A few words",
  });
  const chips = h("ul", { class: "chips", "aria-label": "Also part of the query" });
  const notices = h("div", { class: "notice-host" });
  const another = h("button", { type: "button", class: "quiet", onclick: addText }, icon("plus"), "Add text");
  const suggest = model.catalogue ? suggestions(input, (item) => on.onItem(item.id)) : null;

  const form = h("form", { class: "composer", role: "search", "aria-label": "Ask", onsubmit: submit },
    h("label", { for: "asked" }, "What should be labelled?"),
    h("div", { class: "combo" }, input, suggest?.list, h("button", { class: "go", type: "submit", "aria-label": "Rank labels" }, icon("arrow"))),
    chips,
    h("div", { class: "tools" },
      seesPictures && chooser("Images", take),
      another,
      model.catalogue && h("button", { type: "button", class: "quiet", onclick: on.onRandom }, icon("dice"), "Random item")),
    seesPictures && h("p", { class: "hint" }, "Drop or paste images anywhere."),
    notices);

  function addText() {
    const typed = input.value.trim();
    if (typed && texts.length + 1 < limits.texts) texts.push(typed);
    input.value = "";
    input.focus();
    render();
  }

  async function take(files) {
    try {
      pictures = [...pictures, ...(await fitting(files, limits, pictures.length))];
      clearNotice(notices);
      render();
      say(`${count(pictures.length, "image")} in the query.`);
      submit();
    } catch (error) {
      showError(notices, error);
    }
  }

  function submit(event) {
    event?.preventDefault();
    suggest?.close();
    const typed = input.value.trim();
    const all = typed ? [...texts, typed] : texts;
    if (all.length || pictures.length) on.onAsk({ texts: all, pictures });
    else input.focus();
  }

  function render() {
    const written = texts.map((text, i) =>
      h("li", { class: "chip" }, text,
        h("button", { type: "button", class: "remove", "aria-label": `Remove “${text}”`, onclick: () => replaceQuery({ texts: texts.filter((_, n) => n !== i) }) }, icon("close"))));
    chips.replaceChildren(...written, ...thumbnails(pictures, (i) => replaceQuery({ pictures: pictures.filter((_, n) => n !== i) })));
    chips.hidden = !chips.children.length;
  }

  /** Remove a part of the query, and submit the rest unless it is empty. */
  function replaceQuery(rest) {
    ({ texts, pictures } = { texts, pictures, ...rest });
    render();
    input.focus();
    if (texts.length || pictures.length || input.value.trim()) submit();
  }

  /** Show a query that came from the history, a link or an example. @param {import("./api.js").Query} query */
  function set(query) {
    const mine = query.id === undefined;
    texts = mine ? query.texts.slice(0, -1) : [];
    pictures = mine ? [...query.pictures] : [];
    input.value = mine ? query.texts.at(-1) ?? "" : "";
    clearNotice(notices);
    render();
  }

  render();
  return { form, input, set, take };
}

/** The chosen item: its images, its texts and the number of its known labels. @param {import("./api.js").Item} item */
export function itemCard(item, onClear) {
  const pictures = Array.from({ length: item.images }, (_, n) =>
    h("img", { src: itemImage(item.id, n), alt: item.images > 1 ? `Image ${n + 1} of the item` : "Image of the item" }));
  const [first, ...others] = item.texts;
  return h("article", { class: "item-card", "aria-label": "The item" },
    pictures.length > 0 && h("div", { class: "pictures" }, ...pictures),
    h("div", { class: "words" },
      h("h2", {}, first || item.id),
      ...others.map((text) => h("p", {}, text)),
      h("p", { class: "meta" }, [first && first !== item.id && item.id, item.split === "train" ? "used in training" : "not used in training"].filter(Boolean).join(" · ")),
      item.labels.length > 0 && h("p", { class: "meta" }, `${count(item.labels.length, "known label")}`)),
    h("button", { type: "button", class: "remove", "aria-label": "Clear the item", onclick: onClear }, icon("close")));
}
