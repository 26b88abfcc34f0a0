// The address after the # says what is shown, so that a view can be shared and the back button works.

const VIEWS = ["ask", "labels", "map"];

/** @returns {{view: string, params: URLSearchParams}} */
export function route() {
  const [name, search = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: VIEWS.includes(name) ? name : "ask", params: new URLSearchParams(search) };
}

/** The address of a view; empty parameters are left out, a list becomes repeated ones. */
export function address(view, params = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") search.append(name, each);
  }
  const text = search.toString();
  return `#/${view}${text && `?${text}`}`;
}

/** Go to a view; `replace` leaves no trace in the history. */
export function go(view, params = {}, { replace = false } = {}) {
  const target = address(view, params);
  if (target === location.hash) return;
  if (!replace) {
    location.hash = target;
    return;
  }
  history.replaceState(null, "", target);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The same view with some parameters changed; null removes one. */
export function change(changes, options) {
  const { view, params } = route();
  const kept = {};
  for (const name of new Set(params.keys())) kept[name] = params.getAll(name);
  go(view, { ...kept, ...changes }, options);
}
