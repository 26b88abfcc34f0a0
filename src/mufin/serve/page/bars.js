// The probability of a hit as a bar, divided by signal, and a table of the parts of its score.

import { h, number, percent } from "./dom.js";

const MIN_SHOWN = 0.005; // smaller values would read 0.00
const COLOURS = 8; // defined in ask.css, each with its own pattern

/** The parts of a score and their meaning, in the model's order. */
let parts = {};

/** @param {Record<string, string>} signals as in /v1/model */
export function describeParts(signals) {
  parts = signals;
}

const colour = (name) => `part part-${Math.max(0, Object.keys(parts).indexOf(name)) % COLOURS}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** The names of parts large enough to show, in the model's order. @param {Record<string, number>} values */
const visibleParts = (values) => Object.keys(values).filter((name) => Math.abs(values[name]) >= MIN_SHOWN);

/** A bar as long as the probability, divided among the parts that raise the score. @param {import("./api.js").Hit} hit */
export function probabilityBar(hit) {
  const raising = visibleParts(hit.parts).filter((name) => hit.parts[name] > 0);
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

/** A legend of the parts that these hits have. @param {import("./api.js").Hit[]} hits */
export function legend(hits) {
  const names = Object.keys(parts).filter((name) => hits.some((hit) => (hit.parts[name] ?? 0) >= MIN_SHOWN));
  return h("ul", { class: "legend", "aria-label": "What raises a score" },
    ...names.map((name) => h("li", { title: parts[name] }, swatch(name), name)));
}

const swatch = (name) => h("span", { class: `swatch ${colour(name)}`, "aria-hidden": "true" });

/** A table of what each part adds to the score (to the right of zero) or subtracts (to the left). @param {import("./api.js").Hit} hit */
export function scoreTable(hit) {
  const names = visibleParts(hit.parts);
  const values = names.map((name) => hit.parts[name]);
  const [low, high] = [Math.min(0, ...values), Math.max(MIN_SHOWN, ...values)];
  return h("table", { class: "score" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Part"), h("th", { scope: "col" }, "Adds"), h("td", {}))),
    h("tbody", {}, ...names.map((name) =>
      h("tr", {},
        h("th", { scope: "row" }, swatch(name), name, h("small", {}, parts[name] ?? "")),
        h("td", {}, number(hit.parts[name])),
        h("td", { class: "from-zero", "aria-hidden": "true" }, fromZero(name, hit.parts[name], low, high))))),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Score"), h("td", {}, number(hit.score)), h("td", {}))));
}

/** A bar from zero to the value, on an axis from `low` to `high`, which are those of all parts. */
function fromZero(name, value, low, high) {
  const share = (length) => `${(100 * length) / (high - low)}%`;
  const axis = h("span", { class: "axis" });
  const piece = h("span", { class: colour(name) });
  piece.style.left = share(Math.min(0, value) - low);
  piece.style.width = share(Math.abs(value));
  axis.style.setProperty("--zero", share(-low));
  axis.append(piece);
  return axis;
}

/** A list of what the signals measured. @param {import("./api.js").Hit} hit */
export function evidenceList(hit) {
  const shown = Object.entries(hit.evidence).filter(([name, value]) => !name.startsWith("log ") && Math.abs(value) >= MIN_SHOWN);
  return h("details", { class: "evidence" }, h("summary", {}, "Measured evidence"),
    h("dl", {}, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, number(value))])));
}
