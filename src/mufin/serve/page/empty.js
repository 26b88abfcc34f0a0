// The Ask view without a query: an invitation with examples to click.

import { getItems, getLabels, itemImage } from "./api.js";
import { h, onTouch } from "./dom.js";
import { address } from "./route.js";

const EXAMPLES = [12, 8, 4]; // so many fill their rows; see .tiles

/** A random item, from the test split if there is one: it has known labels, and the model was not trained on it. */
export async function randomItem(model, signal) {
  const split = model.splits.includes("test") ? "test" : "";
  const { total } = await getItems("", split, 0, 1, signal);
  if (!total) return null;
  const { items } = await getItems("", split, Math.floor(Math.random() * total), 1, signal);
  return items[0] ?? null;
}

export function invitation(model) {
  const examples = h("div", { class: "examples" });
  const put = onTouch() ? "add" : "drop";
  const sees = { text: "Type a few words", image: `${onTouch() ? "Add" : "Drop"} an image` }[model.modalities] ?? `Type a few words, ${put} an image`;
  const pick = model.catalogue ? ", or pick one of these" : "";
  fill(examples, model).catch(() => examples.replaceChildren()); // the page works without examples
  return h("div", { class: "invitation" },
    h("h1", {}, "Try it out."),
    h("p", {}, `${sees}${pick}. The model ranks ${model.living.toLocaleString("en")} labels and explains each result.`),
    examples);
}

async function fill(host, model) {
  if (!model.catalogue) return host.replaceChildren(await words(model));
  host.replaceChildren(h("ul", { class: "tiles", "aria-hidden": "true" }, ...Array.from({ length: EXAMPLES[0] }, () => h("li", {}))));
  const unique = new Map();
  // Draw each separately: adjacent items of a catalogue are often similar. Draw again if some came twice.
  for (let round = 0; round < 3 && unique.size < EXAMPLES[0]; round++) {
    const drawn = await Promise.all(Array.from({ length: EXAMPLES[0] }, () => randomItem(model)));
    for (const item of drawn) if (item) unique.set(item.id, item);
  }
  const shown = EXAMPLES.find((n) => n <= unique.size) ?? unique.size;
  host.replaceChildren(h("ul", { class: shown < EXAMPLES[0] ? "tiles few" : "tiles", "aria-label": "Items to try" }, ...[...unique.values()].slice(0, shown).map(tile)));
}

function tile(item) {
  const inside = item.images ? h("img", { src: itemImage(item.id), alt: "" }) : h("span", { class: "no-picture" }, "Aa");
  return h("li", {}, h("a", { href: address("ask", { item: item.id }) }, inside, h("span", {}, item.text || item.id)));
}

/** Without a catalogue, offer the texts of some labels as examples. */
async function words(model) {
  const offset = Math.floor(Math.random() * Math.max(1, model.living - 6));
  const { labels } = await getLabels("", offset, 6);
  return h("ul", { class: "try" }, ...labels.filter((label) => label.text).map((label) =>
    h("li", {}, h("a", { href: address("ask", { text: label.text }) }, label.text))));
}
