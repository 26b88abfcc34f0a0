// Apply the chosen theme, or the system's, before the first paint: hence a plain script, not a module.
(() => {
  const names = { auto: "Auto", light: "Light", dark: "Dark" };
  const read = () => localStorage.getItem("mufin.theme") ?? "auto";
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    document.getElementById("theme-name").textContent = names[theme];
    button.setAttribute("aria-label", `Colours: ${names[theme]}. Change`);
    window.dispatchEvent(new Event("themechange"));
  };
  apply(read());
  document.addEventListener("DOMContentLoaded", () => {
    apply(read());
    document.getElementById("theme").addEventListener("click", () => {
      const order = Object.keys(names);
      const next = order[(order.indexOf(read()) + 1) % order.length];
      localStorage.setItem("mufin.theme", next);
      apply(next);
    });
  });
})();
