// Strategy by strategy, what came out: a dot for each (correct or not × p95), and the table behind it.

import { byId, draw, fill } from "./dom.js";
import { SIGN, headline, kindOf } from "./words.js";

const races = new Map();
const BANDS = () => ({ right: gettext("correct"), short: gettext("safe, short"), wrong: gettext("wrong") });
const ROW = 24;
const HEAD = 26;
const FOOT = 30;
const SIDE = 12;
const LETTER = 7.4; // px; the labels' font has letters of one width
const LABEL = 14; // px from the middle of a dot to its label

let choose = () => {};
let stop = ""; // the dot at which the Tab key stops; the arrow keys go on from there

/** Fill in a race, as a dot and as a line of the table; a recorded one gives way to the visitor's own. */
export function fillIn(race, recorded = false) {
  races.set(race.name, { ...race, recorded });
  plot();
  const line = byId("matrix").querySelector(`[data-name="${race.name}"]`);
  if (!line) return;
  const kind = kindOf(race);
  const words = { wrong: gettext("no"), short: gettext("safe, short"), right: gettext("yes") };
  const cells = [`${SIGN[kind]} ${words[kind]}`, race.sold, race.left, race.unaccounted, Math.round(race.p50_ms), Math.round(race.p95_ms), race.retries, race.waits];
  line.className = `${kind}${recorded ? " recorded" : ""}`;
  [...line.querySelectorAll("td")].forEach((cell, at) => { cell.textContent = cells[at]; });
}

/** Call back with the name of the strategy whose dot or line is chosen. */
export function whenChosen(callback) {
  choose = callback;
  byId("matrix").addEventListener("click", (event) => {
    const line = event.target.closest("[data-show]")?.closest("[data-name]");
    if (line) choose(line.dataset.name);
  });
  new ResizeObserver(plot).observe(byId("dots"));
}

function plot() {
  const place = byId("dots");
  const width = place.clientWidth;
  if (width < 100 || !races.size) return;
  const all = [...races.values()];
  const x = logarithmic(all.map(latency), width);
  const bands = Object.entries(BANDS()).map(([kind, title]) => ({ kind, title, rows: pack(all.filter((race) => kindOf(race) === kind), x, width) })).filter((band) => band.rows.length);
  let top = 0;
  const parts = bands.map((band) => {
    const drawn = bandOf(band, top, x, width);
    top += HEAD + band.rows.length * ROW + 8;
    return drawn;
  });
  const height = top + FOOT;
  if (!races.has(stop)) stop = parts[0].querySelector("[data-dot]").dataset.dot;
  parts.forEach((part) => part.querySelectorAll("[data-dot]").forEach((each) => each.setAttribute("tabindex", each.dataset.dot === stop ? 0 : -1)));
  place.replaceChildren(draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": gettext("All strategies: correct or not, by the time that buyers waited (p95)") }, ...grid(x, top, all), ...parts));
}

const latency = (race) => Math.max(1, race.p95_ms || 1);

function logarithmic(values, width) {
  const low = Math.log10(Math.min(...values) * 0.9);
  const high = Math.log10(Math.max(...values) * 1.1);
  return (ms) => SIDE + 10 + ((Math.log10(ms) - low) / (high - low || 1)) * (width - 2 * SIDE - 20);
}

const widthOf = (race) => race.name.length * LETTER + LABEL + 8;

// A label that would leave the plot goes to the left of its dot.
const spanOf = (race, x, width) => {
  const at = x(latency(race));
  return at + widthOf(race) > width ? [at - widthOf(race), at + 10] : [at - 10, at + widthOf(race)];
};

// Each race goes into the first row in which its dot and label have room.
function pack(some, x, width) {
  const rows = [];
  for (const race of some.sort((a, b) => latency(a) - latency(b))) {
    const [from, to] = spanOf(race, x, width);
    const row = rows.find((taken) => taken.every((other) => to < other.from || from > other.to)) ?? rows[rows.push([]) - 1];
    row.push({ race, from, to });
  }
  return rows;
}

function bandOf({ kind, title, rows }, top, x, width) {
  const text = draw("text", { class: "band-title", x: SIDE, y: top + 17 });
  text.textContent = `${SIGN[kind]} ${title}`;
  const dots = rows.flatMap((row, at) => row.map(({ race, from }) => dot(race, x(latency(race)), top + HEAD + at * ROW + ROW / 2, from < x(latency(race)) - 10)));
  return draw("g", { class: `band ${kind}` }, draw("rect", { class: "band-back", x: 0, y: top, width, height: HEAD + rows.length * ROW, rx: 6 }), text, ...dots);
}

function dot(race, x, y, left) {
  const kind = kindOf(race);
  const group = draw("g", { class: `dot ${race.recorded ? "recorded" : ""}`, role: "button", "data-dot": race.name, "aria-label": fill(gettext("%(name)s: %(verdict)s, p95 %(ms)s ms"), { name: race.name, verdict: headline(race), ms: Math.round(race.p95_ms) }) });
  const mark = { right: draw("circle", { cx: x, cy: y, r: 6 }), wrong: draw("path", { d: `M${x - 6} ${y - 6}L${x + 6} ${y + 6}M${x - 6} ${y + 6}L${x + 6} ${y - 6}` }), short: draw("path", { d: `M${x} ${y - 7}L${x + 7} ${y + 6}H${x - 7}Z` }) }[kind];
  const text = draw("text", { x: left ? x - LABEL : x + LABEL, y: y + 4, "text-anchor": left ? "end" : "start" });
  text.textContent = race.name;
  group.append(draw("rect", { class: "hit", x: left ? x - widthOf(race) : x - 10, y: y - ROW / 2, width: widthOf(race) + 10, height: ROW, rx: 5 }), mark, text);
  group.addEventListener("click", () => choose(race.name));
  group.addEventListener("keydown", (event) => {
    walk(event);
    if (!["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    choose(race.name);
  });
  return group;
}

/** Go to the next dot, the one before, the first or the last. */
function walk(event) {
  const dots = [...byId("dots").querySelectorAll("[data-dot]")];
  const at = dots.indexOf(event.currentTarget);
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: dots.length - 1 }[event.key];
  if (!dots[to]) return;
  event.preventDefault();
  stop = dots[to].dataset.dot;
  dots[at].setAttribute("tabindex", -1);
  dots[to].setAttribute("tabindex", 0);
  dots[to].focus();
}

function grid(x, height, all) {
  const values = all.map(latency);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1000, 10000].map((power) => digit * power)).filter((ms) => ms >= low * 0.9 && ms <= high * 1.1);
  let free = 0; // from here on there is room for a label
  return at.sort((one, other) => one - other).flatMap((ms) => {
    const line = draw("line", { class: "grid", x1: x(ms), x2: x(ms), y1: 0, y2: height });
    const half = (`${ms} ms`.length * LETTER) / 2;
    if (x(ms) - half < free) return [line];
    free = x(ms) + half + LETTER;
    const text = draw("text", { class: "tick", x: x(ms), y: height + 16, "text-anchor": "middle" });
    text.textContent = `${ms} ms`;
    return [line, text];
  });
}
