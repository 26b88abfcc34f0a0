// Entry point: load the description of the model and show the view in the address.

import { getModel } from "./api.js";
import { askView } from "./ask.js";
import { describeParts } from "./bars.js";
import { byId, count } from "./dom.js";
import { labelsView } from "./labels.js";
import { mapView } from "./map.js";
import { patiently, showError } from "./patience.js";
import { listenForPictures } from "./pictures.js";
import { route } from "./route.js";

const TITLES = { ask: "mufin", labels: "Labels · mufin", map: "Map · mufin" };

async function start() {
  const model = await patiently(getModel, byId("start"));
  const facts = (m) => (byId("facts").textContent = `${m.name} · ${count(m.living, "label")}`);
  facts(model);
  describeParts(model.signals);
  const changed = async () => {
    views.map.stale();
    facts(Object.assign(model, await getModel()));
  };
  const views = {
    ask: askView(byId("ask"), model),
    labels: labelsView(byId("labels"), model, () => changed().catch(() => {})),
    map: mapView(byId("map")),
  };

  function show() {
    const { view, params } = route();
    document.title = TITLES[view];
    for (const name of Object.keys(views)) byId(name).hidden = name !== view;
    for (const link of document.querySelectorAll("nav [data-view]")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    views[view].show(params);
  }
  window.addEventListener("hashchange", show);
  show();
}

byId("skip").addEventListener("click", () => byId("main").focus());
listenForPictures();
start().catch((error) => showError(byId("start"), error));
