// Pictures that people bring: dropped, pasted or chosen; made small enough; shown as thumbnails.

import { byId, h, icon } from "./dom.js";

const SIDE = 1024; // no encoder looks at more

/** Who gets pictures that are dropped or pasted anywhere on the page; the view that is shown says so. */
let receiver = null;
export const receivePictures = (take) => (receiver = take);

const picturesOf = (transfer) => [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
const holdsFiles = (event) => Boolean(receiver) && [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Listen for drops and pastes, once. */
export function listenForPictures() {
  const veil = byId("drop");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) veil.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    veil.hidden = true;
    if (!holdsFiles(event)) return;
    event.preventDefault();
    receiver([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const pasted = picturesOf(event.clipboardData);
    if (pasted.length && receiver) receiver(pasted);
  });
}

/** A button that opens the system's file chooser. */
export function chooser(text, take) {
  const input = h("input", { type: "file", accept: "image/*", multiple: true, class: "unseen", tabindex: -1, "aria-hidden": "true" });
  input.addEventListener("change", () => {
    take([...input.files]);
    input.value = "";
  });
  const button = h("button", { type: "button", class: "quiet", onclick: () => input.click() }, icon("picture"), text);
  return h("span", { class: "chooser" }, button, input);
}

/**
 * The pictures, those that are too large made smaller; what cannot be read is told in the error.
 * @param {File[]} files @param {{images: number, image_bytes: number}} limits @param {number} already
 */
export async function fitting(files, limits, already) {
  if (already + files.length > limits.images) throw new Error(`At most ${limits.images} pictures, please.`);
  return Promise.all(files.map((file) => fit(file, limits.image_bytes)));
}

async function fit(file, bytes) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” is not a picture that can be read; use PNG, JPEG or WebP.`);
  }
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= bytes && /png|jpeg|webp/.test(file.type)) return file;
  const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // the encoders see transparent pictures on white, too
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
}

/** Pictures are not in an address; a number there finds them again while the page is open. @type {Blob[][]} */
const kept = [];

/** The number of these pictures, null where there are none. */
export function keptAs(pictures) {
  if (!pictures.length) return null;
  const same = kept.findIndex((set) => set.length === pictures.length && set.every((picture, i) => picture === pictures[i]));
  return (same < 0 ? kept.push(pictures) - 1 : same) + 1;
}

export const keptPictures = (number) => kept[Number(number) - 1] ?? [];

const addresses = new WeakMap();

/** The blob: address of a picture, the same each time. */
export function pictureUrl(blob) {
  if (!addresses.has(blob)) addresses.set(blob, URL.createObjectURL(blob));
  return addresses.get(blob);
}

/** Thumbnails with a button each to take the picture out again. */
export function thumbnails(pictures, onRemove) {
  return pictures.map((picture, i) =>
    h("li", { class: "thumb" },
      h("img", { src: pictureUrl(picture), alt: `Your picture ${i + 1}` }),
      h("button", { type: "button", class: "remove", "aria-label": `Take picture ${i + 1} out`, onclick: () => onRemove(i) }, icon("close"))));
}
