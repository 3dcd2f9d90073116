(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* private */ } };
  const stored = recall();
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const shown = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = shown() === "dark" ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = shown() === "dark" ? "light" : "dark";
      keep(root.dataset.theme);
      label();
    });
    dark.addEventListener("change", label);
    label();
  });
})();
