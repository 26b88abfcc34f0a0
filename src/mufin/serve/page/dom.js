// Helpers to create and find elements.

/**
 * Create an element with properties and children: h("a", { href, class: "x", onclick: f }, "text").
 * @param {string} tag
 * @param {Record<string, any>} [properties] attributes; functions under "on…" become listeners; null, undefined and false are skipped
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false).map(asChild));
  return element;
}

const asChild = (child) => (child instanceof Node ? child : String(child));

/** Whether the user points with a finger, so that nothing can be hovered over. */
export const onTouch = () => matchMedia("(hover: none)").matches;

export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Announce a text to screen readers. */
export function say(text) {
  byId("say").textContent = text;
}

const ICONS = {
  check: "M4 10.5l4 4 8-9",
  close: "M5 5l10 10M15 5L5 15",
  picture: "M3 4h14v12H3zM3 13l4-4 4 4 2.5-2.5L17 14M13 7.5h.01",
  plus: "M10 4v12M4 10h12",
  minus: "M4 10h12",
  dice: "M4 4h12v12H4zM7.5 7.5h.01M12.5 12.5h.01M12.5 7.5h.01M7.5 12.5h.01",
  whole: "M4 8V4h4M12 4h4v4M16 12v4h-4M8 16H4v-4",
  bin: "M4 6h12M8 6V4h4v2M6 6l1 10h6l1-10",
  arrow: "M4 10h12M11 5l5 5-5 5",
};

/** A line icon, hidden from screen readers. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Delay calls until none has come for so many milliseconds. */
export function debounced(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
export const percent = (p) => `${p > 0 && p < 0.01 ? "<1" : Math.round(p * 100)}\u00a0%`;

/** Format with a minus sign (−), but never as "−0.00". */
export function number(x, digits = 2) {
  const text = x.toFixed(digits);
  return (Number(text) === 0 ? (0).toFixed(digits) : text).replace("-", "−");
}
