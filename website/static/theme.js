// The theme of the guides (Furo keeps it under the same key), before anything is drawn.
"use strict";
const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = THEMES.includes(theme) ? theme : "auto";
}

setTheme(localStorage.getItem("theme"));
addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").addEventListener("click", () => {
    const { theme } = document.documentElement.dataset;
    const dark = theme === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
    localStorage.setItem("theme", dark ? "light" : "dark");
    setTheme(localStorage.getItem("theme"));
  });
});
