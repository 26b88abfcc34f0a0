// Draw the map: one point per label, coloured and shaped by group, with as many names as fit.

import { h } from "./dom.js";

const COLOURS = 6; // defined in map.css, told apart by colour-blind people too; further groups change the shape
const SHAPES = ["disc", "triangle"];
const MAX_NAMES = 90; // drawn on the map
const MAX_TRIED = 4000; // labels for whose names a place is sought; bounds the time per frame
const LINE = 14; // height of a name in pixels
const CELL = 3; // pixels
const shapeOf = (group) => SHAPES[Math.floor(group / COLOURS) % SHAPES.length];

/** @param {HTMLCanvasElement} canvas @param {any} points columns, with `groups` @param {HTMLElement} host the legend, whose dots define the colours */
export function plot(canvas, points, host) {
  const context = canvas.getContext("2d");
  const rows = points.groups.map(() => []);
  points.group.forEach((group, i) => (rows[group] ??= []).push(i));

  /** Buttons that select a group. @param {(group: number) => number | null} onChoose */
  function legend(onChoose) {
    const buttons = points.groups.map((name, group) =>
      h("button", { type: "button", "aria-pressed": "false", onclick: () => press(onChoose(group)) },
        h("span", { class: `dot g${group % COLOURS} ${shapeOf(group)}`, "aria-hidden": "true" }), h("span", { class: "name" }, name), h("small", {}, (rows[group] ?? []).length.toLocaleString("en"))));
    const press = (chosen) => buttons.forEach((button, group) => button.setAttribute("aria-pressed", String(group === chosen)));
    return buttons.map((button) => h("li", {}, button));
  }

  function draw(view, { matches, only, chosen }) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
    if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const size = Math.min(7, (width < 500 ? 1.2 : 1.9) + Math.sqrt(view.scale));
    const free = freeSpace(width, height);
    for (const box of canvas.parentElement.querySelectorAll(".zoom")) free.fill(box.offsetLeft - 4, box.offsetTop - 4, box.offsetWidth + 8, box.offsetHeight + 8);
    const lit = (row) => (!matches || matches.has(row)) && (only === null || points.group[row] === only);
    const shown = [];
    for (const bright of [false, true]) {
      rows.forEach((members, group) => {
        const dot = host.querySelectorAll(".dot")[group];
        context.fillStyle = dot ? getComputedStyle(dot).color : style.color;
        context.globalAlpha = bright ? 0.85 : 0.12;
        context.beginPath();
        for (const row of members) {
          if (lit(row) !== bright) continue;
          const [x, y] = view.toScreen(points.x[row], points.y[row]);
          if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
          const radius = bright && matches ? size * 1.4 : size;
          trace(context, shapeOf(group), x, y, radius);
          free.fill(x - radius, y - radius, 2 * radius, 2 * radius);
          if (bright) shown.push([row, x, y]);
        }
        context.fill();
      });
    }
    context.globalAlpha = 1;
    shown.sort((a, b) => hashOf(a[0]) - hashOf(b[0])); // in file order, all names of one region would come first
    if (chosen >= 0) ring(view, style);
    names(shown, size, style, free);

    function ring(camera, { color }) {
      const [x, y] = camera.toScreen(points.x[chosen], points.y[chosen]);
      context.strokeStyle = color;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(x, y, size + 5, 0, 7);
      context.stroke();
      shown.sort((a, b) => Number(b[0] === chosen) - Number(a[0] === chosen));
    }
  }

  /** Draw names in turn, each beside its dot where it covers no dot, no other name and no button. */
  function names(shown, size, style, free) {
    context.font = `${style.fontSize} ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.fillStyle = style.color;
    let [written, tried] = [0, 0];
    for (const [row, x, y] of shown) {
      if (written >= MAX_NAMES || ++tried > MAX_TRIED) break;
      const text = points.text[row].length > 28 ? `${points.text[row].slice(0, 27)}…` : points.text[row];
      if (!text) continue;
      const wide = context.measureText(text).width;
      const away = size + 4;
      const places = [[x + away, y], [x - away - wide, y], [x - wide / 2, y - away - LINE / 2], [x - wide / 2, y + away + LINE / 2]];
      const place = places.find(([left, middle]) => free.take(left - 1, middle - LINE / 2, wide + 2, LINE));
      if (!place) continue;
      context.fillText(text, ...place);
      written++;
    }
  }

  return { draw, legend };
}

const hashOf = (row) => (row * 2654435761) % 4294967296;

/** Which parts of the canvas are still free, in cells of a few pixels. */
function freeSpace(width, height) {
  const [columns, lines] = [Math.ceil(width / CELL), Math.ceil(height / CELL)];
  const taken = new Uint8Array(columns * lines);
  const cells = (x, y, w, h) => [Math.floor(x / CELL), Math.floor(y / CELL), Math.floor((x + w) / CELL), Math.floor((y + h) / CELL)];

  function fill(x, y, w, h) {
    const [left, top, right, bottom] = cells(x, y, w, h);
    for (let line = Math.max(0, top); line <= Math.min(bottom, lines - 1); line++) {
      taken.fill(1, line * columns + Math.max(0, left), line * columns + Math.min(right, columns - 1) + 1);
    }
  }

  /** Take a rectangle if all of it is on the canvas and free. */
  function take(x, y, w, h) {
    if (x < 2 || y < 2 || x + w > width - 2 || y + h > height - 2) return false;
    const [left, top, right, bottom] = cells(x, y, w, h);
    for (let line = top; line <= bottom; line++) {
      for (let column = left; column <= right; column++) if (taken[line * columns + column]) return false;
    }
    fill(x, y, w, h);
    return true;
  }
  return { fill, take };
}

function trace(context, shape, x, y, r) {
  if (shape === "disc") {
    context.moveTo(x + r, y);
    context.arc(x, y, r, 0, 7);
    return;
  }
  context.moveTo(x, y - 1.35 * r);
  context.lineTo(x + 1.25 * r, y + 0.9 * r);
  context.lineTo(x - 1.25 * r, y + 0.9 * r);
  context.closePath();
}
