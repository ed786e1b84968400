// The questions, and what is wrong with an answer.
import { $, button, element } from "./elements.js";

const PAUSE = 150; // milliseconds without a key, until a text is rendered

export function drawForm(questions) {
  if ($("questions").children.length !== questions.length) $("questions").replaceChildren(...questions.map(makeQuestion));
  questions.forEach(refresh);
}

function makeQuestion({ key, help, choices }) {
  const id = `question-${key}`;
  const problem = element("p", { className: "problem", id: `${id}-problem` });
  if (!choices.length) {
    const input = element("input", { type: "text", id, name: key, spellcheck: false });
    input.setAttribute("aria-describedby", problem.id);
    return element("div", { className: "question" }, element("label", { htmlFor: id, textContent: help }), input, problem);
  }
  const labels = choices.map(({ value, label }) => {
    const [, name, about] = label.match(/^(\S+)(?: \((.*)\))?$/) ?? [null, label, ""];
    const words = element("span", {}, element("code", { textContent: name }), " ");
    words.append(element("small", { textContent: about ?? "" }), element("span", { className: "reason" }));
    return element("label", { className: "choice" }, element("input", { type: "radio", name: key, value }), words);
  });
  return element("fieldset", {}, element("legend", { textContent: help }), ...labels, problem);
}

const inputsOf = (key) => [...$("questions").querySelectorAll(`[name="${key}"]`)];

function refresh({ key, choices, value, problem }) {
  const inputs = inputsOf(key);
  choices.forEach((choice, at) => {
    const input = inputs[at];
    input.checked = choice.value === value;
    input.disabled = choice.reason !== "" && !input.checked;
    const label = input.closest("label");
    label.classList.toggle("impossible", choice.reason !== "");
    label.querySelector(".reason").textContent = input.disabled ? ` – ${choice.reason}` : "";
  });
  if (!choices.length && document.activeElement !== inputs[0]) inputs[0].value = value;
  inputs.forEach((input) => input.toggleAttribute("aria-invalid", problem !== ""));
  $(`question-${key}-problem`).textContent = problem;
}

// Calls answer(key, value) for each answer of the reader.
export function onAnswer(answer) {
  let typing;
  $("form").addEventListener("input", ({ target }) => {
    clearTimeout(typing);
    const give = () => answer(target.name, target.value);
    if (target.type === "text") typing = setTimeout(give, PAUSE);
    else give();
  });
  $("form").addEventListener("submit", (event) => event.preventDefault());
}

// Returns a sentence on a bad answer, with a link to its question, and buttons with what would be possible.
export function complaint(question, questions, answer) {
  const { key, value, problem } = question;
  const focus = () => (inputsOf(key).find((input) => input.checked) ?? inputsOf(key)[0]).focus();
  const fixes = fixesOf(question, questions).map(([other, fixed]) => {
    const clear = element("code", { textContent: other === key ? fixed : `${other}=${fixed}` });
    return element("span", {}, " ", button("Use ", () => answer(other, fixed), { className: "fix" }), clear);
  });
  fixes.forEach((fix) => fix.children[0].append(fix.children[1]));
  return element("span", {}, button(key, focus), ` cannot be ${value || "empty"}: ${problem}.`, ...fixes);
}

// The answers of other questions that the problem names, an answer that it proposes, and the default.
function fixesOf({ key, value, default: usual, problem }, questions) {
  const named = [...problem.matchAll(/\b(\w+)=(\w+)/g)].map(([, other, wanted]) => [other, wanted]);
  const possible = named.filter(([other, wanted]) =>
    questions.some((each) => each.key === other && each.choices.some((choice) => choice.value === wanted)),
  );
  const proposed = [...problem.matchAll(/\btry (\w+)/g)].map(([, wanted]) => [key, wanted]);
  return [...possible, ...proposed, ...(usual === value ? [] : [[key, usual]])];
}
