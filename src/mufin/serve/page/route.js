// The state of the page is in the address after the #, so that links and the back button work.

const VIEWS = ["ask", "labels", "map"];

/** @returns {{view: string, params: URLSearchParams}} */
export function route() {
  const [name, search = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: VIEWS.includes(name) ? name : "ask", params: new URLSearchParams(search) };
}

/** The address of a view; empty parameters are left out, a list is a repeated parameter. */
export function address(view, params = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const each of [value].flat()) if (each !== null && each !== undefined && each !== "") search.append(name, each);
  }
  const text = search.toString();
  return `#/${view}${text && `?${text}`}`;
}

/** Go to a view; `replace` replaces the current history entry. */
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

/** Change some parameters of the current view; null removes one. */
export function change(changes, options) {
  const { view, params } = route();
  const kept = {};
  for (const name of new Set(params.keys())) kept[name] = params.getAll(name);
  go(view, { ...kept, ...changes }, options);
}
