// Python in a thread of its own: it renders the template, whatever the answers are.
import { loadPyodide } from "./pyodide.mjs";

const here = (name) => new URL(name, import.meta.url);
const plainFetch = fetch;
let expected = 0; // bytes of all that is fetched
let received = 0;

function counted(chunk, controller) {
  received += chunk.length;
  postMessage({ share: Math.min(received / expected, 1) });
  controller.enqueue(chunk);
}

const giveUp = (error) => postMessage({ problem: String(error.message ?? error) });

// Pyodide fetches its parts by this, too, and waits for ever for one that does not come.
self.fetch = async (address, options) => {
  try {
    const response = await plainFetch(address, options);
    if (!response.ok) throw new Error(`${String(address).split("/").pop()} did not come (${response.status})`);
    const { readable, writable } = new TransformStream({ transform: counted });
    response.body.pipeTo(writable).catch(giveUp);
    return new Response(readable, response);
  } catch (error) {
    giveUp(error);
    throw error;
  }
};

async function start() {
  const settings = await (await plainFetch(here("settings.json"))).json();
  expected = settings.bytes;
  const [python, engine] = await Promise.all([
    loadPyodide({ indexURL: here("./").href }),
    fetch(here("engine.tar.gz")).then((response) => response.arrayBuffer()),
  ]);
  python.unpackArchive(engine, "gztar", { extractDir: "/engine" });
  python.globals.set("source", settings.source);
  python.globals.set("commit", settings.commit ?? undefined);
  python.runPython(`
import sys
from pathlib import Path
sys.path.insert(0, "/engine")
from website.preview import Preview
from website.render import Template
preview = Preview(Template(Path("/engine/template"), source, commit))
preview.show("{}")  # compiles the files of the template, while nobody waits
`);
  return python.globals.get("preview");
}

const started = start();
started.then(() => postMessage({ ready: true }), giveUp);

onmessage = async ({ data: { number, name, given } }) => {
  const preview = await started;
  try {
    let result = preview[name](given);
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
