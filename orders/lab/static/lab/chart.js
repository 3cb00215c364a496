// Stock over time, under the lanes and on their scale. Below zero is what was sold and isn't there.

import { draw } from "./dom.js";
import { LEFT, RIGHT, flags, scale, ticks } from "./scale.js";

const HEIGHT = 150;
const FOOT = 18;

/** Lowest and highest number of pieces that a race's curve shows. */
export function rangeOf(race) {
  const really = race.stock.sold.map((sold) => race.initial - sold);
  return [Math.min(0, ...race.stock.left, ...really), Math.max(race.initial, ...race.stock.left)];
}

/** Draw the stock of a race into `place`; returns a function that shows it up to a moment, in ms. */
export function drawStock(place, race, { end, low, high, moments, label }) {
  const { ms, left, sold } = race.stock;
  place.replaceChildren();
  if (!ms.length) return () => {};
  const width = place.clientWidth;
  if (!width) return () => {};
  const x = scale(end, width);
  const y = (pieces) => 8 + ((high - pieces) / Math.max(1, high - low)) * (HEIGHT - FOOT - 16);
  const clip = draw("rect", { x: 0, y: 0, width, height: HEIGHT });
  const id = `clip-stock-${place.closest(".panel").id}`;
  const over = (values) => steps(ms, values, Math.max(end, ms.at(-1)), x, y);
  const svg = draw("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label },
    draw("defs", {}, draw("clipPath", { id }, clip)),
    draw("rect", { class: "below", x: LEFT, y: y(0), width: Math.max(0, width - LEFT - RIGHT), height: Math.max(0, y(low) - y(0)) }),
    draw("line", { class: "zero", x1: LEFT, x2: width - RIGHT, y1: y(0), y2: y(0) }),
    ...[high, 0, low].filter((value, at, all) => all.indexOf(value) === at).map((value) => number(value, y(value))),
    ...flags(moments, x, HEIGHT - FOOT, false),
    draw("g", { "clip-path": `url(#${id})` }, draw("path", { class: "curve really", d: over(sold.map((n) => race.initial - n)) }), draw("path", { class: "curve says", d: over(left) })),
    ...ticks(end, x, HEIGHT - 4));
  place.append(svg);
  return (moment) => clip.setAttribute("width", x(moment));
}

function number(value, y) {
  const text = draw("text", { class: "number", x: LEFT - 8, y });
  text.textContent = value;
  return text;
}

function steps(ms, values, end, x, y) {
  const corners = ms.map((at, place) => `${place ? `H${x(at)}V${y(values[place])}` : `M${x(at)} ${y(values[place])}`}`);
  return `${corners.join("")}H${x(end)}`;
}

/** What the page said and what was sold at a moment. */
export function stockAt(race, moment) {
  const { ms, left, sold } = race.stock;
  const at = ms.findLastIndex((when) => when <= moment);
  return at < 0 ? { left: race.initial, sold: 0 } : { left: left[at], sold: sold[at] };
}
