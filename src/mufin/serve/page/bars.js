// The probability of a hit as a bar, divided by what speaks for it; and the parts of its score, one by one.

import { h, number, percent } from "./dom.js";

const TINY = 0.005; // a part that would be shown as 0.00
const COLOURS = 8; // of ask.css, each with a pattern of its own

/** Part → what it says, in the order of the model. */
let parts = {};

/** @param {Record<string, string>} signals of the model */
export function describeParts(signals) {
  parts = signals;
}

const colour = (name) => `part part-${Math.max(0, Object.keys(parts).indexOf(name)) % COLOURS}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Parts that count, largest first by the model's order. @param {Record<string, number>} values */
const counting = (values) => Object.keys(values).filter((name) => Math.abs(values[name]) >= TINY);

/** As long as the hit is probable, divided among the parts that raise its score. @param {import("./api.js").Hit} hit */
export function probabilityBar(hit) {
  const raising = counting(hit.parts).filter((name) => hit.parts[name] > 0);
  const whole = sum(raising.map((name) => hit.parts[name])) || 1;
  const bar = h("span", { class: "bar", role: "img", "aria-label": `Probability ${percent(hit.probability)}` });
  const filled = h("span", { class: "filled" });
  filled.style.width = `${hit.probability * 100}%`;
  for (const name of raising) {
    const piece = h("span", { class: colour(name), title: `${name} +${number(hit.parts[name])}` });
    piece.style.width = `${(hit.parts[name] / whole) * 100}%`;
    filled.append(piece);
  }
  bar.append(filled);
  return bar;
}

/** What the colours mean; only parts that these hits have. @param {import("./api.js").Hit[]} hits */
export function legend(hits) {
  const names = Object.keys(parts).filter((name) => hits.some((hit) => (hit.parts[name] ?? 0) >= TINY));
  return h("ul", { class: "legend", "aria-label": "What raises a score" },
    ...names.map((name) => h("li", { title: parts[name] }, swatch(name), name)));
}

const swatch = (name) => h("span", { class: `swatch ${colour(name)}`, "aria-hidden": "true" });

/** What each part adds to the score, from a marked zero to the right, or takes away, to the left. @param {import("./api.js").Hit} hit */
export function scoreTable(hit) {
  const names = counting(hit.parts);
  const most = Math.max(...names.map((name) => Math.abs(hit.parts[name])), TINY);
  const below = names.some((name) => hit.parts[name] < 0);
  return h("table", { class: "score" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Part"), h("th", { scope: "col" }, "Adds"), h("td", {}))),
    h("tbody", {}, ...names.map((name) =>
      h("tr", {},
        h("th", { scope: "row" }, swatch(name), name, h("small", {}, parts[name] ?? "")),
        h("td", {}, number(hit.parts[name])),
        h("td", { class: "from-zero", "aria-hidden": "true" }, fromZero(name, hit.parts[name] / most, below))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Score"), h("td", {}, number(hit.score)), h("td", {}))));
}

/** A piece that starts at the zero line; half of the width is to its left where any part is negative. */
function fromZero(name, share, below) {
  const axis = h("span", { class: "axis" });
  const piece = h("span", { class: colour(name) });
  const room = below ? 50 : 100;
  const zero = below ? 50 : 0;
  piece.style.width = `${Math.abs(share) * room}%`;
  piece.style.left = `${share < 0 ? zero - Math.abs(share) * room : zero}%`;
  axis.style.setProperty("--zero", `${zero}%`);
  axis.append(piece);
  return axis;
}

/** What the signals measured. @param {import("./api.js").Hit} hit */
export function evidenceList(hit) {
  const shown = Object.entries(hit.evidence).filter(([name, value]) => !name.startsWith("log ") && Math.abs(value) >= TINY);
  return h("details", { class: "evidence" }, h("summary", {}, "What was measured"),
    h("dl", {}, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, number(value))])));
}
