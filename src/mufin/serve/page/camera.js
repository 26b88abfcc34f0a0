// The camera of the map: position and zoom, and conversion between map coordinates and pixels.

const GRID_SIDE = 64; // cells per side of the grid used for hit testing
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{x: number[], y: number[]}} points
 * @param {() => void} onMove
 */
export function camera(canvas, points, onMove) {
  const box = boundsOf(points);
  const cells = gridOf(points, box);
  let at = { x: 0, y: 0, scale: 1 }; // the centre, and pixels per unit
  let moving = 0;

  const fitted = () => Math.min(canvas.clientWidth / box.width, canvas.clientHeight / box.height) * 0.92;
  const limit = (scale) => Math.min(Math.max(scale, fitted() * 0.5), fitted() * 200);
  const toScreen = (x, y) => [(x - at.x) * at.scale + canvas.clientWidth / 2, (y - at.y) * at.scale + canvas.clientHeight / 2];
  const toPlane = (left, top) => [(left - canvas.clientWidth / 2) / at.scale + at.x, (top - canvas.clientHeight / 2) / at.scale + at.y];

  function jump(next) {
    cancelAnimationFrame(moving);
    at = next;
    onMove();
  }

  function glide(next) {
    if (reducedMotion.matches) return jump(next);
    const from = at;
    const begun = performance.now();
    const step = (now) => {
      const t = Math.min(1, (now - begun) / 220);
      const eased = 1 - (1 - t) ** 3;
      const mix = (a, b) => a + (b - a) * eased;
      at = { x: mix(from.x, next.x), y: mix(from.y, next.y), scale: mix(from.scale, next.scale) };
      onMove();
      if (t < 1) moving = requestAnimationFrame(step);
    };
    cancelAnimationFrame(moving);
    moving = requestAnimationFrame(step);
  }

  return {
    toScreen,
    get scale() {
      return at.scale / fitted();
    },
    reset: () => jump({ x: box.x + box.width / 2, y: box.y + box.height / 2, scale: fitted() }),
    pan: (left, top) => jump({ ...at, x: at.x - left / at.scale, y: at.y - top / at.scale }),
    zoom: (by) => glide({ ...at, scale: limit(at.scale * by) }),
    /** Zoom around a point on the screen. */
    zoomAt: (by, left, top) => {
      const [x, y] = toPlane(left, top);
      const scale = limit(at.scale * by);
      jump({ x: x - (left - canvas.clientWidth / 2) / scale, y: y - (top - canvas.clientHeight / 2) / scale, scale });
    },
    /** Move to a point and zoom in far enough to tell it from its neighbours. */
    reveal: (x, y) => {
      const [left, top] = toScreen(x, y);
      const inside = left > 40 && top > 40 && left < canvas.clientWidth - 40 && top < canvas.clientHeight - 40;
      if (!inside || at.scale < fitted() * 3) glide({ x, y, scale: Math.max(at.scale, fitted() * 4) });
    },
    /** The row of the point nearest to a position on the screen, or −1 if none is within reach. */
    nearest: (left, top, reach = 16) => {
      const [x, y] = toPlane(left, top);
      let [best, distance] = [-1, Infinity];
      const rows = reach === Infinity ? points.x.keys() : cells.near(x, y, reach / at.scale);
      for (const row of rows) {
        const away = Math.hypot(points.x[row] - x, points.y[row] - y);
        if (away < distance) [best, distance] = [row, away];
      }
      return distance * at.scale <= reach ? best : -1;
    },
    /** The rows of the points in view, nearest to the centre first. */
    visible: () => {
      const [left, top] = toPlane(0, 0);
      const [right, bottom] = toPlane(canvas.clientWidth, canvas.clientHeight);
      const rows = [];
      for (let i = 0; i < points.x.length; i++) {
        if (points.x[i] >= left && points.x[i] <= right && points.y[i] >= top && points.y[i] <= bottom) rows.push(i);
      }
      const away = (i) => (points.x[i] - at.x) ** 2 + (points.y[i] - at.y) ** 2;
      return rows.sort((a, b) => away(a) - away(b));
    },
  };
}

function boundsOf({ x, y }) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let i = 0; i < x.length; i++) {
    left = Math.min(left, x[i]);
    right = Math.max(right, x[i]);
    top = Math.min(top, y[i]);
    bottom = Math.max(bottom, y[i]);
  }
  if (!x.length) return { x: -1, y: -1, width: 2, height: 2 };
  return { x: left, y: top, width: right - left || 1, height: bottom - top || 1 };
}

/** Sort points into a grid, so that finding the one under the pointer checks only a few. */
function gridOf({ x, y }, box) {
  const clamp = (cell) => Math.min(GRID_SIDE - 1, Math.max(0, cell));
  const column = (value) => clamp(Math.floor(((value - box.x) / box.width) * GRID_SIDE));
  const line = (value) => clamp(Math.floor(((value - box.y) / box.height) * GRID_SIDE));
  const cells = Array.from({ length: GRID_SIDE * GRID_SIDE }, () => []);
  for (let i = 0; i < x.length; i++) cells[line(y[i]) * GRID_SIDE + column(x[i])].push(i);
  return {
    near: (px, py, reach) => {
      const rows = [];
      for (let l = line(py - reach); l <= line(py + reach); l++) {
        for (let c = column(px - reach); c <= column(px + reach); c++) rows.push(...cells[l * GRID_SIDE + c]);
      }
      return rows;
    },
  };
}
