// The Map view: all labels in two dimensions, with a legend, a search and an accessible list.

import { getMap } from "./api.js";
import { camera } from "./camera.js";
import { count, debounced, h, icon, onTouch, say } from "./dom.js";
import { steer } from "./gestures.js";
import { plot } from "./plot.js";
import { closePanel, openPanel } from "./panel.js";
import { patiently, show as showNotice, showError } from "./patience.js";
import { receivePictures } from "./pictures.js";
import { change } from "./route.js";

const MAX_LISTED = 40; // labels in the list beside the map
const HELP = "Arrow keys pan, plus and minus zoom, 0 shows all, Enter opens the label in the centre.";
const TOUCH_HELP = "Drag to pan, pinch to zoom, tap a point to open its label.";

/** @param {HTMLElement} root */
export function mapView(root) {
  const notices = h("div", { class: "notice-host" });
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "map", "aria-describedby": "map-help" });
  const tip = h("p", { class: "tip", hidden: true, "aria-hidden": "true" });
  const groups = h("ul", { class: "groups", "aria-label": "Groups" });
  const title = h("h2", {}, "In view");
  const listed = h("p", { class: "meta listed" });
  const inView = h("ul", { class: "in-view" });
  const search = h("input", { id: "on-map", type: "search", autocomplete: "off", placeholder: "Find on the map",
    oninput: debounced(() => !root.hidden && change({ q: search.value.trim() }, { replace: true }), 200) });
  const found = h("p", { class: "meta", role: "status" });
  const tool = (name, text, action) => h("button", { type: "button", "aria-label": text, title: text, onclick: action }, icon(name));
  root.replaceChildren(
    h("div", { class: "map-main" }, notices,
      h("div", { class: "map-box" }, canvas, tip,
        h("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
          tool("plus", "Zoom in", () => view?.zoom(1.6)), tool("minus", "Zoom out", () => view?.zoom(1 / 1.6)), tool("whole", "Show all", () => view?.reset())),
        h("p", { id: "map-help", class: "hint" }, onTouch() ? TOUCH_HELP : HELP))),
    h("aside", { class: "map-side" },
      h("h1", {}, "Map"), h("label", { for: "on-map", class: "unseen" }, "Find on the map"), search, found, groups, title, listed, inView));

  let points = null;
  let view = null; // the camera
  let drawing = null;
  let running = null;
  let only = null; // the selected group
  let matches = null; // rows that match the search
  let chosen = -1;

  async function show(params) {
    receivePictures(null);
    if (!points) await load();
    if (!points || root.hidden) return;
    find(params.get("q") ?? "");
    const label = params.get("label");
    chosen = label === null ? -1 : points.label.indexOf(label);
    if (label) openPanel({ label, text: points.text[chosen], query: null, hit: null });
    else closePanel();
    if (chosen >= 0) view.reveal(points.x[chosen], points.y[chosen]);
    draw();
  }

  async function load() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    showNotice(notices, "busy", "Computing the map", "This takes a moment the first time.");
    try {
      let answer = await patiently(() => getMap(signal), notices, { signal });
      while (answer.pending) {
        const done = answer.progress ? ` ${Math.round(answer.progress * 100)} % done.` : "";
        showNotice(notices, "busy", "Computing the map", `This takes a moment the first time.${done}`);
        await new Promise((resolve) => setTimeout(resolve, 1000));
        if (signal.aborted) return;
        answer = await patiently(() => getMap(signal), notices, { signal });
      }
      ready(answer);
    } catch (error) {
      showError(notices, error);
    }
  }

  function ready(answer) {
    points = answer;
    canvas.setAttribute("aria-label", `Map of ${count(points.label.length, "label")}, ${answer.how}`);
    view = camera(canvas, points, draw);
    drawing = plot(canvas, points, groups);
    groups.replaceChildren(...drawing.legend((group) => {
      only = only === group ? null : group;
      draw();
      return only;
    }));
    steer(canvas, view, {
      onHover: hover,
      onPick: (x, y) => open(view.nearest(x, y)),
      onMiddle: (choose) => {
        const middle = view.nearest(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity);
        if (choose) open(middle);
        else if (middle >= 0) say(points.text[middle]);
      },
    });
    view.reset();
  }

  function open(row) {
    if (row >= 0) change({ label: points.label[row] });
  }

  function hover(x, y) {
    const row = x === null ? -1 : view.nearest(x, y);
    canvas.classList.toggle("over", row >= 0);
    tip.hidden = row < 0;
    if (row < 0) return;
    tip.replaceChildren(h("strong", {}, points.text[row] || points.label[row]), " ", points.groups[points.group[row]] ?? "");
    tip.style.left = `${Math.min(x + 14, canvas.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.max(8, y - tip.offsetHeight - 10)}px`;
  }

  function find(q) {
    if (document.activeElement !== search) search.value = q;
    const wanted = q.toLowerCase();
    matches = wanted ? new Set(points.text.flatMap((text, i) => (text.toLowerCase().includes(wanted) ? [i] : []))) : null;
    found.textContent = matches ? (matches.size ? `${count(matches.size, "label")} highlighted` : `No label contains “${q}”.`) : "";
  }

  const list = debounced(() => {
    if (root.hidden || !points) return;
    const rows = view.visible().filter((row) => (!matches || matches.has(row)) && (only === null || points.group[row] === only));
    const part = [only !== null && points.groups[only], matches && "found"].filter(Boolean).join(", ");
    title.textContent = `In view: ${count(rows.length, "label")}${part && ` (${part})`}`;
    listed.textContent = rows.length > MAX_LISTED ? `The ${MAX_LISTED} nearest to the centre; zoom in to list others.` : "";
    inView.replaceChildren(...rows.slice(0, MAX_LISTED).map((row) =>
      h("li", {}, h("button", { type: "button", "aria-haspopup": "dialog", onclick: () => open(row) }, points.text[row] || points.label[row]))));
  }, 150);

  let asked = 0;
  function draw() {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(() => {
      if (!points || root.hidden) return;
      drawing.draw(view, { matches, only, chosen });
      list();
    });
  }
  window.addEventListener("themechange", () => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  new ResizeObserver(() => draw()).observe(canvas);

  return { show, stale: () => (points = null) };
}
