// Before anything is asked: an invitation, with things to click.

import { getItems, getLabels, itemImage } from "./api.js";
import { h } from "./dom.js";
import { address } from "./route.js";

const TILES = 12;

/** A random item, of the test split where there is one: the model has not seen it, and its labels are known. */
export async function randomItem(model, signal) {
  const split = model.splits.includes("test") ? "test" : "";
  const { total } = await getItems("", split, 0, 1, signal);
  if (!total) return null;
  const { items } = await getItems("", split, Math.floor(Math.random() * total), 1, signal);
  return items[0] ?? null;
}

export function invitation(model) {
  const examples = h("div", { class: "examples" });
  const sees = { text: "Type a few words", image: "Drop a picture" }[model.modalities] ?? "Type a few words, drop a picture";
  const pick = model.catalogue ? ", or take one of these" : "";
  fill(examples, model).catch(() => examples.replaceChildren()); // the page works without examples
  return h("div", { class: "invitation" },
    h("h1", {}, "Show it something."),
    h("p", {}, `${sees}${pick}. The model ranks ${model.living.toLocaleString("en")} labels for it, and tells why.`),
    examples);
}

async function fill(host, model) {
  if (!model.catalogue) return host.replaceChildren(await words(model));
  host.replaceChildren(h("ul", { class: "tiles", "aria-hidden": "true" }, ...Array.from({ length: TILES }, () => h("li", {}))));
  // Neighbours in a catalogue resemble one another, so each is drawn by itself.
  const drawn = await Promise.all(Array.from({ length: TILES }, () => randomItem(model)));
  const unique = new Map(drawn.filter(Boolean).map((item) => [item.id, item]));
  host.replaceChildren(h("ul", { class: "tiles", "aria-label": "Items to try" }, ...[...unique.values()].map(tile)));
}

function tile(item) {
  const inside = item.images ? h("img", { src: itemImage(item.id), alt: "" }) : h("span", { class: "no-picture" }, "Aa");
  return h("li", {}, h("a", { href: address("ask", { item: item.id }) }, inside, h("span", {}, item.text || item.id)));
}

/** Without a catalogue, the texts of some labels are something to begin with. */
async function words(model) {
  const offset = Math.floor(Math.random() * Math.max(1, model.living - 6));
  const { labels } = await getLabels("", offset, 6);
  return h("ul", { class: "try" }, ...labels.filter((label) => label.text).map((label) =>
    h("li", {}, h("a", { href: address("ask", { text: label.text }) }, label.text))));
}
