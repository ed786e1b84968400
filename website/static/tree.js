// The list of files: a tree on a desk, a select on a phone.
import { $, element } from "./elements.js";

const folded = new Set();
let drawn; // what was drawn last: rows by path, the open path, and what opens another one

export function drawTree(rows, open, openFile) {
  drawn = { rows, open, openFile };
  const wanted = $("find").value.toLowerCase();
  const paths = [...rows.keys()].filter((path) => path.toLowerCase().includes(wanted));
  const focused = $("tree").contains(document.activeElement) ? document.activeElement.dataset.path : null;
  const items = entries(paths, wanted !== "").map(makeItem);
  $("tree").replaceChildren(...items);
  if (items.length && !items.some((item) => item.tabIndex === 0)) items[0].tabIndex = 0;
  if (focused) items.find((item) => item.dataset.path === focused)?.focus();
  drawSelect();
}

const folderOf = (path) => path.slice(0, path.lastIndexOf("/") + 1);

// Returns the files and folders in their order: files first, and those of folded folders only if one is looked for.
function entries(paths, all) {
  const folders = new Set(paths.flatMap((path) => [...path.matchAll(/\//g)].map(({ index }) => path.slice(0, index + 1))));
  const inside = (at) => [
    ...paths.filter((path) => folderOf(path) === at).sort(),
    ...[...folders].filter((each) => folderOf(each.slice(0, -1)) === at).sort()
      .flatMap((each) => [each, ...(folded.has(each) && !all ? [] : inside(each))]),
  ];
  return inside("");
}

function makeItem(path) {
  const folder = path.endsWith("/");
  const name = path.replace(/\/$/, "").split("/").pop() + (folder ? "/" : "");
  const item = element("div", { role: "treeitem", tabIndex: path === drawn.open ? 0 : -1 }, element("span", { textContent: name }));
  item.dataset.path = path;
  const level = path.replace(/\/$/, "").split("/").length;
  item.style.setProperty("--level", level - 1);
  item.setAttribute("aria-level", level);
  if (folder) item.setAttribute("aria-expanded", !folded.has(path));
  else item.setAttribute("aria-selected", path === drawn.open);
  const change = folder ? changedWithin(path) : drawn.rows.get(path).change;
  item.firstChild.classList.toggle("gone", change === "gone");
  if (change) item.append(element("span", { className: "mark", textContent: change }));
  return item;
}

// A folder shows it only where its files do not.
function changedWithin(folder) {
  const within = [...drawn.rows].filter(([path]) => path.startsWith(folder));
  return folded.has(folder) && within.some(([, { change }]) => change) ? "changed" : "";
}

function drawSelect() {
  const options = [...drawn.rows].map(([path, { change }]) => [path, change ? `${path} (${change})` : path]).sort();
  const byFolder = Map.groupBy(options, ([path]) => folderOf(path));
  const groups = [...byFolder].sort().map(([folder, these]) => {
    const made = these.map(([value, textContent]) => element("option", { value, textContent }));
    return folder ? element("optgroup", { label: folder }, ...made) : made;
  });
  $("select").replaceChildren(...groups.flat());
  $("select").value = drawn.open;
}

function choose(item) {
  const { path } = item.dataset;
  if (item.hasAttribute("aria-expanded")) {
    if (!folded.delete(path)) folded.add(path);
    drawTree(drawn.rows, drawn.open, drawn.openFile);
  } else {
    drawn.openFile(path);
  }
  [...$("tree").children].find((each) => each.dataset.path === path).focus();
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
$("find").addEventListener("input", () => drawTree(drawn.rows, drawn.open, drawn.openFile));
$("find").addEventListener("keydown", ({ key }) => {
  const found = [...$("tree").children].find((item) => !item.hasAttribute("aria-expanded"));
  if (key === "Enter" && found) drawn.openFile(found.dataset.path);
});
$("select").addEventListener("change", ({ target }) => drawn.openFile(target.value));
