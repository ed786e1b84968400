// What the page knows without Python: the project of the defaults, and what each choice alone changes in it.
const get = async (name) => {
  const response = await fetch(name);
  if (!response.ok) throw new Error(`${name} did not come (${response.status})`);
  return response.json();
};

export const first = await get("default.json");
let steps; // the files that each choice changes

export function loadSteps() {
  steps ??= get("steps.json").catch(() => (steps = undefined));
  return steps;
}

// Returns the form and the command of some answers. Without a command, only Python knows what they give.
export function formOf(answers) {
  const isDefault = ({ key, choices, default: value }) => choices.length > 0 && answers[key] === value;
  const given = first.questions.filter((question) => question.key in answers && !isDefault(question));
  const changes = given.map(({ key }) => first.steps[`${key}=${answers[key]}`]);
  let certain = !changes.includes(undefined); // texts, and what is no choice, are not among the steps
  const questions = first.questions.map((question) => {
    const versions = changes.map((step) => step?.find(({ key }) => key === question.key) ?? question);
    const changed = (part) => [...new Set(versions.map(part))].filter((each) => each !== part(question));
    const firstOf = (part) => changed(part)[0] ?? part(question); // copier.yml has reasons in the order of the questions
    const merge = (part) => {
      if (changed(part).length > 1) certain = false;
      return firstOf(part);
    };
    const choices = question.choices.map((choice, at) => ({
      ...choice,
      label: merge(({ choices: these }) => these[at].label),
      reason: firstOf(({ choices: these }) => these[at].reason),
    }));
    const merged = { ...question, choices, help: merge(({ help }) => help), default: merge((each) => each.default) };
    if (choices.length && merged.default !== question.default) certain = false;
    const value = answers[question.key] ?? merged.default;
    return { ...merged, value, problem: choices.find((choice) => choice.value === value)?.reason ?? "" };
  });
  return {
    questions,
    unknown: Object.keys(answers).filter((key) => !questions.some((question) => question.key === key)),
    command: certain ? commandOf(given.map(({ key }) => `${key}=${answers[key]}`)) : null,
    folder: first.folder,
  };
}

function commandOf(given) {
  return first.command.replace("--defaults", ["--defaults", ...given.map((each) => `--data ${each}`)].join(" "));
}

// Returns all that Python would say of the answers, or null if only Python can.
export async function projectOf(answers) {
  const form = formOf(answers);
  if (form.command === null) return null;
  if (form.questions.some(({ problem }) => problem)) return { ...form, files: null };
  const given = form.questions.filter(({ value, default: usual }) => value !== usual);
  if (given.length === 0) return { ...form, files: first.files };
  const step = given.length === 1 && (await loadSteps())?.[`${given[0].key}=${given[0].value}`];
  if (!step) return null;
  const replaced = new Set([...step.gone, ...step.files.map(({ path }) => path)]);
  const files = [...first.files.filter(({ path }) => !replaced.has(path)), ...step.files];
  return { ...form, files: files.sort((one, other) => (one.path < other.path ? -1 : 1)) };
}
