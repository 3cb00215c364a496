// Step by step: two buyers and the last piece, as numbered puzzles.

import * as api from "./api.js";
import { CodePane } from "./code.js";
import { byId, fill, make } from "./dom.js";
import { PUZZLES, markSolved, tellPuzzle } from "./puzzles.js";
import { PRODUCTS, drawRing, ringOf } from "./ring.js";
import { ANSWERS, STEP_NAMES, figures, sum } from "./words.js";

const BUYERS = ["A", "B"];
const lane = (name) => document.querySelector(`[data-lane="${name}"]`);
const panes = Object.fromEntries(BUYERS.map((name) => [name, new CodePane(lane(name).querySelector(".code"))]));

// What each puzzle asks for, as it is seen in a session's state.
const GOALS = {
  twice: (state) => state.sold > state.initial,
  wait: (state) => BUYERS.some((name) => state.lanes[name].blocked),
  again: (state) => BUYERS.some((name) => state.lanes[name].marks.some(([mark]) => mark === "overtaken")),
  circle: (state) => BUYERS.some((name) => state.lanes[name].marks.some(([mark]) => mark === "deadlocked")),
};

let current = null;
let begun = 0; // sessions that were asked for; what an older one says is no longer heard
let over = false; // both have their answer, and the session ends by itself
let strategy = "";
let presses = []; // since the buyers began, for undo
let coming = []; // that are to be pressed again
let seen = null;
let fixOf = (name) => name;
let sessions = api; // who starts a session, tells of it, and hears what is pressed
let circle = null; // the verdict on a ring that has closed since the buyers began

/** Set up the section; `recorded` answers in place of a server. */
export function listen(chosen, fix, recorded = api) {
  fixOf = fix;
  sessions = recorded;
  byId("begin").addEventListener("click", () => begin(chosen()));
  byId("undo").addEventListener("click", undo);
  document.querySelectorAll("[data-next]").forEach((button) => button.addEventListener("click", () => next(button.dataset.next)));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (current && BUYERS.includes(key.toUpperCase())) next(key.toUpperCase());
    if (key === "u") undo();
  });
  // A session whose visitor has gone would block others until it notices.
  addEventListener("pagehide", () => { if (current && !over) sessions.say(current, "stop").catch(() => {}); });
}

/** Begin a puzzle of a real strategy; one of the model isn't played here. */
export function open(puzzle, number) {
  if (!puzzle.strategy) return false;
  tellPuzzle(puzzle, number, byId("step-bar"));
  byId("steps").scrollIntoView();
  begin(puzzle.strategy);
  return true;
}

/** Begin a session; `again` are the presses that lead it to where an earlier one was. */
export async function begin(name, again = []) {
  const mine = ++begun;
  const before = over ? null : current;
  current = null;
  over = false;
  ready(byId("begin"), false);
  strategy = name;
  circle = null;
  presses = [];
  ready(byId("undo"), false);
  coming = [...again];
  seen = null;
  tell("", gettext("Two buyers come to the shop …"));
  byId("stage-of-steps").hidden = byId("tile").hidden = false;
  byId("ring").hidden = true;
  byId("step-strategy").textContent = name;
  await Promise.all(BUYERS.map((buyer) => panes[buyer].show(name)));
  try {
    if (before) await sessions.say(before, "stop").catch(() => {});
    const { id } = await sessions.startSteps({ strategy: name });
    if (mine !== begun) return sessions.say(id, "stop").catch(() => {});
    current = id;
    byId("begin").textContent = gettext("Begin again");
    ready(byId("begin"), true);
    for await (const event of sessions.follow(id)) if (id === current) hear(event);
  } catch (problem) {
    if (mine === begun) tell("bad", problem instanceof api.Refused ? problem.message : gettext("The lab doesn't answer."));
  }
  if (mine === begun) ready(byId("begin"), true);
}

// The focus stays where it is: a button that can't be pressed now only says so.
const ready = (button, on) => button.setAttribute("aria-disabled", !on);
const isReady = (button) => button.getAttribute("aria-disabled") !== "true";

async function next(name) {
  const button = lane(name).querySelector("[data-next]");
  if (!isReady(button) || !current) return;
  ready(button, false);
  presses.push(name);
  ready(byId("undo"), true);
  await sessions.say(current, name).catch((problem) => tell("bad", problem.message));
}

// A step can't be taken back in a database, so the session is begun again and led to the step before.
function undo() {
  if (isReady(byId("undo")) && presses.length) begin(strategy, presses.slice(0, -1));
}

function hear(event) {
  if (event.type === "steps") show(event);
  if (event.type !== "ended") return;
  current = null;
  BUYERS.forEach((name) => ready(lane(name).querySelector("[data-next]"), false));
  if (event.why !== "done") tell("", event.why === "idle" ? gettext("Nobody pressed anything for a while, so the session has ended.") : `${gettext("The session has ended.")} ${event.problem ?? ""}`);
}

function show(state) {
  BUYERS.forEach((name) => showLane(name, state.lanes[name]));
  showTile(state);
  showRing(state);
  check(state);
  over = BUYERS.every((name) => state.lanes[name].state === "done");
  if (circle) tell("won", circle, "", "ordered_locks");
  else if (over) judge(state);
  else if (byId("ring").dataset.closed) tell("", gettext("The ring is closed: each waits for what the other has. Now wait for the one who is made to give up."));
  else tell("", BUYERS.every((name) => !state.lanes[name].marks.length) ? gettext("Neither has begun. Press A or B.") : "");
  pressAgain(state);
}

