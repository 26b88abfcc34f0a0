// Control the map by wheel, drag, pinch and keys.

const CLICK_TOLERANCE = 6; // pixels that the pointer may move during a click
const PAN_STEP = 60; // pixels per arrow key

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ReturnType<typeof import("./camera.js").camera>} view
 * @param {{onHover: (x: number | null, y?: number) => void, onPick: (x: number, y: number) => void, onMiddle: (choose: boolean) => void}} on
 */
export function steer(canvas, view, on) {
  const fingers = new Map();
  let moved = 0;
  const place = (event) => [event.clientX - canvas.getBoundingClientRect().left, event.clientY - canvas.getBoundingClientRect().top];

  canvas.onwheel = (event) => {
    event.preventDefault();
    view.zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), ...place(event));
  };

  canvas.onpointerdown = (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!fingers.size) moved = 0;
    fingers.set(event.pointerId, place(event));
    on.onHover(null);
  };

  canvas.onpointermove = (event) => {
    const [x, y] = place(event);
    const before = fingers.get(event.pointerId);
    if (!before) return on.onHover(x, y);
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const apart = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      view.zoomAt(apart([x, y]) / apart(before), (x + other[0]) / 2, (y + other[1]) / 2);
    }
    const share = other ? 0.5 : 1; // two fingers send an event each
    view.pan((x - before[0]) * share, (y - before[1]) * share);
    fingers.set(event.pointerId, [x, y]);
  };

  canvas.onpointerup = (event) => {
    const alone = fingers.size === 1;
    fingers.delete(event.pointerId);
    if (alone && moved < CLICK_TOLERANCE) on.onPick(...place(event));
  };
  canvas.onpointercancel = (event) => fingers.delete(event.pointerId);
  canvas.onpointerleave = () => on.onHover(null);

  canvas.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowLeft: () => view.pan(PAN_STEP, 0), ArrowRight: () => view.pan(-PAN_STEP, 0),
      ArrowUp: () => view.pan(0, PAN_STEP), ArrowDown: () => view.pan(0, -PAN_STEP),
      "+": () => view.zoom(1.4), "=": () => view.zoom(1.4), "-": () => view.zoom(1 / 1.4),
      0: () => view.reset(), Home: () => view.reset(), Enter: () => on.onMiddle(true),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
    if (event.key !== "Enter") on.onMiddle(false);
  };
}
