// The ranked labels.

import { labelImage } from "./api.js";
import { legend, probabilityBar } from "./bars.js";
import { count, h, icon, percent } from "./dom.js";
import { address } from "./route.js";

const GOOD = 0.2; // a probability below which even the first label is wrong four times out of five

/**
 * @param {{hits: import("./api.js").Hit[], took: number}} result
 * @param {{truth: {id: string, text: string}[] | null, k: number, kMax: number, onK: (k: number) => void, onOpen: (label: string) => void}} options
 */
export function hitList(result, { truth, k, kMax, onK, onOpen }) {
  const { hits } = result;
  const pictured = hits.some((hit) => hit.images > 0);
  const list = h("ol", { class: pictured ? "hits pictured" : "hits", onkeydown: moveFocus }, ...hits.map((hit, i) => row(hit, i, onOpen)));
  const parts = [heading(result, truth, k, kMax, onK)];
  if (!hits.length) parts.push(h("p", { class: "nothing" }, "No labels to show."));
  else parts.push(hits[0].probability < GOOD && noGoodLabel(hits[0]), legend(hits), list);
  const missed = missing(hits, truth);
  if (missed) parts.push(missed);
  return parts.filter(Boolean);
}

/** @param {import("./api.js").Hit} first */
const noGoodLabel = (first) =>
  h("div", { class: "notice unsure" }, h("strong", {}, "No good label"),
    h("p", {}, `Even the first one, “${first.text || first.label}”, is only ${percent(first.probability)} likely to be relevant.`));

function heading({ hits, took }, truth, k, kMax, onK) {
  const right = hits.filter((hit) => hit.relevant).length;
  const known = truth?.length ? ` · ${right} of ${count(truth.length, "known label")} found` : "";
  const choices = [...new Set([5, 10, 20, 50, k])].filter((n) => n <= kMax).sort((a, b) => a - b);
  const select = h("select", { id: "k", onchange: (event) => onK(Number(event.target.value)) },
    ...choices.map((n) => h("option", { value: n, selected: n === k }, n)));
  return h("header", { class: "hits-head" },
    h("h2", { id: "hits-title", tabindex: -1 }, "Labels"),
    h("p", { class: "meta" }, `${Math.round(took)} ms${known}`),
    h("label", { class: "how-many", for: "k" }, "Show ", select));
}

/** @param {import("./api.js").Hit} hit */
function row(hit, i, onOpen) {
  return h("li", { class: hit.relevant ? "relevant" : null },
    h("button", { type: "button", class: "hit", "data-label": hit.label, "aria-haspopup": "dialog", onclick: () => onOpen(hit.label) },
      h("span", { class: "rank" }, `${i + 1}`),
      hit.images > 0 && h("img", { src: labelImage(hit.label), alt: "", loading: "lazy" }),
      h("span", { class: "words" },
        h("span", { class: "name" }, hit.text || hit.label),
        hit.relevant && h("span", { class: "badge" }, icon("check"), "relevant")),
      h("span", { class: "chance" }, percent(hit.probability), h("span", { class: "unseen" }, " likely")),
      probabilityBar(hit)));
}

/** Known labels that are not among the hits. */
function missing(hits, truth) {
  const shown = new Set(hits.map((hit) => hit.label));
  const missed = (truth ?? []).filter((label) => !shown.has(label.id));
  if (!missed.length) return null;
  return h("p", { class: "missed" }, "Known labels not in this list: ",
    ...missed.flatMap((label, i) => [i ? ", " : "", h("a", { href: address("labels", { label: label.id }) }, label.text || label.id)]), ".");
}

/** Move through the hits with the up and down keys. */
function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const all = [...event.currentTarget.querySelectorAll(".hit")];
  const next = all[all.indexOf(document.activeElement) + step];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** Grey placeholder rows while the hits load. */
export function skeleton(rows) {
  return h("ol", { class: "hits skeleton", "aria-hidden": "true" }, ...Array.from({ length: rows }, () => h("li", {}, h("span", {}))));
}
