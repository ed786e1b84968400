"use strict";
const outcomes = JSON.parse(document.getElementById("data").textContent);
const dialog = document.getElementById("details");
const cells = [...document.querySelectorAll(".grid .cell")];

// Text goes into the page as text alone, never as HTML.
function make(tag, kind, ...content) {
  const element = document.createElement(tag);
  element.className = kind;
  element.append(...content);
  return element;
}

function pairs(rows) {
  return make("dl", "pairs", ...rows.flatMap(([key, value]) => [make("dt", "", key), make("dd", "", value)]));
}

function makeButton(kind, text, number) {
  const button = make("button", kind, text);
  button.type = "button";
  if (number !== undefined) button.dataset.number = number;
  return button;
}

function open(number) {
  const outcome = outcomes[number];
  const title = make("h2", "", outcome.name);
  title.id = "details-title";
  const close = makeButton("close", "✕");
  close.setAttribute("aria-label", "close");
  const parts = [
    make("div", "top", title, close),
    make("p", outcome.passed ? "result" : "result bad", (outcome.passed ? "✓ " : "✕ ") + outcome.result),
  ];
  for (const failure of outcome.failures) {
    const text = make("pre", "", failure.text);
    text.tabIndex = 0;
    parts.push(make("span", "stage", "✕ " + failure.stage), text);
    if (failure.folder) parts.push(make("p", "folder", "left in ", make("code", "", failure.folder)));
  }
  parts.push(make("h3", "", outcome.passed ? "To check it again" : "To see it again"));
  parts.push(make("div", "command", make("code", "", outcome.command), makeButton("copy", "copy")));
  if (outcome.notes.length) {
    parts.push(make("h3", "", "Notes"), ...outcome.notes.map((note) => make("p", "note", note)));
  }
  parts.push(make("h3", "", "Answers"), pairs(outcome.answers));
  if (outcome.seconds.length) parts.push(make("h3", "", "Time by stage"), pairs(outcome.seconds));
  if (outcome.weights) {
    parts.push(make("h3", "", "Hash of the final weights"), make("p", "note", make("code", "", outcome.weights)));
  }
  dialog.replaceChildren(...parts);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  history.replaceState(null, "", "#" + encodeURIComponent(outcome.name));
}

async function copy(button) {
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code); // without a clipboard, as over plain http
    document.execCommand("copy");
  }
  button.textContent = "copied";
  setTimeout(() => (button.textContent = "copy"), 1500);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) {
    if (event.target === dialog && event.clientX < dialog.getBoundingClientRect().left) dialog.close();
  } else if (button.dataset.number !== undefined) open(Number(button.dataset.number));
  else if (button.classList.contains("copy")) copy(button);
  else if (button.classList.contains("close")) dialog.close();
});
dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));

// Each table is one stop of the Tab key; the arrow keys go from cell to cell.
const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
for (const table of document.querySelectorAll(".panel table")) {
  const rows = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td")]);
  table.querySelector(".cell").tabIndex = 0;
  table.addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step || !event.target.matches(".cell")) return;
    event.preventDefault();
    let y = rows.findIndex((row) => row.includes(event.target.parentElement));
    let x = rows[y].indexOf(event.target.parentElement);
    let next = null;
    while (!next && rows[y + step[0]]?.[x + step[1]]) {
      y += step[0];
      x += step[1];
      next = rows[y][x].querySelector(".cell");
    }
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

const SHOWN = 60;
const haystacks = outcomes.map((outcome) =>
  [
    outcome.name,
    ...outcome.answers.map((answer) => answer.join("=")),
    outcome.result,
    ...outcome.notes,
    ...outcome.failures.map((failure) => failure.text),
  ]
    .join("\n")
    .toLowerCase(),
);

function filter() {
  const wanted = document.getElementById("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = haystacks.map((haystack) => wanted.every((word) => haystack.includes(word)));
  for (const cell of cells) cell.classList.toggle("out", !fits[cell.dataset.number]);
  for (const failure of document.querySelectorAll(".failure")) {
    failure.hidden = !failure.dataset.members.split(" ").some((number) => fits[number]);
  }
  const found = [...fits.keys()].filter((number) => fits[number]);
  document.getElementById("matches").textContent = wanted.length ? `${found.length} of ${outcomes.length}` : "";
  const list = document.getElementById("matching");
  list.hidden = !wanted.length;
  list.replaceChildren(
    ...found
      .slice(0, SHOWN)
      .map((number) =>
        make("li", "", makeButton("", (outcomes[number].passed ? "✓ " : "✕ ") + outcomes[number].name, number)),
      ),
  );
  if (found.length > SHOWN) list.append(make("li", "", `and ${found.length - SHOWN} more`));
}
document.getElementById("filter").addEventListener("input", filter);
filter(); // a browser may restore what was typed before

const linked = outcomes.findIndex((outcome) => "#" + encodeURIComponent(outcome.name) === location.hash);
if (linked >= 0) open(linked);
