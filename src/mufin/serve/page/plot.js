// Draw the map: one point per label, coloured and shaped by group, with as many names as fit.

import { h } from "./dom.js";

const COLOURS = 8; // defined in map.css, safe for colour blindness; further groups change the shape
const SHAPES = ["disc", "square", "triangle", "diamond"];
const MAX_NAMES = 90; // drawn on the map
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
    const size = Math.min(7, 2.2 + Math.sqrt(view.scale));
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
          trace(context, shapeOf(group), x, y, bright && matches ? size * 1.4 : size);
          if (bright) shown.push([row, x, y]);
        }
        context.fill();
      });
    }
    context.globalAlpha = 1;
    if (chosen >= 0) ring(view, style);
    names(shown, size, style);

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

  /** Draw names in turn; skip a name that would overlap an earlier one. */
  function names(shown, size, style) {
    context.font = `${style.fontSize} ${style.fontFamily}`;
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 3;
    context.strokeStyle = style.backgroundColor;
    context.fillStyle = style.color;
    const taken = new Set();
    let written = 0;
    // Shuffle the rows: in file order, all names of one region would come first.
    for (const [row, x, y] of shown[0] ? [shown[0], ...shown.slice(1).sort((a, b) => hashOf(a[0]) - hashOf(b[0]))] : []) {
      if (written >= MAX_NAMES) break;
      const text = points.text[row].length > 28 ? `${points.text[row].slice(0, 27)}…` : points.text[row];
      const cells = covered(x, y, size + 10 + context.measureText(text).width);
      if (!text || cells.some((cell) => taken.has(cell))) continue;
      cells.forEach((cell) => taken.add(cell));
      context.strokeText(text, x + size + 4, y);
      context.fillText(text, x + size + 4, y);
      written++;
    }
  }

  return { draw, legend };
}

const hashOf = (row) => (row * 2654435761) % 4294967296;

function covered(x, y, width) {
  const cells = [];
  for (let line = Math.floor((y - 9) / 12); line <= Math.floor((y + 9) / 12); line++) {
    for (let column = Math.floor(x / 12); column <= Math.floor((x + width) / 12); column++) cells.push(`${line},${column}`);
  }
  return cells;
}

function trace(context, shape, x, y, r) {
  context.moveTo(x + r, y);
  if (shape === "disc") context.arc(x, y, r, 0, 7);
  else if (shape === "square") context.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else {
    const top = shape === "triangle" ? [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]] : [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]];
    top.forEach(([dx, dy], i) => (i ? context.lineTo(x + dx * r, y + dy * r) : context.moveTo(x + dx * r, y + dy * r)));
    context.closePath();
  }
}
