// Who has which lock and who waits for which: two buyers, two locks, and the arrows that close to a ring.

import { draw, fill } from "./dom.js";

const PLACES = { A: [70, 110], B: [370, 110], 0: [220, 185], 1: [220, 35] }; // buyers, and products by their number
const BUYER = 30; // radius
const LOCK = [92, 25]; // half of width and height

/** The names of the products of a session, by their number. */
export const PRODUCTS = () => [gettext("mug"), gettext("pen")];

/** The ring of a session's state: its victim, or "" while all wait; null where none is closed. */
export function ringOf(state) {
  const { A, B } = state.lanes;
  const victim = ["A", "B"].find((name) => state.lanes[name].victim);
  if (victim) return { victim };
  const waits = (one, other) => one.blocked && one.wants.some((sku) => other.has.includes(sku));
  return waits(A, B) && waits(B, A) ? { victim: "" } : null;
}

/** Draw the locks of a session with two products into `place`. */
export function drawRing(place, state) {
  const ring = ringOf(state);
  const edges = edgesOf(state, ring?.victim);
  const label = edges.map(({ buyer, product, has }) => fill(has ? gettext("%(buyer)s has the lock of the %(product)s") : gettext("%(buyer)s waits for the lock of the %(product)s"), { buyer, product: PRODUCTS()[product] })).join("; ");
  const svg = draw("svg", { viewBox: "0 0 440 220", class: ring ? "closed" : "", role: "img", "aria-label": label || gettext("No lock is taken yet.") },
    draw("defs", {}, head("has"), head("wants"), head("round")),
    ...edges.map((edge) => arrow(edge, Boolean(ring))),
    ...state.products.map((product, at) => lock(product, at)),
    ...["A", "B"].map((name) => buyer(name, name === ring?.victim)));
  place.replaceChildren(svg);
}

// In a ring of two the victim wanted what the other has, and had what the other wanted.
function edgesOf(state, victim) {
  const number = (sku) => state.products.findIndex((product) => product.sku === sku);
  if (victim) {
    const other = victim === "A" ? "B" : "A";
    const { has, wants } = state.lanes[victim].victim;
    return [[victim, has, true], [victim, wants, false], [other, wants, true], [other, has, false]].flatMap(([name, skus, held]) => skus.map((sku) => ({ buyer: name, product: number(sku), has: held })));
  }
  return ["A", "B"].flatMap((name) => [["has", true], ["wants", false]].flatMap(([kind, held]) => state.lanes[name][kind].map((sku) => ({ buyer: name, product: number(sku), has: held }))));
}

const head = (kind) => draw("marker", { id: `ring-${kind}`, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, draw("path", { d: "M0 0l8 4-8 4z" }));

// From a lock to its holder, and from a waiter to the lock: along them one goes round.
function arrow({ buyer: name, product, has }, closed) {
  const [bx, by] = PLACES[name];
  const [lx, ly] = PLACES[product];
  const away = Math.hypot(lx - bx, ly - by);
  const atBuyer = [bx + ((lx - bx) / away) * (BUYER + 4), by + ((ly - by) / away) * (BUYER + 4)];
  const atLock = [lx + Math.sign(bx - lx) * LOCK[0] * 0.72, ly + Math.sign(by - ly) * (LOCK[1] + 3)];
  const [from, to] = has ? [atLock, atBuyer] : [atBuyer, atLock];
  const kind = has ? "has" : "wants";
  return draw("path", { class: `edge ${kind} product-${product}`, d: `M${from}L${to}`, "marker-end": `url(#ring-${closed ? "round" : kind})` });
}

function lock({ lock: name }, at) {
  const [x, y] = PLACES[at];
  const group = draw("g", { class: `lock product-${at}` },
    draw("rect", { x: x - LOCK[0], y: y - LOCK[1], width: 2 * LOCK[0], height: 2 * LOCK[1], rx: 8 }),
    draw("text", { x, y: y - 5, class: "what" }),
    draw("text", { x, y: y + 13, class: "name" }));
  group.children[1].textContent = PRODUCTS()[at];
  group.children[2].textContent = name ?? gettext("free");
  return group;
}

function buyer(name, struck) {
  const [x, y] = PLACES[name];
  const group = draw("g", { class: `buyer buyer-${name.toLowerCase()}${struck ? " victim" : ""}` },
    draw("circle", { cx: x, cy: y, r: BUYER }), draw("text", { x, y: y + 7 }),
    ...(struck ? [draw("path", { class: "strike", d: `M${x - 34} ${y + 34}l68 -68` }), draw("text", { class: "says", x, y: y + 54 })] : []));
  group.children[1].textContent = name;
  if (struck) group.children[3].textContent = gettext("victim");
  return group;
}
