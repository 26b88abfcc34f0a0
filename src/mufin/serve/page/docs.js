// The page of the HTTP API: shows openapi.json, and sends requests.

import { byId, h } from "./dom.js";
import { asBytes, token } from "./api.js";

const JSON_TYPE = "application/json";
let schemas = {};

/** Resolve a reference within the document. */
const resolved = (schema = {}) => (schema.$ref ? resolved(schemas[schema.$ref.split("/").pop()]) : schema);

/** Name the type of a value: "list of strings", "number or null". */
function typeName(schema) {
  const found = resolved(schema);
  const options = found.anyOf ?? found.oneOf;
  if (options) return options.map(typeName).join(" or ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (found.type === "array") return `list of ${typeName(found.items)}`;
  return found.title && found.properties ? found.title : (found.type ?? "value");
}

const LIMITS = { minimum: "at least", maximum: "at most", minItems: "at least", maxItems: "at most", maxLength: "at most" };
const UNITS = { minItems: " entries", maxItems: " entries", maxLength: " characters" };

/** Describe limits and default of a value. */
function limits(schema) {
  const found = resolved(schema);
  const said = Object.entries(LIMITS)
    .filter(([name]) => found[name] !== undefined)
    .map(([name, words]) => `${words} ${found[name].toLocaleString("en")}${UNITS[name] ?? ""}`);
  if (found.default !== undefined && found.default !== null) said.push(`default ${JSON.stringify(found.default)}`);
  return said.join(", ");
}

/** The schema that describes the fields inside a value, through lists and alternatives. */
function inner(schema) {
  const found = resolved(schema);
  if (found.type === "array") return inner(found.items);
  if (found.anyOf) return inner(found.anyOf.find((one) => resolved(one).type !== "null"));
  return found.properties ? found : null;
}

/** List the fields of an object, and of objects inside it. */
function fields(schema) {
  const shape = inner(schema);
  if (!shape) return null;
  const required = new Set(shape.required ?? []);
  return h("ul", { class: "fields" }, ...Object.entries(shape.properties).map(([name, value]) =>
    h("li", {}, h("code", {}, name), ` ${[typeName(value), required.has(name) && "required", limits(value)].filter(Boolean).join(", ")}`,
      resolved(value).description ?? value.description ? `. ${value.description ?? resolved(value).description}` : null,
      fields(value))));
}

const section = (title, ...children) => h("section", {}, h("h3", {}, title), ...children);
const pretty = (value) => JSON.stringify(value, null, 2);

/** Send a request, and show status and answer. */
async function send(method, address, body, writes, shown) {
  const headers = body ? { "Content-Type": JSON_TYPE } : {};
  if (writes && token.get()) headers.Authorization = `Bearer ${asBytes(token.get())}`;
  shown.replaceChildren(h("p", { class: "meta" }, "Waiting …"));
  try {
    const answer = await fetch(address, { method, headers, body });
    const kind = answer.headers.get("Content-Type") ?? "";
    const head = h("p", { class: "meta" }, `${answer.status} ${answer.statusText}`);
    if (kind.startsWith("image/")) {
      shown.replaceChildren(head, h("img", { src: URL.createObjectURL(await answer.blob()), alt: "The image" }));
      return;
    }
    const text = await answer.text();
    shown.replaceChildren(head, h("pre", { tabindex: 0 }, kind.includes("json") ? pretty(JSON.parse(text)) : text));
  } catch (error) {
    shown.replaceChildren(h("p", { class: "notice wrong" }, `The server does not respond (${error.message}).`));
  }
}

function operation(path, method, found) {
  const content = found.requestBody?.content ?? {};
  const body = content[JSON_TYPE];
  const writes = Boolean(found.security);
  const inputs = (found.parameters ?? []).map((parameter) => [parameter, h("input", { name: parameter.name })]);
  const text = body && h("textarea", { rows: 10, spellcheck: "false", "aria-label": "Body" }, pretty(body.example ?? {}));
  const shown = h("div", { class: "answer", role: "status" });
  const ask = (event) => {
    event.preventDefault();
    let address = path.slice(1);
    const query = new URLSearchParams();
    for (const [parameter, input] of inputs) {
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    const rest = query.size ? `?${query}` : "";
    send(method.toUpperCase(), address + rest, text?.value, writes, shown);
  };
  const [status, answer] = Object.entries(found.responses).find(([code]) => code.startsWith("2")) ?? ["", {}];
  const given = answer.content?.[JSON_TYPE];
  const others = Object.keys(content).filter((kind) => kind !== JSON_TYPE);
  return h("details", { class: "operation" },
    h("summary", {}, h("span", { class: writes ? "method writes" : "method" }, method.toUpperCase()), h("h2", {}, path), h("span", { class: "meta" }, found.description ?? found.summary)),
    h("form", { class: "body", onsubmit: ask },
      inputs.length > 0 && section("Parameters", ...inputs.map(([parameter, input]) =>
        h("label", {}, `${parameter.name} (${[typeName(parameter.schema), limits(parameter.schema), parameter.description].filter(Boolean).join(", ")})`, input))),
      body && section("Body", text, others.length > 0 && h("p", { class: "hint" }, `Also: ${others.join(", ")}.`), fields(body.schema)),
      h("div", { class: "actions" }, h("button", {}, "Send"), writes && h("span", { class: "hint" }, "Writes; may need the token.")),
      shown,
      given && section(`Answer, ${status}`, given.example !== undefined && h("pre", { tabindex: 0 }, pretty(given.example)), fields(given.schema)),
    ));
}

async function start() {
  const host = byId("operations");
  try {
    const found = await (await fetch("openapi.json")).json();
    schemas = found.components?.schemas ?? {};
    byId("facts").textContent = `${found.info.title} ${found.info.version}`;
    const operations = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => operation(path, method, one)));
    host.replaceChildren(...operations);
  } catch (error) {
    host.replaceChildren(h("p", { class: "notice wrong" }, `The schema cannot be read (${error.message}).`));
  }
}

const field = /** @type {HTMLInputElement} */ (byId("token"));
field.value = token.get();
field.addEventListener("input", () => token.set(field.value));
start();
