// One mug for each unit in stock, and below a line one for each that was sold on top of them.

import { draw, fill, make } from "./dom.js";

const BODY = "M4 4h12v13a3 3 0 0 1-3 3H7a3 3 0 0 1-3-3z";
const HANDLE = "M16 7h2.2a2.8 2.8 0 0 1 2.8 2.8v1.4a2.8 2.8 0 0 1-2.8 2.8H16";
const CROSS = "m7 9 6 6m0-6-6 6";

const mug = (kind) => {
  const cell = make("li", { className: `mug ${kind}` });
  cell.append(draw("svg", { viewBox: "0 0 24 24" }, draw("path", { class: "body", d: BODY }), draw("path", { class: "handle", d: HANDLE }), ...(kind === "beyond" ? [draw("path", { class: "cross", d: CROSS })] : [])));
  return cell;
};

/** Draw the mugs of a race into `place`; returns a function that fills as many as are sold. */
export function drawMugs(place, race) {
  const sales = race.buyers.filter((buyer) => buyer.answer === "sold").length;
  const shelf = Array.from({ length: race.initial }, () => mug("shelf"));
  const beyond = Array.from({ length: Math.max(0, sales - race.initial) }, () => mug("beyond"));
  const list = (cells) => make("ul", {}, ...cells);
  const line = make("p", { className: "stock-line", textContent: fill(gettext("in stock: %(initial)s; what is below doesn't exist"), race) });
  place.replaceChildren(list(shelf), ...(beyond.length ? [line, list(beyond)] : []));
  place.setAttribute("aria-label", fill(gettext("in stock: %(initial)s, sold: %(sold)s, of these don't exist: %(beyond)s"), { initial: race.initial, sold: sales, beyond: beyond.length }));
  return (sold) => [...shelf, ...beyond].forEach((cell, at) => cell.classList.toggle("taken", at < sold));
}