// The next press waits until the one before it has arrived, or its buyer waits for the other.
function pressAgain(state) {
  const [name] = coming;
  if (!name) return;
  const before = presses.at(-1);
  const arrived = !before || state.lanes[before].marks.length > (seen?.[before] ?? -1) || state.lanes[before].blocked || state.lanes[before].state === "done";
  if (!arrived || state.lanes[name].state !== "parked") return;
  seen = Object.fromEntries(BUYERS.map((buyer) => [buyer, state.lanes[buyer].marks.length]));
  coming.shift();
  next(name);
}

// Two locks are worth a drawing; one is said in words.
function showRing(state) {
  byId("ring").hidden = state.products.length < 2;
  if (byId("ring").hidden) return;
  drawRing(byId("ring"), state);
  const ring = ringOf(state);
  byId("ring").dataset.closed = ring ? "yes" : "";
  if (!ring?.victim || circle) return;
  const { has, wants } = state.lanes[ring.victim].victim;
  const name = ([sku]) => PRODUCTS()[state.products.findIndex((product) => product.sku === sku)];
  circle = fill(gettext("You did it: %(victim)s had the %(had)s and waited for the %(wanted)s, %(other)s the other way round. %(victim)s was made to give up, so that %(other)s can go on."), { victim: ring.victim, other: ring.victim === "A" ? "B" : "A", had: name(has), wanted: name(wants) });
}

function showTile(state) {
  const many = state.products.length > 1;
  const others = state.products.slice(1).map(({ left }, at) => make("span", { className: "tile-other" }, make("span", { className: "tile-label", textContent: PRODUCTS()[at + 1] }), " ", make("strong", { textContent: left })));
  byId("tile-name").textContent = many ? PRODUCTS()[0] : gettext("stock");
  byId("tile-others").replaceChildren(...others);
  byId("tile-stock").textContent = state.left;
  byId("tile").classList.toggle("bad", state.sold > state.initial);
  byId("totals").textContent = figures(state.sold, state.initial, state.left).join(" · ");
  byId("totals").title = sum(state.initial, state.sold, state.left);
}

function showLane(name, one) {
  const names = STEP_NAMES();
  const place = lane(name);
  place.dataset.state = one.blocked ? "blocked" : one.state;
  place.querySelector(".marks").replaceChildren(...one.marks.map(([mark, stock]) => make("li", { className: mark, textContent: stock === null ? (names[mark] ?? mark) : fill(gettext("%(step)s: %(stock)s"), { step: names[mark] ?? mark, stock }) })));
  place.querySelector(".now").textContent = now(one);
  ready(place.querySelector("[data-next]"), one.state === "parked");
  const line = one.state === "done" ? null : one.marks.at(-1)?.[2];
  panes[name].light(line ? { [name]: line } : {});
}

function now(one) {
  if (one.state === "done") return `${ANSWERS()[one.answer] ?? one.answer} ${one.answer === "error" ? one.problem : ""}`;
  if (one.blocked?.on === "row") return fill(gettext("‖ waits for %(by)s, who has the row"), one.blocked);
  if (one.blocked) return fill(gettext("‖ waits for %(by)s, who has the lock"), one.blocked);
  if (one.state !== "parked") return gettext("on its way …");
  if (one.marks.at(-1)?.[0] !== "busy") return "";
  // Who waits for whom in a circle is what there is to see; a time that is over is said in plain words.
  return one.marks.some(([mark]) => mark === "deadlocked") ? one.problem : gettext("waited too long for the other: press again to try again");
}

async function judge(state) {
  const name = strategy;
  const answers = BUYERS.map((buyer) => state.lanes[buyer].answer);
  if (answers.includes("home")) return;
  const fix = fixOf(name);
  if (state.sold > state.initial) return tell("won", gettext("You did it: the last piece is sold twice."), "", fix === name ? "" : fix);
  const { sound, verdict } = await api.source(name);
  if (name !== strategy) return;
  if (state.products.length > 1) return tell(sound ? "kept" : "", sound ? gettext("Sold once, and no ring can close: both lock in the same order.") : gettext("Sold once, without a deadlock. Let each lock its first product before either goes on to its second."), sound ? verdict : "");
  if (!sound) tell("", gettext("Sold once. This strategy can be broken: let both read before either writes."));
  else tell("kept", gettext("Sold once, and with this strategy it can't be sold twice."), verdict);
}

function tell(kind, text, why = "", fix = "") {
  const goal = byId("goal");
  goal.hidden = !text;
  goal.className = `verdict ${kind}`;
  goal.replaceChildren(text);
  if (why) goal.append(make("small", { textContent: ` ${why}` }));
  const button = byId("try-fix");
  button.hidden = !fix;
  button.textContent = fill(gettext("Now try %(fix)s"), { fix });
  button.onclick = () => begin(fix);
}

function check(state) {
  PUZZLES().forEach((puzzle, at) => puzzle.strategy === strategy && GOALS[puzzle.goal](state) && markSolved(at + 1));
}
