// Draws report.html from the data that report.py writes. Everything of a run is set as text, never as HTML.
"use strict";

const LIVE = "report.js"; // beside the page while a run trains: the same data, newer
const MOST = 60; // charts; more are found by name
const SPEED = /^(samples_per_second|device\/|waiting\/|peak_memory)/;
const COLOURS = 8;
const TRAINING = "training", OF_EPOCH = "training, over an epoch";
const DEFAULTS = { x: "step", log: "", clip: "1", smooth: "0", find: "" };
const SAID = {
  running: "running", done: "done", stopped: "stopped", silent: "silent", killed: "killed", failed: "failed", refused: "refused",
  diverged: "diverged", lost: "lost a rank",
};
const EXIT_CODES = { 0: "done", 1: "failed", 2: "refused", 65: "diverged", 69: "lost", 75: "stopped" };
const RESUME = "Start again with the same command and --resume.";

let data, runs = [], charts = [];
const settings = { ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
const hidden = new Set(); // runs and kinds of curves that are switched off
let zoom = null; // what the x axis shows, if it is not all
let openedAt = performance.now(), arrived = Date.now() / 1000;

const $ = id => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child != null && child !== ""));
  return element;
}

// ---- numbers and times as people read them ----

function number(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size >= 1e15 || (size && size < 1e-4)) return value.toExponential(3).replace(/\.?0+e/, "e");
  if (size >= 1e4) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(4));
}

function short(value) {
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e15)) return String(+value.toPrecision(3)).includes("e")
    ? (+value.toPrecision(3)).toExponential() : String(+value.toPrecision(3));
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 6 }).format(value);
}

function count(value) {
  return new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
}

