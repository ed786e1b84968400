// The answers, and what the page shows of them: at once what was shipped, else what Python renders.
import { changesBetween, projectFrom } from "./changes.js";
import { $, button, copy, element, save } from "./elements.js";
import { drawFile } from "./file.js";
import { complaint, drawForm, onAnswer } from "./form.js";
import { ask, load, python } from "./python.js";
import { first, formOf, loadSteps, projectOf } from "./shipped.js";
import { drawTree } from "./tree.js";

const FIRST_FILE = "train.py";
const LISTED = 4; // changed files that are named below the command

const usual = projectFrom(first);
let answers = {}; // those that differ from the defaults, as texts
let open = FIRST_FILE;
let shown; // the form, the command and, if they are known, the files of these answers
let project = null; // the last one that could be rendered
let previous = null; // the one before the last change
let changedKey; // the question that was answered last
let latest = 0; // number of the newest update
let packing = false; // whether the reader waits for a zip

// ---- from answers to files ----
async function update(key) {
  const mine = ++latest;
  show(formOf(answers));
  try {
    let result = await projectOf(answers);
    if (!result && mine === latest) {
      wait(true);
      result = await ask("show", answers);
    }
    if (mine === latest) take(result, key);
  } catch (error) {
    if (mine === latest && python.state !== "failed") say(`This could not be rendered: ${error.message}`, true);
  }
}

// Shows the form and the command. A command that is not known yet cannot be copied.
function show(form) {
  shown = form;
  drawForm(shown.questions);
  const bad = shown.questions.some(({ problem }) => problem);
  $("command").textContent = bad ? "" : (shown.command ?? "Python checks the answers …");
  $("copy").disabled = bad || shown.command === null;
  $("zip").disabled = bad;
  $("reset").disabled = Object.keys(answers).length === 0;
}

function take(result, key) {
  wait(false);
  show(result);
  if (!result.files) {
    $("panes").hidden = project === null;
    return complain();
  }
  const texts = result.questions.find((question) => question.key === key)?.choices.length === 0;
  const now = projectFrom(result);
  // One text is one change, however many keys it takes.
  if (!(texts && key === changedKey)) previous = project ?? now;
  changedKey = key;
  if (project && open.startsWith(`${project.package}/`)) {
    const moved = now.package + open.slice(project.package.length);
    if (now.files.has(moved)) open = moved;
  }
  project = now;
  $("panes").hidden = false;
  draw();
  describe();
}

// While Python renders, nothing is shown as the files of these answers that are not.
function wait(waiting) {
  $("panes").classList.toggle("stale", waiting);
  $("loading").hidden = !waiting || python.state === "ready";
  if (waiting && python.state !== "ready") {
    $("panes").hidden = true;
    say("");
  }
}

python.addEventListener("change", () => {
  const { state, share, problem } = python;
  const text = { failed: `Python could not be loaded: ${problem}.`, loading: "Loading Python, which renders these answers" };
  if (packing && state === "loading") $("zip").textContent = `Python: ${Math.round(share * 100)} %`;
  $("loading").firstElementChild.textContent = text[state] ?? "Python renders these answers";
  $("progress").hidden = state === "failed";
  $("retry").hidden = state !== "failed";
  if (share < 1) $("progress").value = share;
  else $("progress").removeAttribute("value"); // it starts, and does not say how far it is
});
$("retry").addEventListener("click", () => update(changedKey));

// ---- what differs ----
function compared() {
  const base = { last: previous, defaults: usual, off: project }[$("compare").value];
  return changesBetween(base, project);
}

function draw() {
  const { rows } = compared();
  if (!rows.has(open)) open = FIRST_FILE;
  drawTree(rows, open, openFile);
  drawFile(open, rows.get(open), openFile);
}

function describe() {
  const { rows, renamed } = compared();
  const hidden = (path) => path.startsWith(".");
  const paths = [...rows].filter(([, { change }]) => change).map(([path]) => path);
  const changed = paths.sort((one, other) => hidden(one) - hidden(other));
  if (shown.unknown.length) {
    return say(`The link answers what is not asked: ${shown.unknown.join(", ")}. `, true, button("Remove it", removeUnknown));
  }
  if (!changed.length && !renamed) return say(`${rows.size} files`);
  const folder = renamed ? `${renamed[0]} is now ${renamed[1]}. ` : "";
  const named = changed.slice(0, LISTED).map((path) => button(path, () => openFile(path)));
  const more = changed.length > LISTED ? ` and ${changed.length - LISTED} more` : "";
  const than = $("compare").value === "defaults" ? "from the defaults" : "from the last answer";
  say(`${folder}${changed.length} of ${rows.size} files differ ${than}: `, false, ...named, more);
}

function complain() {
  const kept = project ? " The files are still those of the answers before." : "";
  const bad = shown.questions.filter(({ problem }) => problem);
  say("", true, ...bad.map((question) => complaint(question, shown.questions, answer)), kept);
}

function say(text, bad = false, ...more) {
  $("status").replaceChildren(text, ...more);
  $("status").classList.toggle("bad", bad);
}

// ---- what the reader does ----
function answer(key, value) {
  const question = shown.questions.find((each) => each.key === key);
  const isDefault = value === question.default && shown.command !== null; // else the default may be another one
  if (isDefault) delete answers[key];
  else answers[key] = value;
  writeLink(key === changedKey && question.choices.length === 0);
  update(key);
}

function removeUnknown() {
  for (const key of shown.unknown) delete answers[key];
  writeLink();
  update();
}

function openFile(path) {
  open = path;
  writeLink();
  draw();
}

function goToFile(event) {
  event.preventDefault(); // its address would replace the answers
  $("file").scrollIntoView({ block: "start" });
  $("file").focus({ preventScroll: true });
}

onAnswer(answer);
$("skip").addEventListener("click", goToFile);
$("files").addEventListener("click", goToFile);
$("reset").addEventListener("click", () => {
  answers = {};
  writeLink();
  update();
});
$("compare").addEventListener("change", () => {
  writeLink(true);
  draw();
  if (shown.files) describe();
});
$("copy").addEventListener("click", ({ target }) => copy(shown.command, target));
$("zip").addEventListener("click", async ({ target }) => {
  const { folder } = shown;
  packing = true;
  target.textContent = "Packing …";
  try {
    save(await ask("archive", answers), `${folder}.zip`, "application/zip");
  } catch (error) {
    say(`No zip: ${error.message}`, true);
  }
  packing = false;
  target.textContent = "Download zip";
});

// ---- the link ----
function writeLink(replaces = false) {
  const words = new URLSearchParams(answers);
  if (open !== FIRST_FILE) words.set("file", open);
  if ($("compare").value !== "last") words.set("compare", $("compare").value);
  const link = words.size ? `#${words}` : location.pathname + location.search;
  if (new URL(link, location).href === location.href) return;
  history[replaces ? "replaceState" : "pushState"](null, "", link);
}

function readLink() {
  const { file, compare, ...rest } = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  answers = rest;
  open = file ?? FIRST_FILE;
  $("compare").value = ["defaults", "off"].includes(compare) ? compare : "last";
}

addEventListener("hashchange", () => {
  const before = JSON.stringify(answers);
  readLink();
  if (!project || JSON.stringify(answers) !== before) return update();
  draw();
  if (shown.files) describe();
});

readLink();
update();
// Python is loaded while nobody waits, unless the reader wants to save data.
const idle = window.requestIdleCallback ?? ((act) => setTimeout(act, 500));
const loadOnce = () => python.state === "absent" && load(); // after a failure, the reader decides
if (!navigator.connection?.saveData) idle(() => loadSteps().then(loadOnce));
