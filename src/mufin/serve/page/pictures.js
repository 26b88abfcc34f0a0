// Images from the user: dropped, pasted or chosen, scaled down, and shown as thumbnails.

import { byId, h, icon } from "./dom.js";

const MAX_SIDE = 1024; // pixels; encoders use fewer

/** Receives images that are dropped or pasted anywhere on the page; set by the current view. */
let receiver = null;
export const receivePictures = (take) => (receiver = take);

const picturesOf = (transfer) => [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/"));
const holdsFiles = (event) => Boolean(receiver) && [...(event.dataTransfer?.types ?? [])].includes("Files");

/** Listen for drops and pastes, once. */
export function listenForPictures() {
  const overlay = byId("drop");
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    overlay.hidden = false;
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) overlay.hidden = true;
  });
  document.addEventListener("drop", (event) => {
    overlay.hidden = true;
    if (!holdsFiles(event)) return;
    event.preventDefault();
    receiver([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const pasted = picturesOf(event.clipboardData);
    if (pasted.length && receiver) receiver(pasted);
  });
}

/** A button that opens the file chooser. */
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
 * Scale down images that are too large; throw an error that names a file that cannot be read.
 * @param {File[]} files @param {{images: number, image_bytes: number}} limits @param {number} already
 */
export async function fitting(files, limits, already) {
  if (already + files.length > limits.images) throw new Error(`At most ${limits.images} images are allowed.`);
  return Promise.all(files.map((file) => fit(file, limits.image_bytes)));
}

async function fit(file, bytes) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” cannot be read as an image; use PNG, JPEG or WebP.`);
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= bytes && /png|jpeg|webp/.test(file.type)) return file;
  const canvas = h("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // as the encoders do with transparent images
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
}

/** Images that addresses refer to by number, while the page is open. @type {Blob[][]} */
const kept = [];

/** The number that refers to these images, null if there are none. */
export function keptAs(pictures) {
  if (!pictures.length) return null;
  const same = kept.findIndex((set) => set.length === pictures.length && set.every((picture, i) => picture === pictures[i]));
  return (same < 0 ? kept.push(pictures) - 1 : same) + 1;
}

export const keptPictures = (number) => kept[Number(number) - 1] ?? [];

const urls = new WeakMap();

/** The blob: URL of an image, the same each time. */
export function pictureUrl(blob) {
  if (!urls.has(blob)) urls.set(blob, URL.createObjectURL(blob));
  return urls.get(blob);
}

/** Thumbnails, each with a button to remove the image. */
export function thumbnails(pictures, onRemove) {
  return pictures.map((picture, i) =>
    h("li", { class: "thumb" },
      h("img", { src: pictureUrl(picture), alt: `Your image ${i + 1}` }),
      h("button", { type: "button", class: "remove", "aria-label": `Remove image ${i + 1}`, onclick: () => onRemove(i) }, icon("close"))));
}
