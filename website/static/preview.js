// The form, the tree and the file. What they show comes from Python: preview.py, for the first view as default.json.
const $ = (id) => document.getElementById(id);
const LANGUAGES = { py: "python", sh: "bash", yml: "yaml", yaml: "yaml", toml: "ini", md: "markdown" };
const FIRST_FILE = "train.py";
const PAUSE = 150; // milliseconds without a key, until a text is rendered

let shown; // what Python said of the answers that are on the page
let files = new Map(); // by path, of the last answers that can be
let before = new Map(); // the files before the last change
let changedKey = null;
let answers = {}; // those that differ from the defaults, as texts
let open = FIRST_FILE;
const folded = new Set();

// ---- Python ----
let worker;
let sent = 0;
const waiting = new Map();

function ask(name, ...given) {
  if (!worker) {
    worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    worker.onmessage = ({ data: { number, result, error } }) => {
      const { resolve, reject } = waiting.get(number);
      waiting.delete(number);
      error === undefined ? resolve(result) : reject(new Error(error));
    };
    worker.onerror = () => say("Python could not be loaded: look at the network, and load the page again.", true);
  }
  return new Promise((resolve, reject) => {
    waiting.set(++sent, { resolve, reject });
    worker.postMessage({ number: sent, name, given });
  });
}

let latest = 0;

async function update(key) {
  const mine = ++latest;
  const first = !worker;
  if (first) say("Loading Python …");
  writeLink();
  try {
    const result = await ask("show", JSON.stringify(answers));
    if (mine === latest) take(result, key);
  } catch (error) {
    say(`This could not be rendered: ${error.message}`, true);
  }
}

function take(result, key) {
  shown = result;
  const texts = shown.questions.find((question) => question.key === key)?.choices.length === 0;
  if (shown.files) {
    // One text is one change, however many keys it takes.
    if (!(texts && key === changedKey)) before = files;
    changedKey = key;
    files = new Map(shown.files.map((file) => [file.path, file]));
    if (key === undefined) before = files;
    if (!files.has(open) && !before.has(open)) open = FIRST_FILE;
  }
  drawForm();
  drawTree();
  drawFile();
  const possible = shown.files !== null;
  $("command").textContent = possible ? shown.command : "";
  $("copy").disabled = $("zip").disabled = !possible;
  if (!possible) say("These answers do not go together, so the project is still that of the answers before.", true);
  else if (shown.unknown.length) say(`The link answers what is not asked: ${shown.unknown.join(", ")}.`, true);
  else describeChange();
}

function describeChange() {
  const changed = [...new Set([...files.keys(), ...before.keys()])].filter(changeOf);
  if (before === files) return say(`${files.size} files`);
  say(`The last change made a difference in ${changed.length} of ${files.size} files${changed.length ? ":" : "."}`);
  for (const path of changed) {
    const button = element("button", { type: "button", textContent: path });
    button.addEventListener("click", () => openFile(path));
    $("status").append(" ", button);
  }
}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

// ---- the form ----
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function drawForm() {
  if ($("form").children.length !== shown.questions.length) {
    $("form").replaceChildren(...shown.questions.map((question) => makeQuestion(question)));
  }
  for (const question of shown.questions) refresh(question);
}

function makeQuestion(question) {
  const id = `question-${question.key}`;
  const problem = element("p", { className: "problem", id: `${id}-problem` });
  if (!question.choices.length) {
    const input = element("input", { type: "text", id, name: question.key, spellcheck: false });
    input.setAttribute("aria-describedby", problem.id);
    const label = element("label", { htmlFor: id, textContent: question.help });
    return element("div", { className: "question" }, label, input, problem);
  }
  const choices = question.choices.map((choice) => {
    const input = element("input", { type: "radio", name: question.key, value: choice.value });
    const [, name, about] = choice.label.match(/^(\S+)(?: \((.*)\))?$/) ?? [null, choice.label, ""];
    const small = element("small", { textContent: about ?? "" });
    const words = element("span", {}, element("code", { textContent: name }), " ", small);
    words.append(element("span", { className: "reason" }));
    return element("label", { className: "choice" }, input, words);
  });
  const legend = element("legend", { textContent: question.help });
  return element("fieldset", {}, legend, ...choices, problem);
}