function duration(seconds) {
  for (const [size, unit, smaller, name] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (seconds < size) continue;
    const rest = Math.floor((seconds % size) / smaller);
    return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
  }
  return `${+seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}

function moment(seconds) {
  const two = part => String(part).padStart(2, "0");
  const day = new Date(seconds * 1000);
  return `${day.getFullYear()}-${two(day.getMonth() + 1)}-${two(day.getDate())} ${two(day.getHours())}:${two(day.getMinutes())}`;
}

function median(values) {
  const sorted = values.filter(value => value != null).sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : null;
}

// ---- what the records say ----

function read(given, place) {
  const run = { ...given, id: `run ${place}`, place, curves: [] };
  const starts = run.events.filter(event => "about" in event);
  run.start = starts.at(-1) ?? {};
  run.sets = run.start.sets ?? ["validation"];
  run.unit = run.start.unit ?? "samples";
  run.changed = run.start.changed;
  run.commit = [run.result.commit, run.start.commit].find(each => each && each !== "unknown");
  readTimes(run, starts);
  readCurves(run);
  readBest(run);
  return run;
}

function readTimes(run, starts) {
  const times = [...run.events.map(event => event.time), ...run.series.flatMap(series => series.time)].sort((a, b) => a - b);
  run.begun = times[0] ?? 0;
  run.last = times.at(-1) ?? 0;
  const pauses = starts.slice(1).map(({ time }) => [time, time - (times.findLast(each => each < time) ?? time)]);
  run.elapsed = time => pauses.reduce((left, [end, length]) => (time >= end ? left - length : left), time - run.begun);
  run.seconds = run.elapsed(run.last);
  const latest = times.filter(time => time >= (run.start.time ?? 0));
  run.gap = Math.max(0, ...latest.slice(1).map((time, i) => time - latest[i]));
  const withSamples = run.series.filter(series => series.samples);
  run.step = Math.max(0, run.result.step ?? 0, ...run.series.map(series => series.step.at(-1)), ...run.events.slice(run.events.lastIndexOf(run.start)).map(each => each.step));
  const known = new Map(withSamples.flatMap(series => series.step.map((step, i) => [step, series.samples[i]])));
  const steps = [0, ...[...known.keys()].sort((a, b) => a - b)];
  known.set(0, 0);
  run.samplesAt = known.size > 1 ? step => between(steps, known, step) : null;
  const total = name => run.result[name] ?? Math.max(0, ...run.series.flatMap(series => series[name]?.at(-1) ?? 0));
  run.samples = total("samples");
  run.units = run.unit === "samples" ? 0 : total(run.unit);
}

function between(steps, values, step) {
  let right = steps.findIndex(each => each >= step);
  if (right < 0) right = steps.length - 1;
  if (steps[right] === step || !right) return values.get(steps[right]);
  const [from, to] = [steps[right - 1], steps[right]];
  return values.get(from) + (values.get(to) - values.get(from)) * ((step - from) / (to - from));
}

function readCurves(run) {
  const kinds = [["epoch/train_", OF_EPOCH], ["train/", TRAINING], ...run.sets.map(name => [`epoch/${name}_`, name])];
  kinds.sort((a, b) => b[0].length - a[0].length);
  const skipped = new Set(["step", "time", "epoch", "samples", run.unit]);
  for (const series of run.series) {
    for (const name of Object.keys(series).filter(name => !skipped.has(name))) {
      const [prefix, kind] = kinds.find(([prefix]) => name.startsWith(prefix)) ?? ["", ""];
      const curve = { run, name, kind, metric: name.slice(prefix.length), values: series[name], series };
      if (curve.values.some(value => value != null)) run.curves.push(curve);
    }
  }
}

function readBest(run) {
  const { best, higher } = run.start;
  if (!best) return;
  const curve = run.curves.find(each => each.name === `epoch/${run.sets[0]}_${best}`);
  let step = run.result.best?.step, value = run.result.best?.[best];
  if (value == null && curve) { // of a killed run: by its records
    curve.values.forEach((each, i) => { // the first of equal ones
      if (each != null && (value == null || (higher ? each > value : each < value))) [value, step] = [each, curve.series.step[i]];
    });
  }
  const time = curve?.series.time[curve.series.step.indexOf(step)] ?? run.last;
  if (value != null) run.best = { name: `${run.sets[0]} ${best}`, metric: best, higher, value, step, time };
}

// ---- how a run is ----

function now() {
  return arrived + (performance.now() - openedAt) / 1000;
}

function stateOf(run) {
  const last = run.events.at(-1) ?? {};
  const ended = EXIT_CODES[run.result.exit_code] ?? (["started", "resumed"].includes(last.event) ? null : last.event);
  if (ended === "done") return { name: "done", look: "done" };
  if (ended === "stopped") return { name: "stopped", look: "stopped", why: `Stopped after step ${run.step.toLocaleString("en")}. ${RESUME}` };
  if (ended) return { name: ended, look: "failed", why: last.why || "The log says why." };
  if (run.abandoned) return { name: "killed", look: "failed", why: `Killed after step ${run.step.toLocaleString("en")}: no process holds its folder, and it did not say how it ended. ${RESUME}` };
  const silent = now() - Math.max(run.last, data.every ? data.written : 0);
  if (silent < Math.max(120, 3 * run.gap, 3 * data.every)) return { name: "running", look: "running" };
  return { name: "silent", look: "silent", why: `No record since ${moment(run.last)} (${duration(silent)} ago): it was killed, it hangs, or this page is an old copy. The log of its launcher says more.` };
}

function showState() {
  const states = runs.map(stateOf);
  const alone = runs.length === 1;
  $("state").hidden = !alone;
  if (alone && $("state").textContent !== SAID[states[0].name]) {
    $("state").textContent = SAID[states[0].name] ?? states[0].name;
    $("state").className = `state ${states[0].look}`;
  }
  const notes = states.flatMap(({ look, why }, i) => why ? [make("p", { class: `note ${look}` }, make("span", {}, alone ? why : `${runs[i].name}: ${why}`))] : []);
  const said = notes.map(note => note.textContent).join();
  if (said !== showState.said) $("notes").replaceChildren(...notes);
  showState.said = said;
  const follows = data.every && states.some(({ look }) => ["running", "silent"].includes(look));
  $("follow").hidden = !follows;
  document.body.classList.toggle("live", Boolean(follows && $("live").checked));
  $("fresh").textContent = !$("live").checked ? "paused" : `live, ${duration(Math.max(0, Math.round(now() - data.written)))} ago`;
  return follows;
}

// ---- headline ----

function card(title, value, ...more) {
  return make("div", { class: "card" }, make("dt", {}, title), make("dd", {}, value), ...more.filter(Boolean).map(text => make("dd", { class: "more" }, text)));
}

function speedOf(run) {
  const curve = run.curves.find(each => each.name === "samples_per_second");
  return curve && median(curve.values);
}

function showHeadline() {
  const title = runs.map(run => run.name).join(", ");
  $("title").textContent = runs.length === 1 ? title : `${runs.length} runs`;
  document.title = title;
  if (runs.length > 1) {
    $("cards").replaceChildren();
    $("runs").replaceChildren(comparison());
    return;
  }
  const [run] = runs, epoch = epochOf(run, run.best?.step), whole = count => Math.round(count).toLocaleString("en");
  const test = Object.entries(run.result.test ?? {}).find(([name]) => name === run.start.best);
  $("cards").replaceChildren(...[
    run.best && card(`best ${run.best.name}`, number(run.best.value), `at step ${whole(run.best.step)}${epoch ? `, epoch ${epoch}` : ""}`),
    test && card(`test ${test[0]}`, number(test[1]), "with the best weights"),
    card("trained", `${whole(run.step)} steps`, epochOf(run, run.step) && `epoch ${epochOf(run, run.step)}`),
    card("time", duration(run.seconds), `since ${moment(run.begun)}`),
    run.samples && card("samples", count(run.samples), `${whole(run.samples)} in all`),
    run.units && card(run.unit, count(run.units), `${whole(run.units)} in all`),
    speedOf(run) && card("median speed", `${count(speedOf(run))}/s`, "samples, all devices"),
    run.commit && card("commit", make("code", {}, run.commit)),
  ].filter(Boolean));
  const marks = interruptions(run).map(event => `${event.event} at step ${whole(event.step)}`).join(", ");
  const text = [run.start.about, marks].filter(Boolean).join("; ");
  $("runs").replaceChildren(...(text ? [make("p", { class: "soft" }, run.start.time ? `${moment(run.start.time)}: ` : "", text)] : []));
}

function epochOf(run, step) {
  const series = run.series.find(each => each.epoch);
  const at = series ? series.step.findLastIndex(each => each <= step) : -1;
  return at < 0 ? null : series.epoch[at];
}

function interruptions(run) {
  return run.events.filter(({ event }) => !["started", "done"].includes(event));
}

function comparison() {
  const best = runs.filter(run => run.best).map(run => run.best.value);
  const names = [...new Set(runs.flatMap(run => run.best ? [`best ${run.best.name}`] : []))];
  const winner = names.length === 1 ? (runs.find(run => run.best).best.higher ? Math.max : Math.min)(...best) : null;
  const head = ["run", "state", names.length === 1 ? names[0] : "best", "at step", "steps", "time", "samples", "samples/s", "commit"];
  const rows = runs.map(run => {
    const value = !run.best ? "–" : names.length === 1 ? number(run.best.value) : `${run.best.name} ${number(run.best.value)}`;
    const cells = [SAID[stateOf(run).name] ?? stateOf(run).name, value, run.best ? run.best.step.toLocaleString("en") : "–", run.step.toLocaleString("en"),
      duration(run.seconds), run.samples ? count(run.samples) : "–", number(speedOf(run)), run.commit ?? "–"];
    const name = make("th", { scope: "row" }, swatch(colourOf({ run, kind: "" })), run.name);
    return make("tr", {}, name, ...cells.map((cell, i) => make("td", { class: i === 1 && winner != null && run.best?.value === winner && "best" }, cell)));
  });
  return table(head, rows);
}

function table(head, rows, label = "Runs") {
  const top = make("thead", {}, make("tr", {}, ...head.map(name => make("th", { scope: "col" }, name))));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, make("table", {}, top, make("tbody", {}, ...rows)));
}

// ---- colours: of kinds on the page of one run, of runs in a comparison ----

function colourOf({ run, kind }) {
  if (runs.length > 1) return `--c${run.place % COLOURS}`;
  if (kind === TRAINING || kind === OF_EPOCH || !kind) return "--c0";
  return `--c${1 + (run.sets.indexOf(kind) % (COLOURS - 1))}`;
}

function dashOf({ run, kind }) {
  if (kind === OF_EPOCH) return [7, 5];
  if (runs.length === 1 || !run.sets.includes(kind)) return kind === TRAINING && runs.length > 1 ? [2, 4] : [];
  return [[], [12, 4], [12, 4, 2, 4]][run.sets.indexOf(kind) % 3];
}

function swatch(colour, look = "") {
  const element = make("span", { class: `swatch ${look}`, "aria-hidden": "true" });
  element.style.setProperty("--colour", `var(${colour})`);
  return element;
}

function css(name, strength = 1) {
  const colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return strength === 1 ? colour : `${colour}${Math.round(255 * strength).toString(16).padStart(2, "0")}`;
}

function labelOf(curve) {
  const parts = runs.length > 1 ? [curve.run.name, curve.kind] : [curve.kind || curve.metric];
  return parts.filter(Boolean).join(" ");
}

function showChips() {
  const all = runs.flatMap(run => run.curves);
  const kinds = [...new Set(all.map(curve => curve.kind).filter(Boolean))];
  const ofKinds = kinds.map(kind => [kind, kind, all.find(curve => curve.kind === kind)]);
  const ofRuns = runs.length > 1 ? runs.map(run => [run.id, run.name, { run, kind: "" }]) : [];
  const wanted = JSON.stringify([ofKinds, ofRuns].map(chips => chips.map(([id, label]) => [id, label])));
  if (showChips.shown === wanted) return;
  showChips.shown = wanted;
  $("chips").replaceChildren(...[...ofRuns, ...ofKinds].map(([id, label, curve]) => {
    const colour = runs.length > 1 && curve.kind ? "--soft" : colourOf(curve);
    const look = dashOf(curve).length ? "dashed" : "";
    const chip = make("button", { type: "button", class: "chip", "aria-pressed": String(!hidden.has(id)) }, swatch(colour, look), label);
    chip.addEventListener("click", () => {
      hidden.has(id) ? hidden.delete(id) : hidden.add(id);
      chip.setAttribute("aria-pressed", !hidden.has(id));
      draw();
    });
    return chip;
  }));
}

// ---- charts ----

function unitOfTime() {
  const longest = Math.max(...runs.map(run => run.seconds));
  return [[86400, "d", 259200], [3600, "h", 7200], [60, "min", 120], [1, "s", 0]].find(([, , least]) => longest >= least);
}

function xOf(run, step, time) {
  if (settings.x === "time") return run.elapsed(time) / unitOfTime()[0];
  return settings.x === "samples" ? run.samplesAt?.(step) ?? null : step;
}

function pointsOf(curve) {
  const { step, time } = curve.series, points = new Map();
  curve.values.forEach((value, i) => {
    const x = xOf(curve.run, step[i], time[i]);
    if (x != null) points.set(x, value);
  });
  const sorted = [...points].sort((a, b) => a[0] - b[0]);
  return [sorted.map(([x]) => x), sorted.map(([, value]) => value)];
}

function smoothed(values, weight, far) {
  let mean = 0, share = 0;
  return values.map(value => {
    if (value == null || far.has(value)) return value == null || !share ? null : mean / share;
    [mean, share] = [weight * mean + (1 - weight) * value, weight * share + 1 - weight];
    return mean / share;
  });
}

// Values farther from the median of their neighbours than these medians are from each other: spikes, not a steep start.
// The first and the last ones do not have neighbours on both sides: a warm-up is no spike.
function outliers(values) {
  const finite = values.filter(value => value != null);
  if (finite.length < 20) return new Set();
  const medians = finite.map((value, i) => median(finite.slice(Math.max(0, i - 3), i + 4)));
  const [low, high] = [0.001, 0.999].map(share => quantile(medians, share));
  const typical = 8 * median(finite.map((value, i) => Math.abs(value - medians[i])));
  const most = Math.max(high - low, typical);
  const between = (value, i) => i > 2 && i < finite.length - 3;
  return new Set(most ? finite.filter((value, i) => between(value, i) && Math.abs(value - medians[i]) > most) : []);
}

function quantile(values, share) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.round(share * (sorted.length - 1))];
}

function isFromZero(chart) {
  return SPEED.test(chart.metric);
}

function linesOf(chart) {
  const log = isLog(chart), weight = +settings.smooth;
  return chart.curves.flatMap(curve => {
    if (hidden.has(curve.kind) || hidden.has(curve.run.id)) return [];
    const [xs, raw] = pointsOf(curve);
    const values = log ? raw.map(value => (value > 0 ? value : null)) : raw;
    const isDense = !curve.run.sets.includes(curve.kind) && curve.kind !== OF_EPOCH && values.length > 3;
    const far = settings.clip && isDense ? outliers(values) : new Set();
    const line = { curve, xs, values, far, read: raw, colour: colourOf(curve), dash: dashOf(curve), width: 1.8 };
    if (!weight || !isDense) return [line];
    return [{ ...line, faint: true, width: 1 }, { ...line, values: smoothed(values, weight, far), far: new Set() }];
  });
}

function isLog(chart) {
  return Boolean(settings.log) && !isFromZero(chart) && chart.curves.some(curve => curve.values.some(value => value > 0));
}

// The range of what is seen, without outliers.
function rangeOf(chart, u) {
  const [from, to] = u.series[0].idxs ?? [0, u.data[0].length - 1];
  let [low, high] = [Infinity, -Infinity];
  const seen = chart.lines.flatMap(({ far }, i) => {
    const values = u.data[i + 1].slice(from ?? 0, (to ?? -1) + 1).filter(value => value != null);
    for (const value of values) if (!far.has(value)) [low, high] = [Math.min(low, value), Math.max(high, value)];
    return values;
  });
  if (low > high) [low, high] = [Math.min(...seen), Math.max(...seen)];
  chart.cut = seen.filter(value => value > high || (value < low && !isFromZero(chart))).length;
  if (!seen.length) return isLog(chart) ? [0.1, 1] : [0, 1];
  if (isFromZero(chart)) return [0, high > 0 ? high * 1.08 : 1];
  if (isLog(chart)) return [low / 1.15, high * 1.15];
  const room = (high / 2 - low / 2) * 0.12 || Math.abs(high) * 0.05 || 1;
  return [Math.max(-Number.MAX_VALUE, low - room), Math.min(Number.MAX_VALUE, high + room)];
}

function extent() {
  if (zoom) return zoom;
  let [low, high] = [0, 0];
  for (const chart of charts) for (const line of chart.lines ?? []) {
    if (line.xs.length) [low, high] = [Math.min(low, line.xs[0]), Math.max(high, line.xs.at(-1))];
  }
  return [low, high > low ? high : low + 1];
}

function options(chart) {
  const line = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const digits = values => 12 + 7 * Math.max(2, ...(values ?? []).map(value => (value ?? "").length));
  return {
    width: Math.max(120, chart.plot.clientWidth), height: chart.plot.clientHeight, legend: { show: false }, padding: [10, 12, 0, 0],
    scales: { x: { time: false, range: () => extent() }, y: { distr: isLog(chart) ? 3 : 1, range: u => rangeOf(chart, u) } },
    axes: [
      { ...line, size: 26, gap: 4, values: (u, ticks) => ticks.map(short) },
      { ...line, size: (u, values) => digits(values), gap: 4, values: (u, ticks) => ticks.map(tick => (tick == null || (isLog(chart) && tick !== +tick.toPrecision(2)) ? "" : short(tick))) },
    ],
    series: [{}, ...chart.lines.map(each => ({
      stroke: css(each.colour, each.faint ? 0.3 : each.curve.kind === TRAINING && runs.length > 1 ? 0.75 : 1), width: each.width, dash: each.dash,
      points: { show: each.faint ? false : (u, i, from, to) => each.values.length < 40 || to - from < 40, size: 5 },
    }))],
    cursor: {
      sync: { key: "charts", setSeries: false, scales: ["x", null], filters: { pub: type => type === "mousemove" } },
      drag: { x: true, y: false, setScale: false }, points: { size: 7, show: (u, i) => !chart.lines[i - 1].faint && undefined },
      dataIdx: (u, i, at) => (i ? nearest(u.data[0], u.data[i], at) : at), bind: { dblclick: () => () => setZoom(null) },
    },
    hooks: {
      setSelect: [u => {
        if (u.select.width > 4) setZoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [() => showValues(chart)],
      draw: [u => drawMarks(chart, u)],
    },
  };
}

// The point of a curve that is next to the crosshair: others may have points where it has none.
function nearest(xs, values, at) {
  let left = at, right = at;
  while (left >= 0 && values[left] == null) left--;
  while (right < values.length && values[right] == null) right++;
  if (left < 0 || right >= values.length) return left < 0 ? (right < values.length ? right : null) : left;
  return xs[at] - xs[left] <= xs[right] - xs[at] ? left : right;
}

function drawMarks(chart, u) {
  const { ctx, bbox } = u, scale = devicePixelRatio;
  const placeOf = x => u.valToPos(x, "x", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top - 8 * scale, bbox.width, bbox.height + 8 * scale);
  ctx.clip();
  const upright = (x, colour, dash) => {
    ctx.beginPath();
    ctx.setLineDash(dash.map(each => each * scale));
    [ctx.strokeStyle, ctx.lineWidth] = [colour, scale];
    ctx.moveTo(placeOf(x), bbox.top);
    ctx.lineTo(placeOf(x), bbox.top + bbox.height);
    ctx.stroke();
  };
  for (const run of runs.filter(each => !hidden.has(each.id))) {
    if (run.best && runs.length === 1) upright(xOf(run, run.best.step, run.best.time), css(colourOf({ run, kind: run.sets[0] }), 0.6), [5, 4]);
    for (const { step, time } of runs.length === 1 ? interruptions(run) : []) upright(xOf(run, step, time), css("--soft", 0.7), [1, 4]);
  }
  if (chart.median != null) {
    const y = u.valToPos(chart.median, "y", true);
    ctx.beginPath();
    ctx.setLineDash([6 * scale, 4 * scale]);
    [ctx.strokeStyle, ctx.lineWidth] = [css("--c1"), 1.4 * scale];
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
  }
  for (const { curve, xs, values, faint } of chart.lines) {
    const { best } = curve.run;
    const decides = !faint && best && curve.name === `epoch/${curve.run.sets[0]}_${best.metric}`;
    const at = decides ? curve.series.step.indexOf(best.step) : -1;
    if (at < 0) continue;
    const x = xOf(curve.run, best.step, curve.series.time[at]), value = values[xs.indexOf(x)];
    if (value != null) star(ctx, placeOf(x), u.valToPos(value, "y", true), 8 * scale, css(colourOf(curve)), css("--card"));
  }
  ctx.restore();
}

function star(ctx, x, y, size, fill, edge) {
  ctx.beginPath();
  for (let i = 0; i < 10; i++) {
    const angle = (i * Math.PI) / 5 - Math.PI / 2, length = i % 2 ? size * 0.45 : size;
    ctx.lineTo(x + length * Math.cos(angle), y + length * Math.sin(angle));
  }
  ctx.closePath();
  ctx.setLineDash([]);
  [ctx.fillStyle, ctx.strokeStyle, ctx.lineWidth, ctx.lineJoin] = [fill, edge, size / 4, "round"];
  ctx.stroke();
  ctx.fill();
}

function xName() {
  return settings.x === "time" ? unitOfTime()[1] : settings.x;
}

function showValues(chart) {
  const { u } = chart, at = u?.cursor.idx, hovers = at != null && u.cursor.left >= 0;
  chart.at.textContent = hovers ? (settings.x === "time" ? `${number(u.data[0][at])} ${xName()}` : `${xName()} ${Math.round(u.data[0][at]).toLocaleString("en")}`) : chart.note();
  chart.lines.forEach((line, i) => {
    if (!line.text) return;
    const place = hovers ? u.cursor.idxs[i + 1] : null;
    const x = hovers ? (place == null ? null : line.xs.indexOf(u.data[0][place])) : line.read.findLastIndex(value => value != null);
    line.text.textContent = number(x == null || x < 0 ? null : line.read[x]);
  });
}

function chartFor(metric) {
  const chart = { metric, curves: [], lines: [], cut: 0, median: null };
  chart.at = make("span", { class: "at soft number" });
  chart.values = make("ul", { class: "values" });
  chart.plot = make("div", { class: "plot", tabindex: 0, role: "img" });
  chart.figure = make("figure", { "data-metric": metric }, make("figcaption", {}, make("b", {}, metric), chart.at), chart.values, chart.plot);
  chart.note = () => [chart.median == null ? "" : `median ${number(chart.median)}`, chart.cut ? `${chart.cut} outside` : ""].filter(Boolean).join(", ");
  chart.plot.addEventListener("keydown", event => onKey(chart, event));
  listenToTouch(chart);
  return chart;
}

function drawChart(chart) {
  chart.lines = linesOf(chart);
  const isSpeed = isFromZero(chart) && runs.length === 1;
  chart.median = isSpeed ? median(chart.curves[0].values) : null;
  const table = chart.lines.length ? uPlot.join(chart.lines.map(line => [line.xs, line.values])) : [[]];
  chart.table = table;
  chart.look = JSON.stringify([settings.log, runs.length, chart.lines.map(line => [labelOf(line.curve), line.colour, line.dash, line.faint, line.width]), css("--back")]);
}

function plotChart(chart) {
  if (chart.u && chart.shown === chart.look) chart.u.setData(chart.table, false);
  else {
    chart.u?.destroy();
    chart.u = chart.lines.length ? new uPlot(options(chart), chart.table, chart.plot) : null;
    if (chart.u) chart.u.over.addEventListener("mouseleave", () => charts.forEach(showValues));
    chart.values.replaceChildren(...legend(chart));
    if (runs.length > 1) chart.values.tabIndex = 0; // it may scroll
  }
  chart.shown = chart.look;
  [...chart.values.querySelectorAll("b")].forEach((text, i) => { chart.lines.filter(line => !line.faint)[i].text = text; });
  chart.u?.setScale("x", { min: extent()[0], max: extent()[1] });
  showValues(chart);
  const ends = chart.lines.filter(line => line.text).map(line => `${labelOf(line.curve)} ${line.text.textContent}`);
  chart.plot.setAttribute("aria-label", `${chart.metric}: ${ends.join(", ")}`);
}

// A place for the value of each curve; in a comparison, a line for each run.
function legend(chart) {
  const lines = chart.lines.filter(line => !line.faint);
  const value = () => make("b", { class: "number" });
  const label = text => make("span", { class: "soft" }, text);
  if (runs.length === 1) {
    return lines.map(line => make("li", {}, swatch(line.colour, line.dash.length ? "dashed" : ""), label(line.curve.kind || "value"), value(line)));
  }
  return runs.filter(run => lines.some(({ curve }) => curve.run === run)).map(run => make("li", {}, swatch(colourOf({ run })), label(run.name),
    ...lines.filter(({ curve }) => curve.run === run).flatMap(line => [line.curve.kind ? label(line.curve.kind) : "", value(line)])));
}

function setZoom(range) {
  const all = charts.flatMap(chart => chart.lines.flatMap(line => [line.xs[0] ?? 0, line.xs.at(-1) ?? 0]));
  const [low, high] = [Math.min(0, ...all), Math.max(...all)];
  if (range) range = [Math.max(low, range[0]), Math.min(high, range[1])];
  zoom = range && range[1] - range[0] > (high - low) * 1e-6 && (range[0] > low || range[1] < high) ? range : null;
  $("reset").hidden = !zoom;
  const [min, max] = extent();
  charts.forEach(chart => chart.u?.setScale("x", { min, max }));
  charts.forEach(showValues);
}

function onKey(chart, event) {
  const { u } = chart;
  if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
  const [low, high] = extent(), xs = u.data[0];
  const from = xs.findIndex(x => x >= low), to = xs.findLastIndex(x => x <= high);
  const at = u.cursor.left >= 0 && u.cursor.idx != null ? u.cursor.idx : to + 1;
  const centre = u.cursor.left >= 0 ? xs[Math.min(at, xs.length - 1)] : (low + high) / 2, step = event.shiftKey ? Math.ceil((to - from) / 10) : 1;
  const place = x => u.setCursor({ left: u.valToPos(x, "x"), top: u.over.clientHeight / 2 }, true, true);
  const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: from, End: to };
  if (event.key in moves) {
    place(xs[Math.min(to, Math.max(from, moves[event.key]))]);
  } else if ("+-=".includes(event.key)) {
    const half = ((high - low) / 2) * (event.key === "-" ? 2 : 0.5);
    setZoom([centre - half, centre + half]);
    if (u.cursor.left >= 0) queueMicrotask(() => place(centre)); // after uPlot has set the scales
  } else if (event.key === "Escape") {
    setZoom(null);
    u.setCursor({ left: -10, top: -10 }, true, true);
  } else return;
  event.preventDefault();
}

// One finger moves the crosshair, two zoom, a double tap resets.
function listenToTouch(chart) {
  const fingers = new Map();
  let pinched = null, tapped = 0;
  const placed = event => event.clientX - chart.u.over.getBoundingClientRect().left;
  const spread = () => {
    const [a, b] = [...fingers.values()].sort((one, other) => one - other);
    return [chart.u.posToVal(a, "x"), chart.u.posToVal(b, "x"), a, b];
  };
  chart.plot.addEventListener("pointerdown", event => {
    if (event.pointerType !== "touch" || !chart.u) return;
    fingers.set(event.pointerId, placed(event));
    if (fingers.size === 2) pinched = spread();
    if (fingers.size === 1 && event.timeStamp - tapped < 300) setZoom(null);
    tapped = event.timeStamp;
    if (fingers.size === 1) chart.u.setCursor({ left: placed(event), top: 10 }, true, true);
  });
  chart.plot.addEventListener("pointermove", event => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, placed(event));
    if (pinched && fingers.size === 2) {
      const [low, high] = pinched, [, , a, b] = spread(), width = chart.u.over.clientWidth;
      const unit = (high - low) / Math.max(8, b - a);
      setZoom([low - a * unit, low + (width - a) * unit]);
    } else if (fingers.size === 1) chart.u.setCursor({ left: placed(event), top: 10 }, true, true);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
    chart.plot.addEventListener(end, event => {
      fingers.delete(event.pointerId);
      if (fingers.size < 2) pinched = null;
    });
  }
}

// ---- the whole page ----

function groupOf(chart) {
  if (SPEED.test(chart.metric)) return "Speed and waiting";
  return chart.curves.some(curve => curve.kind) ? "Metrics" : "Optimization";
}

function draw() {
  const found = settings.find.toLowerCase(), before = new Map(charts.map(chart => [chart.metric, chart]));
  const byMetric = new Map();
  for (const curve of runs.flatMap(run => run.curves)) {
    if (!byMetric.has(curve.metric)) byMetric.set(curve.metric, []);
    byMetric.get(curve.metric).push(curve);
  }
  const wanted = [...byMetric].filter(([metric]) => metric.toLowerCase().includes(found));
  charts = wanted.slice(0, MOST).map(([metric, curves]) => Object.assign(before.get(metric) ?? chartFor(metric), { curves }));
  for (const [metric, chart] of before) if (!charts.includes(chart)) chart.u?.destroy(), chart.figure.remove(), before.delete(metric);
  charts.forEach(drawChart);
  const groups = ["Metrics", "Optimization", "Speed and waiting"].map(name => [name, charts.filter(chart => groupOf(chart) === name)]).filter(([, some]) => some.length);
  const layout = JSON.stringify([groups.map(([name, some]) => [name, some.map(chart => chart.metric)]), wanted.length]);
  if (layout !== draw.layout) {
    const more = wanted.length > MOST ? [make("p", { class: "soft" }, `${wanted.length - MOST} more metrics: find them by name.`)] : [];
    $("groups").replaceChildren(...groups.map(([name, some]) => make("section", {}, make("h2", {}, name), make("div", { class: "charts" }, ...some.map(chart => chart.figure)))), ...more);
  }
  draw.layout = layout;
  $("help").hidden = !charts.length;
  document.querySelector("form.tools").hidden = !byMetric.size;
  charts.forEach(plotChart);
}

function showFigures() {
  const text = JSON.stringify(runs.map(run => run.shown));
  if (text === showFigures.shown) return;
  showFigures.shown = text;
  const figures = runs.flatMap(run => run.shown.map(({ name, kind, content }) => {
    const label = runs.length > 1 ? `${run.name}: ${name}` : name;
    const figure = make("figure", { "data-shown": name }, make("figcaption", {}, make("b", {}, label)));
    if (kind === "png") {
      const image = make("img", { src: `data:image/png;base64,${content}`, alt: label });
      image.addEventListener("load", () => image.classList.toggle("wide", image.naturalWidth < 420));
      figure.append(image);
    } else if (kind === "svg") { // of report.py; what is parsed so runs no script
      const drawing = document.importNode(new DOMParser().parseFromString(content, "image/svg+xml").documentElement, true);
      if (drawing.tagName !== "svg") return figure;
      [...drawing.querySelectorAll("*")].filter(each => !["rect", "text", "title"].includes(each.tagName)).forEach(each => each.remove());
      drawing.setAttribute("role", "img");
      drawing.setAttribute("aria-label", label);
      figure.append(drawing);
    } else figure.append(make("pre", { tabindex: 0 }, content));
    return figure;
  }));
  $("shown").replaceChildren(...(figures.length ? [make("h2", {}, "Shown at the last evaluation"), make("div", { class: "charts" }, ...figures)] : []));
}

function showOptions() {
  const names = [...new Set(runs.flatMap(run => Object.keys(run.options)))];
  const textOf = (run, name) => {
    const value = run.options[name];
    return value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  };
  const wanted = JSON.stringify(runs.map(run => [run.name, run.options, run.changed]));
  if (wanted === showOptions.shown) return;
  showOptions.shown = wanted;
  const known = runs.length > 1 || runs[0].changed;
  const differ = name => (runs.length > 1 ? new Set(runs.map(run => textOf(run, name))).size > 1 : (runs[0].changed ?? []).includes(name));
  const rows = some => some.map(name => make("tr", {}, make("th", { scope: "row" }, `--${name.replaceAll("_", "-")}`), ...runs.map(run => make("td", {}, textOf(run, name)))));
  const head = ["option", ...(runs.length > 1 ? runs.map(run => run.name) : ["value"])];
  const other = names.filter(differ);
  const none = make("p", { class: "soft" }, runs.length > 1 ? "All runs have the same options." : "All options have their defaults.");
  const all = make("details", { open: !known }, make("summary", {}, `All ${names.length} options`), table(head, rows(names), "All options"));
  const title = make("h2", {}, runs.length > 1 ? "Options that differ between the runs" : "Options that differ from the defaults");
  $("options").replaceChildren(...(known ? [title, other.length ? table(head, rows(other), "Options") : none] : [make("h2", {}, "Options")]), ...(names.length ? [all] : []));
}

function update(newer) {
  data = newer;
  [openedAt, arrived] = [performance.now(), Date.now() / 1000];
  if (!runs.length && data.runs.length > 1) hidden.add(OF_EPOCH);
  runs = data.runs.map(read);
  const hasSamples = runs.some(run => run.samplesAt);
  document.querySelector("[name=x][value=samples]").disabled = !hasSamples;
  if (!hasSamples && settings.x === "samples") settings.x = "step";
  showHeadline();
  showState();
  showChips();
  draw();
  showFigures();
  showOptions();
}

function listen() {
  const form = document.querySelector("form.tools");
  for (const input of form.elements) {
    if (!(input.name in DEFAULTS)) continue;
    if (input.type === "radio") input.checked = input.value === settings.x;
    else if (input.type === "checkbox") input.checked = Boolean(settings[input.name]);
    else input.value = settings[input.name];
  }
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.name === "x") zoom = null, $("reset").hidden = true;
    settings[target.name] = target.type === "checkbox" ? (target.checked ? "1" : "") : target.value;
    const other = Object.entries(settings).filter(([name, value]) => name in DEFAULTS && value !== DEFAULTS[name]);
    history.replaceState(null, "", `#${new URLSearchParams(other)}`); // so that a reload has the same view
    draw();
  });
  $("reset").addEventListener("click", () => setZoom(null));
  $("live").addEventListener("change", showState);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => charts.forEach(({ u, plot }) => {
    if (u && plot.clientWidth && (u.width !== plot.clientWidth || u.height !== plot.clientHeight)) u.setSize({ width: plot.clientWidth, height: plot.clientHeight });
  })).observe($("groups"));
}

// A page from a file may not fetch, but it may load a script anew: report.js calls update().
let asked = 0, isThere = true;
function follow() {
  const follows = showState();
  if (!follows || !isThere || !$("live").checked || document.hidden || performance.now() - asked < 1000 * Math.max(2, data.every)) return;
  asked = performance.now();
  const script = make("script", { src: `${LIVE}?${Math.round(asked)}` });
  script.addEventListener("load", () => script.remove());
  script.addEventListener("error", () => { // the page was copied elsewhere, alone
    script.remove();
    isThere = false;
  });
  document.head.append(script);
}

listen();
update(JSON.parse($("data").textContent));
setInterval(follow, 1000);
