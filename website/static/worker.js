// Python in a thread of its own: it renders the template, whatever the answers are.
import { loadPyodide } from "./pyodide.mjs";

const here = (name) => new URL(name, import.meta.url);
const fetched = async (name) => {
  const response = await fetch(here(name));
  if (!response.ok) throw new Error(`${name} did not come (${response.status})`);
  return response;
};

async function start() {
  const [python, engine, settings] = await Promise.all([
    loadPyodide({ indexURL: here("./").href }),
    fetched("engine.tar.gz").then((response) => response.arrayBuffer()),
    fetched("settings.json").then((response) => response.json()),
  ]);
  python.unpackArchive(engine, "gztar", { extractDir: "/engine" });
  python.globals.set("source", settings.source);
  python.globals.set("commit", settings.commit ?? undefined);
  python.runPython(`
import sys
from pathlib import Path
sys.path.insert(0, "/engine")
from website.preview import Preview, compare
from website.render import Template
preview = Preview(Template(Path("/engine/template"), source, commit))
`);
  return {
    show: python.globals.get("preview").show,
    archive: python.globals.get("preview").archive,
    compare: python.globals.get("compare"),
  };
}

const started = start();

onmessage = async ({ data: { number, name, given } }) => {
  try {
    let result = (await started)[name](...given);
    if (name === "archive") {
      const bytes = result.toJs();
      result.destroy();
      result = bytes;
    } else {
      result = JSON.parse(result);
    }
    postMessage({ number, result });
  } catch (error) {
    postMessage({ number, error: String(error.message ?? error) });
  }
};