function refresh(question) {
  const inputs = [...$("form").querySelectorAll(`[name="${question.key}"]`)];
  if (question.choices.length) {
    question.choices.forEach((choice, number) => {
      const input = inputs[number];
      input.checked = choice.value === question.value;
      input.disabled = choice.reason !== "" && !input.checked;
      const label = input.closest("label");
      label.classList.toggle("impossible", choice.reason !== "");
      label.querySelector(".reason").textContent = choice.reason && !input.checked ? ` – ${choice.reason}` : "";
    });
  } else if (document.activeElement !== inputs[0]) {
    inputs[0].value = question.value;
  }
  inputs.forEach((input) => input.toggleAttribute("aria-invalid", question.problem !== ""));
  $("form").querySelector(`[id="question-${question.key}-problem"]`).textContent = question.problem;
}

function answer(key, value) {
  const question = shown.questions.find((each) => each.key === key);
  if (value === question.default) delete answers[key];
  else answers[key] = value;
  update(key);
}

let typing;
$("form").addEventListener("input", ({ target }) => {
  clearTimeout(typing);
  const wait = target.type === "text" ? PAUSE : 0;
  typing = setTimeout(() => answer(target.name, target.value), wait);
});
$("form").addEventListener("submit", (event) => event.preventDefault());

// ---- the tree ----
function changeOf(path) {
  const [old, now] = [before.get(path), files.get(path)];
  if (!old) return "new";
  if (!now) return "gone";
  return old.text === now.text && old.size === now.size && old.executable === now.executable ? "" : "changed";
}

