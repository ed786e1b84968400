// The elements of the page, and how new ones are made.
export const $ = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function button(text, act, properties = {}) {
  const made = element("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", act);
  return made;
}

// Copies a text, and says so where the button is.
export async function copy(text, made) {
  await navigator.clipboard.writeText(text);
  made.textContent = "Copied";
  setTimeout(() => (made.textContent = "Copy"), 1500);
}

export function save(content, name, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  element("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
