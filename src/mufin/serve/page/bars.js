// The score of a hit as a stacked bar: what each part adds to it, or takes away.

import { h, number } from "./dom.js";

/** Part → what it is, in the order of the stack. Each has a colour and a pattern of its own in ask.css. */
export const PARTS = {
  classifier: "what training learnt about the label",
  similarity: "how alike item and label are",
  memory: "votes of similar training examples",
  rarity: "how rare the label is",
};

/** One scale for all hits, so that lengths can be compared. @param {import("./api.js").Hit[]} hits */
export function scaleOf(hits) {
  let [above, below] = [1e-9, 0];
  for (const { parts = {} } of hits) {
    const values = Object.values(parts);
    above = Math.max(above, sum(values.filter((value) => value > 0)));
    below = Math.max(below, -sum(values.filter((value) => value < 0)));
  }
  return { above, below };
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const used = (parts) => Object.keys(PARTS).filter((name) => Math.abs(parts[name] ?? 0) > 1e-6);

/** @param {import("./api.js").Parts} parts */
export function scoreBar(parts, { above, below }) {
  const whole = above + below;
  const bar = h("span", { class: "bar", role: "img", "aria-label": `Score: ${used(parts).map((name) => `${name} ${number(parts[name])}`).join(", ")}` });
  for (const sign of [-1, 1]) {
    const half = h("span", { class: sign < 0 ? "below" : "above" });
    half.style.width = `${((sign < 0 ? below : above) / whole) * 100}%`;
    for (const name of used(parts)) {
      if (Math.sign(parts[name]) !== sign) continue;
      const piece = h("span", { class: `part ${name}`, title: `${name} ${number(parts[name])}` });
      piece.style.width = `${(Math.abs(parts[name]) / (sign < 0 ? below : above)) * 100}%`;
      half.append(piece);
    }
    bar.append(half);
  }
  return bar;
}

/** What the colours mean; only parts that this model has. @param {import("./api.js").Hit[]} hits */
export function legend(hits) {
  const names = Object.keys(PARTS).filter((name) => hits.some(({ parts = {} }) => Math.abs(parts[name] ?? 0) > 1e-6));
  return h("ul", { class: "legend", "aria-label": "Parts of a score" },
    ...names.map((name) => h("li", { title: PARTS[name] }, h("span", { class: `swatch part ${name}`, "aria-hidden": "true" }), name)));
}
