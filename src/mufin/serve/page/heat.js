// Who looks at what: a table of descriptors of the question against descriptors of the label.

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
    ? "Each row is a part of the question; the numbers say where in the label it looks. A row sums to 1."
    : "How alike each part of the question and each part of the label are.";
  const axis = crossed ? "question ↓ looks at label →" : "question ↓ label →";
  const strongest = Math.max(...found.attention.flat(), 1e-9);
  const table = h("table", { class: "heat", "aria-label": found.kind, "aria-describedby": "heat-says" },
    h("thead", {}, h("tr", {}, h("td", { class: "axis" }, axis), ...found.label.map((part) => h("th", { scope: "col" }, face(part, part.url, "label"))))),
    h("tbody", {}, ...found.query.map((part, i) =>
      h("tr", {}, h("th", { scope: "row" }, face(part, picture(part, query), "question")), ...found.attention[i].map((value) => cell(value, strongest))))));
  const scroll = h("div", { class: "heat-scroll", role: "group", "aria-label": "Heat map", tabindex: 0 }, table);
  return [h("p", { id: "heat-says", class: "meta" }, caption), scroll];
}

/** The number is always there: the colour only helps the eye. */
function cell(value, strongest) {
  const box = h("td", {}, number(value));
  box.style.setProperty("--heat", `${Math.round((Math.max(0, value) / strongest) * 100)}%`);
  return box;
}

const picture = (part, query) => (query.id !== undefined ? itemImage(query.id, part.n) : query.pictures[part.n] && pictureUrl(query.pictures[part.n]));

function face(part, url, side) {
  if (part.kind === "text") return h("span", { class: "said" }, part.text);
  return h("img", { src: url, alt: `Picture ${(part.n ?? 0) + 1} of the ${side}` });
}
