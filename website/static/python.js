// Python in a worker: how far it is loaded, and what it answers.
export const python = Object.assign(new EventTarget(), { state: "absent", share: 0, problem: "" });

let worker;
let sent = 0;
const waiting = new Map();

export function load() {
  if (python.state === "loading" || python.state === "ready") return;
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => receive(data);
  worker.onerror = () => fail("the network did not bring it");
  become({ state: "loading", share: 0, problem: "" });
}

export function ask(name, answers) {
  load();
  return new Promise((resolve, reject) => {
    waiting.set(++sent, { resolve, reject });
    worker.postMessage({ number: sent, name, given: JSON.stringify(answers) });
  });
}

function receive({ share, ready, problem, number, result, error }) {
  if (share !== undefined) return become({ share });
  if (ready) return become({ state: "ready" });
  if (problem !== undefined) return fail(problem);
  const { resolve, reject } = waiting.get(number);
  waiting.delete(number);
  error === undefined ? resolve(result) : reject(new Error(error));
}

function fail(problem) {
  worker.terminate();
  worker.onmessage = worker.onerror = null; // what it has sent may still be on its way
  become({ state: "failed", problem });
  for (const { reject } of waiting.values()) reject(new Error(problem));
  waiting.clear();
}

function become(changed) {
  Object.assign(python, changed);
  python.dispatchEvent(new Event("change"));
}
