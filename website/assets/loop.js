// Shows the code for another launcher or precision in place, and marks what differs from the choice before.
"use strict";
const form = document.querySelector(".choices");
const selects = [...form.querySelectorAll("select")];
const defaults = Object.fromEntries(selects.map((select) => [select.name, select.value]));
const links = document.querySelectorAll("a[href^='loop.']"); // to the other language
const shown = new Map([...document.querySelectorAll(".excerpt")].map((figure) => [figure, figure.querySelector("template")]));

// Returns the new lines as HTML: what is new is marked, and the line before which others are gone.
function marked(before, after) {
  const common = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1)); // in what is left
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      common[i][j] = before[i] === after[j] ? 1 + common[i + 1][j + 1] : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  let i = 0;
  return after.map((line, j) => {
    const start = i;
    while (i < before.length && before[i] !== line && common[i + 1][j] >= common[i][j + 1]) i++;
    if (i === before.length || before[i] !== line) return `<mark>${line}</mark>`;
    return i++ > start ? `<mark class="cut">${line}</mark>` : line;
  });
}

// Returns whether the code of a figure has changed.
function show(figure, key) {
  const [before, after] = [shown.get(figure), figure.querySelector(`template[data-for~="${key}"]`)];
  shown.set(figure, after);
  if (after === before) return false;
  const lines = (template) => template?.innerHTML.replace(/\n$/, "").split("\n") ?? [];
  figure.querySelector("pre").innerHTML = after ? `${marked(lines(before), lines(after)).join("\n")}\n` : form.dataset.absent;
  figure.querySelector("figcaption code").textContent = after?.dataset.path ?? "";
  return true;
}

function buttonTo(figure) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", textContent: figure.dataset.name });
  button.addEventListener("click", () => {
    figure.scrollIntoView();
    figure.querySelector("pre").focus({ preventScroll: true });
  });
  return button;
}

function update() {
  const words = new URLSearchParams(selects.map(({ name, value }) => [name, value]));
  const key = [...words.values()].join("-");
  const changed = [...shown.keys()].filter((figure) => show(figure, key));
  for (const [figure, template] of shown) {
    const link = `preview/index.html#${words}&file=${template?.dataset.path ?? "train.py"}`;
    figure.querySelector("figcaption a").setAttribute("href", link);
  }
  for (const name of Object.keys(defaults)) if (words.get(name) === defaults[name]) words.delete(name);
  for (const link of links) link.hash = words;
  const { changed: label, same } = form.dataset;
  form.querySelector("[role=status]").replaceChildren(...(changed.length ? [label, ...changed.map(buttonTo)] : [same]));
  return words;
}

function read() {
  const words = new URLSearchParams(location.hash.slice(1));
  const known = selects.filter((select) => [...select.options].some(({ value }) => value === words.get(select.name)));
  for (const select of known) select.value = words.get(select.name);
  if (known.length) update(); // else it is the place of a section
}

form.addEventListener("input", () => {
  const words = update();
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
});
addEventListener("hashchange", read);
read();
form.hidden = false;
