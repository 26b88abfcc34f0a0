// A heat map: descriptors of the query against descriptors of the label.

import { itemImage } from "./api.js";
import { h, number } from "./dom.js";
import { pictureUrl } from "./pictures.js";

/**
 * @param {{query: import("./api.js").Descriptor[], label: import("./api.js").Descriptor[], attention: number[][], kind: string}} found
 * @param {import("./api.js").Query} query
 */
export function heatMap(found, query) {
  const crossed = found.kind === "cross-attention";
  const caption = crossed
    ? "Each row is a part of the query; the numbers show how much it attends to each part of the label. A row sums to 1."
    : "The cosine similarity of each part of the query to each part of the label.";
  const axis = crossed ? "query ↓ attends to label →" : "query ↓ label →";
  const strongest = Math.max(...found.attention.flat(), 1e-9);
  const table = h("table", { class: "heat", "aria-label": found.kind, "aria-describedby": "heat-says" },
    h("thead", {}, h("tr", {}, h("td", { class: "axis" }, axis), ...found.label.map((part) => h("th", { scope: "col" }, face(part, part.url, "label"))))),
    h("tbody", {}, ...found.query.map((part, i) =>
      h("tr", {}, h("th", { scope: "row" }, face(part, picture(part, query), "query")), ...found.attention[i].map((value) => cell(value, strongest))))));
  const scroll = h("div", { class: "heat-scroll", role: "group", "aria-label": "Heat map", tabindex: 0 }, table);
  return [h("p", { id: "heat-says", class: "meta" }, caption), scroll];
}

/** Each cell shows its number too, so that colour is not the only cue. */
function cell(value, strongest) {
  const box = h("td", {}, number(value));
  box.style.setProperty("--heat", `${Math.round((Math.max(0, value) / strongest) * 100)}%`);
  return box;
}

const picture = (part, query) => (query.id !== undefined ? itemImage(query.id, part.n) : query.pictures[part.n] && pictureUrl(query.pictures[part.n]));

function face(part, url, side) {
  if (part.kind === "text") return h("span", { class: "said" }, part.text);
  return h("img", { src: url, alt: `Image ${(part.n ?? 0) + 1} of the ${side}` });
}
