// The Ask view: rank labels for the query in the address.

import { getItem, recommend } from "./api.js";
import { count, h, onTouch, say } from "./dom.js";
import { invitation, randomItem } from "./empty.js";
import { hitList, skeleton } from "./hits.js";
import { closePanel, openPanel } from "./panel.js";
import { patiently, showError } from "./patience.js";
import { keptAs, keptPictures, receivePictures } from "./pictures.js";
import { composer, itemCard } from "./query.js";
import { change, go } from "./route.js";

const K = 10;

/** @param {HTMLElement} root @param {any} model */
export function askView(root, model) {
  const subject = h("div", { class: "subject" });
  const notices = h("div", { class: "notice-host" });
  const results = h("div", { class: "results" });
  const ask = composer(model, {
    onAsk: (query) => go("ask", { text: query.texts, pictures: keptAs(query.pictures) }),
    onItem: (id) => go("ask", { item: id }),
    onRandom: async () => {
      const item = await patiently(() => randomItem(model), notices).catch((error) => showError(notices, error));
      if (item) go("ask", { item: item.id });
    },
  });
  root.replaceChildren(h("div", { class: "question" }, ask.form, subject), h("div", { class: "answer" }, notices, results));

  let asked = ""; // the query of the hits on the page
  let running = null;
  let hits = new Map();
  let query = null;

  /** @param {URLSearchParams} params */
  async function show(params) {
    receivePictures(model.modalities === "text" ? null : ask.take);
    const k = Math.min(Number(params.get("k")) || K, model.k_max);
    const key = JSON.stringify([params.get("item"), params.getAll("text"), params.get("pictures"), k]);
    if (key !== asked) {
      asked = key;
      closePanel();
      if (!(await answer(params, k))) return;
    }
    panel(params.get("label"));
  }

  async function answer(params, k) {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    query = queryOf(params);
    ask.set(query);
    subject.replaceChildren();
    if (query.id === undefined && !query.texts.length && !query.pictures.length) {
      results.replaceChildren(invitation(model));
      if (params.get("pictures")) showError(notices, { title: "The images are missing", message: `A link holds texts, not images. ${onTouch() ? "Add" : "Drop"} them again.` });
      else notices.replaceChildren();
      return false;
    }
    results.setAttribute("aria-busy", "true");
    results.replaceChildren(skeleton(k));
    try {
      const item = query.id === undefined ? null : await patiently(() => getItem(query.id, signal), notices, { signal });
      if (item) subject.replaceChildren(itemCard(item, () => go("ask")));
      const found = await patiently(() => recommend(query, k, signal), notices, { signal });
      if (signal.aborted) return false;
      hits = new Map(found.hits.map((hit) => [hit.label, hit]));
      const options = { truth: item?.labels ?? null, k, kMax: model.k_max, onK: (n) => change({ k: n, label: null }), onOpen: (label) => change({ label }) };
      results.replaceChildren(...hitList(found, options));
      const unsure = results.querySelector(".unsure strong") ? "No good label. " : "";
      say(`${unsure}${count(found.hits.length, "label")}. First: ${found.hits.slice(0, 3).map((hit) => hit.text || hit.label).join(", ")}.`);
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      asked = "";
      results.replaceChildren();
      const again = h("button", { type: "button", onclick: () => show(params) }, "Try again");
      showError(notices, error, h("p", { class: "actions" }, again));
      return false;
    } finally {
      if (!signal.aborted) results.removeAttribute("aria-busy");
    }
  }

  function panel(label) {
    for (const button of results.querySelectorAll(".hit")) button.setAttribute("aria-expanded", String(button.dataset.label === label));
    if (label) openPanel({ label, query, hit: hits.get(label) ?? null });
    else closePanel();
  }

  return { show };
}

/** @param {URLSearchParams} params @returns {import("./api.js").Query} */
function queryOf(params) {
  if (params.get("item") !== null) return { id: params.get("item"), texts: [], pictures: [] };
  return { texts: params.getAll("text"), pictures: keptPictures(params.get("pictures")) };
}
