// The swimlane: a row per buyer, time from left to right, as SVG.

import { draw } from "./dom.js";
import { LEFT, RIGHT, flags, scale, ticks } from "./scale.js";
import { victims } from "./words.js";

const ENDS = new Set(["unlocked", "stale_token", "lost", "second_line", "waiting"]); // of a hold, whatever its lease says
const TOP = 20;
const FOOT = 18;
const PIECES = { waiting: "wait", busy: "wait", unavailable: "wait", deadlocked: "wait", overtaken: "wait", locked: "held", fenced: "held", read: "held", decided: "gap", written: "write", recorded: "write", committed: "held" };
const REFUSALS = new Set(["stale_token", "second_line"]);
export const SIGNS = { sold: "✓", victim: "✗", refused: "–", error: "!" };

/** Draw a race into `place`, up to `end` ms; returns a function that shows it up to a moment, in ms. */
export function drawLanes(place, race, { end, moments, label, onPick, unit }) {
  const width = place.clientWidth;
  if (!width) return () => {}; // not on this slide
  const row = document.documentElement.matches(".present") ? 8 : race.buyers.length > 20 ? 13 : 16; // a projector has 720 px
  const height = TOP + race.buyers.length * row + FOOT;
  const x = scale(end, width);
  const y = (at) => TOP + at * row + row / 2;
  const paid = victims(race);

  const clip = draw("rect", { x: 0, y: 0, width, height });
  const head = draw("line", { class: "head", x1: 0, x2: 0, y1: TOP, y2: height - FOOT });
  const id = `clip-${place.closest(".panel").id}`;
  const shown = draw("g", { "clip-path": `url(#${id})` }, ...links(race, x, y), ...race.buyers.map((buyer, at) => lane(buyer, x, y(at), row)));
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    draw("defs", {}, draw("clipPath", { id }, clip), hatch()),
    ...race.buyers.map((buyer, at) => name(buyer, paid.has(buyer.number) ? "victim" : buyer.answer, y(at), width, row, onPick)),
    shown, ...flags(moments, x, height - FOOT, true), head, ...ticks(end, x, height - 4, unit));
  place.replaceChildren(svg);

  const signs = [...svg.querySelectorAll("[data-to]")];
  return (ms) => {
    clip.setAttribute("width", x(ms));
    head.setAttribute("x1", x(ms));
    head.setAttribute("x2", x(ms));
    head.classList.toggle("over", ms >= end);
    signs.forEach((sign) => sign.classList.toggle("yet", Number(sign.dataset.to) > ms));
  };
}

function hatch() {
  return draw("pattern", { id: "hatch", width: 4, height: 4, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, draw("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 4 }));
}

// Twelve pixels high is the least that can be read, so in a narrow row only every fifth has its number.
function name(buyer, answer, middle, width, row, onPick) {
  const group = draw("g", { class: `row ${answer}` },
    draw("rect", { class: "back", x: 0, y: middle - row / 2, width, height: row }),
    draw("text", { class: "number", x: LEFT - 8, y: middle }),
    draw("text", { class: "sign", x: width - RIGHT + 12, y: middle, "data-to": buyer.to }));
  group.children[1].textContent = row > 13 || buyer.number % 5 === 0 || buyer.number === 1 ? buyer.number : "";
  group.children[2].textContent = SIGNS[answer] ?? "";
  group.addEventListener("click", () => onPick(buyer.number));
  return group;
}

function lane(buyer, x, middle, row) {
  const thick = row - 4;
  const pieces = spans(buyer).map(([kind, from, to]) => {
    const high = kind === "held" || kind === "way" ? 2 : thick;
    return draw("rect", { class: `piece ${kind}`, x: x(from), y: middle - high / 2, width: Math.max(0.5, x(to) - x(from)), height: high });
  });
  const late = leases(buyer).filter(({ until, lease }) => lease.ends < until).map(({ until, lease }) => draw("rect", { class: "piece expired", x: x(lease.ends), y: middle - thick / 2, width: x(until) - x(lease.ends), height: thick }));
  const points = buyer.marks.flatMap(([mark, at, stock], place) => point(buyer, place, mark, x(at), middle, thick, stock));
  return draw("g", {}, ...pieces, ...late, ...points);
}

/** Each grant of a lock to a buyer whose lease is known: `{ from, until, lease: { token, ends } }`. */
export const leases = (buyer) =>
  buyer.marks.flatMap(([, from, , , lease], at) => (lease ? [{ from, lease, until: (buyer.marks.slice(at + 1).find(([mark]) => ENDS.has(mark)) ?? [, buyer.to])[1] }] : []));

// A write counts when it was committed. One that was rolled back, because the database or the lock refused
// it, has sold nothing: it is drawn as refused.
function counts(buyer, at) {
  const later = buyer.marks.slice(at + 1).map(([mark]) => mark);
  const next = later.find((mark) => ["written", "committed"].includes(mark));
  return next === "committed" || (buyer.answer === "sold" && next === undefined);
}

// Of a buyer who was refused in the end no decision is drawn either.
function spans(buyer) {
  const kindOf = (mark, at) => {
    if (PIECES[mark] === "write") return counts(buyer, mark === "written" ? at : at - 1) ? "write" : "void";
    return mark === "decided" && buyer.answer === "refused" ? "held" : PIECES[mark] ?? "way";
  };
  const stops = [["way", buyer.from], ...buyer.marks.map(([mark, ms], at) => [kindOf(mark, at), ms]), ["", buyer.to]];
  return stops.slice(0, -1).map(([kind, from], at) => [kind, from, stops[at + 1][1]]);
}

function point(buyer, at, mark, x, y, size, stock) {
  if (REFUSALS.has(mark)) return [cross(x, y, size, gettext("refused by the database"))];
  if (mark === "read") {
    const text = draw("title", {});
    text.textContent = interpolate(gettext("read %s"), [stock]);
    return [draw("circle", { class: "point read", cx: x, cy: y, r: size / 2.4 }, text)];
  }
  if (mark !== "written") return [];
  if (!counts(buyer, at)) return [cross(x, y, size, gettext("rolled back"))];
  return [draw("rect", { class: "point write", x: x - 1, y: y - size / 2, width: 3, height: size })];
}

function cross(x, y, size, text) {
  const half = Math.max(3.5, size / 2.6);
  const title = draw("title", {});
  title.textContent = text;
  return draw("path", { class: "point refused", d: `M${x - half} ${y - half}l${2 * half} ${2 * half}m0 ${-2 * half}l${-2 * half} ${2 * half}` }, title);
}

// Stale reads: another buyer's write came between this one's read and its own write.
function links(race, x, y) {
  if (race.sound && race.kept) return [];
  const writes = race.buyers.flatMap((buyer, at) => buyer.marks.filter(([mark], place) => mark === "written" && counts(buyer, place)).map(([, ms]) => ({ at, ms })));
  return race.buyers.flatMap((buyer, at) => {
    const read = buyer.marks.findLast(([mark]) => mark === "read");
    const written = buyer.marks.findLast(([mark]) => mark === "written");
    if (!read || !written) return [];
    const missed = writes.filter((write) => write.at !== at && write.ms > read[1] && write.ms < written[1]).sort((a, b) => a.ms - b.ms)[0];
    return missed ? [link(x(read[1]), y(at), x(missed.ms), y(missed.at))] : [];
  });
}

function link(x1, y1, x2, y2) {
  const bend = (x1 + x2) / 2;
  return draw("path", { class: "stale", d: `M${x1},${y1} C${bend},${y1} ${bend},${y2} ${x2},${y2}` });
}
