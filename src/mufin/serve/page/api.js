// The HTTP API as functions; all requests of the page go through here.

/**
 * @typedef {{id?: string, texts: string[], pictures: Blob[]}} Query an item of the catalogue, or texts and images
 * @typedef {{label: string, text: string, score: number, probability: number, parts: Record<string, number>,
 *   evidence: Record<string, number>, images: number, relevant: boolean | null}} Hit
 * @typedef {{kind: "text", text: string} | {kind: "image", n: number, url?: string}} Descriptor
 * @typedef {{id: string, text: string, texts: string[], images: number, frequency: number, added: boolean,
 *   alpha?: number | null, category?: string | null}} Label
 * @typedef {{id: string, text: string, texts: string[], images: number, split: string, labels: {id: string, text: string}[]}} Item
 */

/** What an error of the service means, in words for its users. */
const TITLES = {
  401: "A token is needed", 403: "Changes are not allowed", 404: "Not found", 408: "The request came too slowly",
  409: "This cannot be changed now", 413: "This is too large", 415: "This cannot be read", 422: "This cannot be used",
};

/** An error that the service reports. */
export class Problem extends Error {
  constructor(status, title, detail, retryAfter) {
    super(detail || title);
    Object.assign(this, { status, title, detail, retryAfter });
  }
}

/** The service could not be reached. */
export class Offline extends Error {}

const TOKEN = "mufin.token";
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
};

/** Encode as UTF-8, one character per byte: `fetch` accepts no other characters in headers. */
export const asBytes = (text) => String.fromCharCode(...new TextEncoder().encode(text));

/** @returns {Promise<any>} the JSON response, with `pending` set if it is not ready yet (202) */
async function call(method, path, { body, signal, writes = false } = {}) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (writes && token.get()) headers.Authorization = `Bearer ${asBytes(token.get())}`;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Offline("The server does not respond.");
  }
  const found = await answer.json().catch(() => ({}));
  if (answer.ok) return answer.status === 202 ? { ...found, pending: true } : found;
  const wait = Number(answer.headers.get("Retry-After"));
  throw new Problem(answer.status, TITLES[answer.status] ?? found.title ?? answer.statusText, found.detail ?? "", wait > 0 ? wait : null);
}

const path = (...parts) => ["v1", ...parts.map((part) => encodeURIComponent(part))].join("/");
const query = (values) => `?${new URLSearchParams(values)}`;

export const labelImage = (id, n = 0) => path("labels", id, "image", n);
export const itemImage = (id, n = 0) => path("items", id, "image", n);

/** @param {Query} asked */
async function wire(asked) {
  if (asked.id !== undefined) return { id: asked.id };
  return { texts: asked.texts, images: await Promise.all(asked.pictures.map(base64)) };
}

/** @param {Blob} blob @returns {Promise<string>} */
function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).split(",")[1] ?? "");
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

export const getModel = () => call("GET", path("model"));

/** @param {Query} asked */
export async function recommend(asked, k, signal) {
  const body = { items: [await wire(asked)], k, explain: true };
  const answer = await call("POST", path("recommend"), { body, signal });
  return { ...answer.results[0], took: answer.took_ms };
}

/** @param {Query} asked @param {string} label */
export async function explain(asked, label, signal) {
  return call("POST", path("explain"), { body: { item: await wire(asked), label }, signal });
}

export const getLabels = (q, offset, limit, signal) =>
  call("GET", path("labels") + query({ q, offset, limit }), { signal });
export const getLabel = (id, signal) => call("GET", path("labels", id), { signal });

export async function addLabel(id, texts, pictures) {
  const label = { id, texts, images: await Promise.all(pictures.map(base64)) };
  return call("POST", path("labels"), { body: { labels: [label] }, writes: true });
}
export const removeLabel = (id) => call("DELETE", path("labels"), { body: { ids: [id] }, writes: true });

export const getItems = (q, split, offset, limit, signal) =>
  call("GET", path("items") + query({ q, split, offset, limit }), { signal });
export const getItem = (id, signal) => call("GET", path("items", id), { signal });
export const getMap = (signal) => call("GET", path("map"), { signal });