function rows() {
  const paths = [...new Set([...files.keys(), ...before.keys()])];
  const folder = (path) => path.slice(0, path.lastIndexOf("/") + 1);
  const folders = new Set(paths.flatMap((path) => [...path.matchAll(/\//g)].map((found) => path.slice(0, found.index + 1))));
  const inside = (at) => [
    ...paths.filter((path) => folder(path) === at).sort().map((path) => ({ path, level: path.split("/").length - 1 })),
    ...[...folders].filter((each) => folder(each.slice(0, -1)) === at).sort().flatMap((each) => [
      { path: each, level: each.split("/").length - 2, folder: true },
      ...(folded.has(each) ? [] : inside(each)),
    ]),
  ];
  return inside("");
}

function drawTree() {
  const focused = $("tree").contains(document.activeElement) ? document.activeElement.dataset.path : null;
  const items = rows().map(({ path, level, folder }) => {
    const name = path.replace(/\/$/, "").split("/").pop() + (folder ? "/" : "");
    const item = element("div", { role: "treeitem", tabIndex: path === open ? 0 : -1 }, element("span", { textContent: name }));
    item.dataset.path = path;
    item.style.setProperty("--level", level);
    item.setAttribute("aria-level", level + 1);
    if (folder) item.setAttribute("aria-expanded", !folded.has(path));
    else item.setAttribute("aria-selected", path === open);
    const change = folder ? changedWithin(path) : changeOf(path);
    item.firstChild.classList.toggle("gone", change === "gone");
    if (change) item.append(element("span", { className: "mark", textContent: change }));
    return item;
  });
  $("tree").replaceChildren(...items);
  if (!items.some((item) => item.tabIndex === 0)) items[0].tabIndex = 0;
  if (focused) items.find((item) => item.dataset.path === focused)?.focus();
}

// A folder shows it only where its files do not.
function changedWithin(folder) {
  const within = [...new Set([...files.keys(), ...before.keys()])].filter((path) => path.startsWith(folder));
  return folded.has(folder) && within.some(changeOf) ? "changed" : "";
}

function choose(item) {
  const { path } = item.dataset;
  if (item.hasAttribute("aria-expanded")) {
    if (!folded.delete(path)) folded.add(path);
    drawTree();
  } else {
    openFile(path);
  }
  [...$("tree").children].find((each) => each.dataset.path === path).focus();
}

function openFile(path) {
  open = path;
  drawTree();
  drawFile();
  writeLink();
}

$("tree").addEventListener("click", ({ target }) => {
  const item = target.closest("[role=treeitem]");
  if (item) choose(item);
});
$("tree").addEventListener("keydown", (event) => {
  const items = [...$("tree").children];
  const at = items.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
  const expanded = event.target.getAttribute("aria-expanded");
  const fold = (event.key === "ArrowLeft" && expanded === "true") || (event.key === "ArrowRight" && expanded === "false");
  if (items[to]) {
    event.target.tabIndex = -1;
    items[to].tabIndex = 0;
    items[to].focus();
  } else if (event.key === "Enter" || event.key === " " || fold) choose(event.target);
  else return;
  event.preventDefault();
});

// ---- the file ----
function linesOf(text, path) {
  const language = LANGUAGES[path.split(".").pop()];
  const escaped = element("i", { textContent: text }).innerHTML;
  const html = language ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped;
  let spans = []; // those that are open at the end of a line begin again in the next
  return html.replace(/\n$/, "").split("\n").map((line) => {
    const start = spans.join("");
    for (const [tag] of line.matchAll(/<span[^>]*>|<\/span>/g)) tag === "</span>" ? spans.pop() : spans.push(tag);
    return start + line + "</span>".repeat(spans.length);
  });
}

function row(number, html, className = "") {
  const code = element("code");
  code.innerHTML = html; // from highlight.js, which escapes what it is given
  const sign = { added: "+", removed: "−" }[className] ?? "";
  return element("div", { className: `row ${className}` }, element("span", { className: "number", textContent: sign || number }), code);
}

async function drawFile() {
  const path = open;
  const [old, now] = [before.get(path), files.get(path)];
  const file = now ?? old;
  const about = `${file.size.toLocaleString("en")} bytes${file.executable ? ", executable" : ""}`;
  const change = changeOf(path);
  const note = change ? `${about}, ${change === "new" ? "new" : change === "gone" ? "gone" : "changed"}` : about;
  $("path").replaceChildren(path, element("small", { textContent: note }));
  if (file.text === null) {
    $("code").replaceChildren(element("p", { className: "note", textContent: "Data, not text: the zip has it." }));
    return;
  }
  const blocks = await blocksOf(path, old, now);
  if (path !== open || now !== files.get(path) || old !== before.get(path)) return;
  const [was, is] = [old, now].map((each) => (each && each.text !== null ? linesOf(each.text, path) : []));
  const made = blocks.flatMap(([tag, i1, i2, j1, j2]) => {
    if (tag === "equal") return is.slice(j1, j2).map((line, at) => row(j1 + at + 1, line));
    const removed = was.slice(i1, i2).map((line) => row("", line, "removed"));
    return [...removed, ...is.slice(j1, j2).map((line, at) => row(j1 + at + 1, line, "added"))];
  });
  const scrolled = $("code").dataset.path === path ? $("code").scrollTop : 0;
  $("code").dataset.path = path;
  $("code").replaceChildren(element("div", { className: "lines" }, ...made));
  const firstChange = $("code").querySelector(".added, .removed");
  $("code").scrollTop = scrolled;
  if (firstChange) firstChange.scrollIntoView({ block: "nearest" });
}

async function blocksOf(path, old, now) {
  const lines = (file) => (file ? file.text.replace(/\n$/, "").split("\n").length : 0);
  if (!now) return [["delete", 0, lines(old), 0, 0]];
  if (old && old !== now && old.text !== null && old.text !== now.text) return ask("compare", old.text, now.text);
  return [["equal", 0, 0, 0, lines(now)]];
}

// ---- links, the command and the zip ----
function writeLink() {
  const words = new URLSearchParams(answers);
  if (open !== FIRST_FILE) words.set("file", open);
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
}

function readLink() {
  const { file, ...rest } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  answers = rest;
  open = file ?? FIRST_FILE;
}

$("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(shown.command);
  say("The command is in the clipboard.");
});
$("zip").addEventListener("click", async () => {
  const first = !worker;
  if (first) say("Loading Python …");
  try {
    const bytes = await ask("archive", JSON.stringify(answers));
    const url = URL.createObjectURL(new Blob([bytes], { type: "application/zip" }));
    element("a", { href: url, download: "myproj.zip" }).click();
    URL.revokeObjectURL(url);
    if (first) describeChange();
  } catch (error) {
    say(`No zip: ${error.message}`, true);
  }
});
addEventListener("hashchange", () => {
  readLink();
  update();
});

const initial = await (await fetch("default.json")).json();
readLink();
take(initial, undefined);
readLink(); // its file need not be in the first project
if (Object.keys(answers).length) update();
