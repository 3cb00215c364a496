// The swimlane: a row per buyer, time from left to right, as SVG.

import { draw } from "./dom.js";
import { LEFT, RIGHT, flags, scale, ticks } from "./scale.js";
import { victims } from "./words.js";

const TOP = 20;
const FOOT = 18;
const PIECES = { waiting: "wait", busy: "wait", unavailable: "wait", deadlocked: "wait", overtaken: "wait", locked: "held", read: "held", decided: "gap", written: "write", recorded: "write", committed: "held" };
export const SIGNS = { sold: "✓", victim: "✗", refused: "–", error: "!" };

/** Draw a race into `place`, up to `end` ms; returns a function that shows it up to a moment, in ms. */
export function drawLanes(place, race, { end, moments, label, onPick }) {
  const width = place.clientWidth;
  const row = race.buyers.length > 20 ? 13 : 16;
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
    shown, ...flags(moments, x, height - FOOT, true), head, ...ticks(end, x, height - 4));
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
  group.children[2].textContent = SIGNS[answer];
  group.addEventListener("click", () => onPick(buyer.number));
  return group;
}

function lane(buyer, x, middle, row) {
  const thick = row - 4;
  const pieces = spans(buyer).map(([kind, from, to]) => {
    const high = kind === "held" || kind === "way" ? 2 : thick;
    return draw("rect", { class: `piece ${kind}`, x: x(from), y: middle - high / 2, width: Math.max(0.5, x(to) - x(from)), height: high });
  });
  const points = buyer.marks.flatMap(([mark, at, stock]) => point(buyer, mark, x(at), middle, thick, stock));
  return draw("g", {}, ...pieces, ...points);
}

// A buyer who was refused has sold nothing, whatever was prepared on the way: no decision and no write is drawn.
function spans(buyer) {
  const kindOf = (mark) => (buyer.answer === "refused" && ["gap", "write"].includes(PIECES[mark]) ? "held" : PIECES[mark] ?? "way");
  const stops = [["way", buyer.from], ...buyer.marks.map(([mark, at]) => [kindOf(mark), at]), ["", buyer.to]];
  return stops.slice(0, -1).map(([kind, from], at) => [kind, from, stops[at + 1][1]]);
}

function point(buyer, mark, x, y, size, stock) {
  if (mark === "read") {
    const text = draw("title", {});
    text.textContent = interpolate(gettext("read %s"), [stock]);
    return [draw("circle", { class: "point read", cx: x, cy: y, r: size / 2.4 }, text)];
  }
  return mark === "written" && buyer.answer !== "refused" ? [draw("rect", { class: "point write", x: x - 1, y: y - size / 2, width: 3, height: size })] : [];
}

// Stale reads: another buyer's write came between this one's read and its own write.
function links(race, x, y) {
  if (race.sound && race.kept) return [];
  const writes = race.buyers.flatMap((buyer, at) => buyer.marks.filter(([mark]) => mark === "written").map(([, ms]) => ({ at, ms })));
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
