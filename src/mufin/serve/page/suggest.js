// Suggest items of the catalogue while typing: the ARIA combobox pattern, with images.

import { getItems, itemImage } from "./api.js";
import { count, debounced, h, say } from "./dom.js";

const MAX_SUGGESTIONS = 8;

/**
 * Add suggestions to an input.
 * @param {HTMLInputElement} input
 * @param {(item: import("./api.js").Item) => void} onPick
 * @returns {{list: HTMLElement, close: () => void}} the list, to be placed after the input
 */
export function suggestions(input, onPick) {
  const list = h("ul", { id: `${input.id}-list`, role: "listbox", class: "suggestions", "aria-label": "Items of the catalogue", hidden: true });
  let items = [];
  let active = -1;
  let running = null;
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) {
    input.setAttribute(name, value);
  }

  function close() {
    running?.abort();
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    mark(-1);
  }

  function mark(index) {
    active = index;
    [...list.children].forEach((option, i) => option.setAttribute("aria-selected", String(i === index)));
    if (index < 0) input.removeAttribute("aria-activedescendant");
    else {
      input.setAttribute("aria-activedescendant", list.children[index].id);
      list.children[index].scrollIntoView({ block: "nearest" });
    }
  }

  function pick(index) {
    close();
    onPick(items[index]);
  }

  function option(item, i) {
    const picture = item.images
      ? h("img", { src: itemImage(item.id), alt: "", loading: "lazy" })
      : h("span", { class: "no-picture", "aria-hidden": "true" }, "Aa");
    // Not onclick, which fires after the input has lost focus.
    return h("li", { id: `${list.id}-${i}`, role: "option", "aria-selected": "false", onpointerdown: (event) => (event.preventDefault(), pick(i)) },
      picture, h("span", { class: "name" }, item.text || item.id), h("span", { class: "tag" }, item.split));
  }

  const look = debounced(async () => {
    const typed = input.value.trim();
    if (!typed || document.activeElement !== input) return close();
    running?.abort();
    running = new AbortController();
    try {
      const found = await getItems(typed, "", 0, MAX_SUGGESTIONS, running.signal);
      items = found.items;
      list.replaceChildren(...items.map(option));
      mark(-1);
      list.hidden = !items.length;
      input.setAttribute("aria-expanded", String(items.length > 0));
      if (items.length) say(`${count(found.total, "item")} found; choose with the arrow keys.`);
    } catch {
      list.hidden = true; // suggestions are optional: no error message
    }
  }, 160);

  input.addEventListener("input", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      const all = items.length + 1; // one more position: nothing chosen, keep what was typed
      mark(((active + 1 + step + all) % all) - 1);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      pick(active);
    } else if (event.key === "Escape") {
      event.preventDefault();
      close();
    }
  });
  return { list, close };
}
