// The content of the panel: why a label was ranked there, its α, its neighbours and examples.

import { explain, getLabel, itemImage, labelImage } from "./api.js";
import { evidenceList, scoreTable } from "./bars.js";
import { count, h, number, percent, say } from "./dom.js";
import { heatMap } from "./heat.js";
import { patiently, showError } from "./patience.js";
import { address, change } from "./route.js";

/**
 * Fill the panel as responses arrive.
 * @param {HTMLElement} title @param {HTMLElement} body
 * @param {{label: string, query: import("./api.js").Query | null, hit: import("./api.js").Hit | null}} subject
 * @param {AbortSignal} signal
 */
export async function fillPanel(title, body, { label: id, query, hit }, signal) {
  const notices = h("div", { class: "notice-host" });
  body.replaceChildren(notices, h("p", { class: "waiting" }, "Loading …"));
  try {
    const label = await patiently(() => getLabel(id, signal), notices, { signal });
    title.textContent = label.text || label.id;
    const asked = query ?? (await ownQuery(label, signal));
    const found = await patiently(() => explain(asked, id, signal), notices, { signal });
    const alike = found.kind === "cross-attention" ? "Cross-attention" : "Similarity by part";
    body.replaceChildren(
      facts(label, found),
      ...(hit ? [section("Why this label", verdict(hit), scoreTable(hit), evidenceList(hit))] : []),
      ...(query ? [section(alike, ...heatMap(found, query))] : []),
      ...alphaSection(found.alpha, label),
      ...nearestSection(found.nearest),
      ...examplesSection(found.examples),
    );
    say(`Details of ${label.text || label.id}.`);
  } catch (error) {
    if (error.name === "AbortError") return;
    body.replaceChildren(notices);
    showError(notices, error);
  }
}

/** Without a query, use the label itself as one: its neighbours and examples are then those nearest to it. */
async function ownQuery(label, signal) {
  const pictures = [];
  if (!label.texts.length && label.images) pictures.push(await (await fetch(labelImage(label.id), { signal })).blob());
  return { texts: label.texts, pictures };
}

const section = (name, ...content) => h("section", {}, h("h3", {}, name), ...content);

/** @param {import("./api.js").Label} label */
function facts(label, found) {
  const seen = label.added && !found.frequency ? "added after training" : `in ${count(found.frequency, "training example")}`;
  const [, ...others] = label.texts;
  return h("div", { class: "label-facts" },
    label.images > 0 && h("img", { src: labelImage(label.id), alt: "" }),
    h("div", {},
      ...others.map((text) => h("p", {}, text)),
      h("p", { class: "meta" }, [label.text && label.text !== label.id && label.id, label.category, seen].filter(Boolean).join(" · ")),
      h("p", { class: "links" },
        label.text && h("a", { href: address("ask", { text: label.text }) }, "Use as query"),
        h("a", { href: address("map", { label: label.id }) }, "Show on the map"))));
}

/** @param {import("./api.js").Hit} hit */
function verdict(hit) {
  const truth = { true: "It is a known label of this item.", false: "It is not among the known labels of this item." }[String(hit.relevant)] ?? "";
  return h("p", {}, h("strong", { class: "big" }, percent(hit.probability)), ` likely to be relevant. ${truth}`);
}

function alphaSection(alpha, label) {
  if (alpha === null || alpha === undefined) return [];
  const text = label.added || alpha > 0.999
    ? "It has not been trained: its classifier is the embedding of its texts and images."
    : `Its classifier is ${percent(alpha)} the embedding of its texts and images; the rest was learnt from examples.`;
  const meter = h("span", { class: "alpha", role: "img", "aria-label": `alpha ${number(alpha)}` }, h("span", {}));
  meter.firstChild.style.width = `${alpha * 100}%`;
  return [section(`α = ${number(alpha)}`, meter, h("p", { class: "ends", "aria-hidden": "true" }, h("span", {}, "0 · learnt"), h("span", {}, "as described · 1")), h("p", {}, text))];
}

function nearestSection(nearest) {
  if (!nearest.length) return [];
  return [section("Nearest labels", h("ul", { class: "nearest" }, ...nearest.map((near) =>
    h("li", {}, h("button", { type: "button", onclick: () => change({ label: near.label }) },
      near.images > 0 && h("img", { src: labelImage(near.label), alt: "" }), h("span", {}, near.text || near.label), h("small", {}, number(near.similarity)))))))];
}

function examplesSection(examples) {
  if (!examples.length) return [];
  return [section("Training examples", h("ul", { class: "tiles small" }, ...examples.map((item) =>
    h("li", {}, h("a", { href: address("ask", { item: item.id }), title: `${item.id}, similarity ${number(item.similarity)}` },
      item.images ? h("img", { src: itemImage(item.id), alt: "" }) : h("span", { class: "no-picture", "aria-hidden": "true" }, "Aa"),
      h("span", {}, item.text || item.id))))))];
}
