// The Labels view: find, add and remove labels.

import { getLabels, labelImage, removeLabel } from "./api.js";
import { addForm } from "./addlabel.js";
import { confirmed } from "./confirm.js";
import { count, debounced, h, icon, say } from "./dom.js";
import { closePanel, openPanel } from "./panel.js";
import { patiently, show as showNotice, showError } from "./patience.js";
import { keptAs, receivePictures } from "./pictures.js";
import { address, change, route } from "./route.js";

const PAGE_SIZE = 50;

/** @param {HTMLElement} root @param {any} model @param {() => void} onWrite called when labels were added or removed */
export function labelsView(root, model, onWrite) {
  const search = h("input", { id: "find", type: "search", autocomplete: "off", placeholder: "Find a label",
    oninput: debounced(() => !root.hidden && change({ q: search.value.trim(), page: null, label: null }, { replace: true }), 200) });
  const notices = h("div", { class: "notice-host" });
  const total = h("p", { class: "meta", role: "status" });
  const list = h("ul", { class: "label-list" });
  const pages = h("nav", { class: "pages", "aria-label": "Pages" });
  const adding = model.writable ? addForm(model, added) : null;
  // On narrow screens the form is above the list, and hidden until asked for.
  const toAdd = h("button", { type: "button", class: "quiet to-add", "aria-expanded": "false", "aria-controls": "add-label", onclick: toggle }, icon("plus"), "Add a label");
  function toggle() {
    const open = root.classList.toggle("adding");
    toAdd.setAttribute("aria-expanded", String(open));
    if (open) adding.form.querySelector("textarea").focus();
  }
  root.replaceChildren(
    h("div", { class: "labels-main" },
      h("div", { class: "labels-head" }, h("h1", {}, "Labels"), adding && toAdd),
      h("label", { for: "find", class: "unseen" }, "Find a label"), search,
      notices, total, list, pages),
    adding?.form ?? h("aside", { class: "card" }, h("h2", {}, "Add a label"), h("p", {}, "This server is read-only. To add labels, start it with a token (MUFIN_TOKEN).")));

  const names = new Map(); // texts of the labels on the page
  let running = null;
  let listed = null;

  async function show(params) {
    receivePictures(adding?.take ?? null);
    const key = JSON.stringify([params.get("q"), params.get("page")]);
    if (key !== listed) {
      listed = key;
      notices.replaceChildren();
      load(params);
    }
    const label = params.get("label");
    if (label) openPanel({ label, text: names.get(label), query: null, hit: null });
    else closePanel();
  }

  /** @param {URLSearchParams} params */
  async function load(params) {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const q = params.get("q") ?? "";
    const page = Math.max(1, Number(params.get("page")) || 1);
    if (document.activeElement !== search) search.value = q;
    list.setAttribute("aria-busy", "true");
    try {
      const found = await patiently(() => getLabels(q, (page - 1) * PAGE_SIZE, PAGE_SIZE, signal), notices, { signal });
      total.textContent = found.total ? count(found.total, "label") : q ? `No label contains “${q}”.` : "There are no labels yet.";
      list.replaceChildren(...found.labels.map(row));
      pages.replaceChildren(...pager(page, Math.ceil(found.total / PAGE_SIZE)));
      list.removeAttribute("aria-busy");
    } catch (error) {
      showError(notices, error);
    }
  }

  /** @param {import("./api.js").Label} label */
  function row(label) {
    const name = label.text || label.id;
    names.set(label.id, label.text);
    return h("li", {},
      h("button", { type: "button", class: "label-row", "aria-haspopup": "dialog", onclick: () => change({ label: label.id }) },
        label.images > 0 && h("img", { src: labelImage(label.id), alt: "", loading: "lazy" }),
        h("span", { class: "name" }, name),
        label.added && h("span", { class: "badge" }, "new"),
        h("span", { class: "meta" }, label.added && !label.frequency ? label.text && label.text !== label.id && label.id : count(label.frequency, "example"))),
      model.writable && h("button", { type: "button", class: "remove", "aria-label": `Remove ${name}`, onclick: () => remove(label) }, icon("bin")));
  }

  async function added(id, texts, pictures) {
    onWrite();
    await load(route().params);
    const name = texts[0] ?? id;
    const tries = h("a", { class: "button", href: address("ask", { text: texts, pictures: keptAs(pictures) }) }, "Try it");
    showNotice(notices, "good", `“${name}” was added`, "It can be recommended immediately, without training.", h("p", { class: "actions" }, name !== id && h("code", {}, id), tries));
    tries.focus();
  }

  async function remove(label) {
    const name = label.text || label.id;
    const sure = await confirmed(`Remove “${name}”?`, "It will no longer be recommended. This cannot be undone, but you can add the label again.", "Remove");
    if (!sure) return;
    try {
      await patiently(() => removeLabel(label.id), notices, { repeatable: false });
      onWrite();
      await load(route().params);
      showNotice(notices, "good", `“${name}” was removed`, "");
      search.focus();
    } catch (error) {
      showError(notices, error);
      adding?.tokenNeeded(error);
    }
  }

  return { show, stale: () => (listed = null) };
}

function pager(page, last) {
  if (last < 2) return [];
  const step = (text, to, off) => h("button", { type: "button", class: "quiet", disabled: off, onclick: () => turn(to) }, text);
  return [step("Previous", page - 1, page <= 1), h("span", {}, `Page ${page} of ${last.toLocaleString("en")}`), step("Next", page + 1, page >= last)];
}

function turn(page) {
  change({ page: page > 1 ? page : null, label: null });
  scrollTo({ top: 0 });
  say(`Page ${page}`);
}
