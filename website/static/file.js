// One file: its lines with what changed in them, or its text as Markdown shows it.
import { linesBetween, linesOf } from "./changes.js";
import { $, copy, element, save } from "./elements.js";

const LANGUAGES = { py: "python", sh: "bash", yml: "yaml", yaml: "yaml", toml: "ini", md: "markdown" };
let shown; // the path, its row, and what opens another file
let rendered = null; // whether Markdown is rendered: true, false, or null for files that did not change
let markdown; // the renderer, once a page needs it

export async function drawFile(path, row, openFile) {
  shown = { path, row, openFile };
  const { was, now, change } = row;
  const file = now ?? was;
  const about = `${file.size.toLocaleString("en")} bytes${file.executable ? ", executable" : ""}`;
  $("path").replaceChildren(path, element("small", { textContent: change ? `${about}, ${change}` : about }));
  $("copy-file").hidden = $("save-file").hidden = file.text === null;
  const asMarkdown = file.text !== null && path.endsWith(".md");
  const render = asMarkdown && (rendered ?? !change);
  $("view").hidden = !asMarkdown;
  $("view").textContent = render ? "Source" : "Rendered";
  const scrolled = $("code").dataset.path === path ? $("code").scrollTop : 0;
  const content = file.text === null ? note("Data, not text: the zip has it.") : render ? await page(file.text) : code(path, row);
  if (shown.path !== path || shown.row !== row) return;
  $("code").dataset.path = path;
  $("code").replaceChildren(content);
  $("code").scrollTop = scrolled;
  const firstChange = $("code").querySelector(".added, .removed");
  if (firstChange) scrollTo(firstChange);
}

const note = (textContent) => element("p", { className: "note", textContent });

// Scrolls the file alone: the page stays where the reader is.
function scrollTo(target) {
  const box = $("code");
  const top = target.offsetTop;
  if (top < box.scrollTop || top + target.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top - 60;
}

// ---- lines ----
function code(path, { was, now }) {
  const [before, after] = [was, now].map((file) => highlighted(linesOf(file).join("\n"), path));
  const made = linesBetween(was, now).map(([sign, i, j]) => {
    if (sign === "-") return line("−", before[i], "removed");
    return sign === "+" ? line("+", after[j], "added") : line(j + 1, after[j]);
  });
  return element("div", { className: "lines" }, ...made);
}

function highlighted(text, path) {
  const language = LANGUAGES[path.split(".").pop()];
  const escaped = element("i", { textContent: text }).innerHTML;
  const html = language ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escaped;
  let spans = []; // those that are open at the end of a line begin again in the next
  return html.split("\n").map((line) => {
    const start = spans.join("");
    for (const [tag] of line.matchAll(/<span[^>]*>|<\/span>/g)) tag === "</span>" ? spans.pop() : spans.push(tag);
    return start + line + "</span>".repeat(spans.length);
  });
}

function line(number, html, className = "") {
  const made = element("code");
  made.innerHTML = html; // from highlight.js, which escapes what it is given
  return element("div", { className: `row ${className}` }, element("span", { className: "number", textContent: number }), made);
}

// Browsers leave out empty rows of a table.
$("code").addEventListener("copy", (event) => {
  const selected = getSelection().getRangeAt(0).cloneContents();
  const lines = [...selected.querySelectorAll(".row")].map((row) => row.querySelector("code")?.textContent ?? "");
  if (lines.length < 2) return;
  event.clipboardData.setData("text/plain", lines.join("\n"));
  event.preventDefault();
});

// ---- Markdown ----
async function page(text) {
  markdown ??= (await import("./markdown-it.esm.min.mjs")).default({ html: false }).disable("image");
  const made = element("div", { className: "markdown" });
  made.innerHTML = markdown.render(text); // without HTML of the text
  for (const table of made.querySelectorAll("pre, table")) table.tabIndex = 0; // they may be wider than a phone
  return made;
}

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9 _-]/g, "").replaceAll(" ", "-");

$("code").addEventListener("click", (event) => {
  const link = event.target.closest(".markdown a")?.getAttribute("href");
  if (!link || /^[a-z]+:/.test(link)) return;
  event.preventDefault();
  const [path, place] = link.split("#");
  if (path) shown.openFile(path);
  else [...$("code").querySelectorAll("h2, h3, h4")].find((heading) => slug(heading.textContent) === place)?.scrollIntoView();
});

// ---- what the reader does with it ----
const textNow = () => (shown.row.now ?? shown.row.was).text;
$("copy-file").addEventListener("click", ({ target }) => copy(textNow(), target));
$("save-file").addEventListener("click", () => save(textNow(), shown.path.split("/").pop(), "text/plain"));
$("view").addEventListener("click", ({ target }) => {
  rendered = target.textContent === "Rendered";
  drawFile(shown.path, shown.row, shown.openFile);
});
