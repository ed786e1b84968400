// What differs between two projects, and between two texts.
export function projectFrom({ files, questions, folder }) {
  const byPath = new Map(files.map((file) => [file.path, file]));
  return { files: byPath, folder, package: questions.find(({ key }) => key === "package_name").value };
}

// Returns a row for each file: as it was, as it is, and the change. The files of a renamed package are the same files.
export function changesBetween(before, after) {
  const renamed = before.package === after.package ? null : [`${before.package}/`, `${after.package}/`];
  const rows = new Map();
  for (const [path, was] of before.files) {
    const now = renamed && path.startsWith(renamed[0]) ? renamed[1] + path.slice(renamed[0].length) : path;
    rows.set(now, { was, now: null, change: "gone" });
  }
  for (const [path, now] of after.files) {
    const was = rows.get(path)?.was ?? null;
    rows.set(path, { was, now, change: was === null ? "new" : same(was, now) ? "" : "changed" });
  }
  return { rows, renamed };
}

function same(one, other) {
  return one.text === other.text && one.size === other.size && one.executable === other.executable;
}

export const linesOf = (file) => (file?.text ? file.text.replace(/\n$/, "").split("\n") : []);

// Returns the lines of both: [sign, number before, number after], both from 0.
export function linesBetween(was, now) {
  let [i, j] = [0, 0];
  return Diff.diffArrays(linesOf(was), linesOf(now)).flatMap(({ added, removed, count }) =>
    Array.from({ length: count }, () => (added ? ["+", i, j++] : removed ? ["-", i++, j] : [" ", i++, j++])),
  );
}
