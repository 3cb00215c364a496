// One's own strategy: the text, the search, and the schedule that is played or led by hand.

import { lineRow } from "./code.js";
import { byId, fill, isStill, make } from "./dom.js";
import { drawLanes } from "./lanes.js";
import { advance, blocked, parse, ready, run, searchAll, start } from "./model.js";
import { STARTERS, fixed, listPuzzles, markSolved, tellPuzzle } from "./puzzles.js";
import { ANSWERS, STEP_NAMES } from "./words.js";

const STEP_MS = 700;
const LETTERS = ["a", "b", "c", "d"];
// The marks of the lab's own races, for the same drawing.
const MARKS = { write: "written", update: "written", lock: "locked", unlock: "unlocked", delete: "unlocked", commit: "committed", fence: "fenced", busy: "refused" };
const ANSWER = { done: "sold", refused: "refused", stale_token: "refused", busy: "error" };

let program = null;
let puzzle = null; // { puzzle, number } while its own program is played
let states = []; // from the start to where one is
let timer = 0;

/** Set up the section; `openElsewhere` may take a puzzle over, and says so. */
export function listen(openElsewhere = () => false) {
  byId("starters").replaceChildren(...STARTERS().map(({ name, program: text }) => make("button", { type: "button", textContent: name, onclick: () => write(text) })));
  fillIn(STARTERS()[0].program);
  byId("own-words").open = matchMedia("(min-width: 62rem)").matches;
  byId("search").addEventListener("click", find);
  byId("own-steps").addEventListener("click", byHand);
  byId("own-begin").addEventListener("click", byHand);
  byId("own-undo").addEventListener("click", () => { halt(); if (states.length > 1) states.pop(); draw(); });
  byId("own-play").addEventListener("click", () => (timer ? halt() : play(schedule())));
  byId("show-fix").addEventListener("click", () => write(fixed(puzzle.puzzle), find));
  new ResizeObserver(() => states.length && plot()).observe(byId("own-panel"));
  listPuzzles((chosen, number) => openElsewhere(chosen, number) || open(chosen, number));
}

function open(chosen, number) {
  write(chosen.program, byHand);
  puzzle = { puzzle: chosen, number };
  tellPuzzle(chosen, number, byId("own-desk"));
  byId("own").scrollIntoView();
  byId("program").setAttribute("aria-describedby", "puzzle own-problems");
}

function write(text, then = () => byId("program").focus()) {
  halt();
  puzzle = text === (puzzle && fixed(puzzle.puzzle)) ? puzzle : null;
  fillIn(text);
  byId("own-player").hidden = true;
  byId("show-fix").hidden = true;
  tell("");
  then();
}

function fillIn(text) {
  byId("program").value = text;
  byId("program").rows = Math.min(24, Math.max(10, text.split("\n").length + 1));
}

// Return whether the text can be run; its errors are listed, and the cursor goes to the first.
function understood() {
  halt();
  program = parse(byId("program").value);
  const { problems } = program;
  byId("own-problems").replaceChildren(...problems.map(({ line, text }) => make("p", { textContent: fill(gettext("Line %(line)s: %(text)s"), { line, text }) })));
  if (!problems.length) {
    byId("program").removeAttribute("aria-invalid");
    return true;
  }
  byId("program").setAttribute("aria-invalid", "true");
  byId("own-player").hidden = true;
  tell("");
  mark(problems[0].line);
  return false;
}

function mark(line) {
  const area = byId("program");
  const lines = area.value.split("\n");
  const from = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  area.focus({ preventScroll: true });
  area.setSelectionRange(from, from + (lines[line - 1] ?? "").length);
}

async function find() {
  if (!understood()) return;
  const text = byId("program").value;
  tell("", gettext("Searching …"));
  const found = await searchAll(program);
  if (text !== byId("program").value) return; // it was changed meanwhile
  const last = found.at(-1);
  const facts = { ...last, goal: program.goals.map((goal) => goal.text).join(", "), steps: last.shortest?.length, number: shown(last.schedules), hits: shown(last.bad) };
  if (last.shortest) {
    tell("won", fill(ngettext("Found: after one step “%(goal)s” is true.", "Found: after %(steps)s steps “%(goal)s” is true.", facts.steps), facts), fill(ngettext("So ends one of the %(number)s schedules of %(buyers)s.", "So end %(hits)s of the %(number)s schedules of %(buyers)s.", last.bad), facts));
    begin(last.buyers);
    play(last.shortest);
  } else if (last.cut) tell("", gettext("Too many states: not all schedules were searched, and none of those that were does it."));
  else tell("kept", fill(program.named ? gettext("No schedule does it. Searched: %(number)s.") : gettext("No schedule of two or three buyers does it. Searched: %(two)s of two, %(number)s of three."), { ...facts, two: shown(found[0].schedules) }), said(found));
  byId("show-fix").hidden = !(last.shortest && puzzle && fixed(puzzle.puzzle) && byId("program").value === puzzle.puzzle.program);
}

const shown = (number) => (number < 1e15 ? number.toLocaleString(document.documentElement.lang) : number.toPrecision(3));
const said = (found) => (found.some(({ deadlocks }) => deadlocks) ? gettext("But some end in a deadlock.") : "");

function byHand() {
  if (!understood()) return;
  begin(2);
  tell("", gettext("You say who goes next."));
  draw();
}

function begin(buyers) {
  states = [start(program, buyers)];
  byId("own-player").hidden = false;
  byId("own-lanes").replaceChildren(...states[0].actors.map(lane));
}

const schedule = () => states.slice(1).map(({ who }) => who);

function play(whose) {
  const all = run(program, whose, states[0].actors.length);
  states = isStill() ? all : all.slice(0, 1);
  draw();
  const step = () => {
    if (states.length >= all.length) return halt();
    states = all.slice(0, states.length + 1);
    return draw();
  };
  if (states.length < all.length) timer = setInterval(step, STEP_MS);
  sayPlay();
}

function halt() {
  clearInterval(timer);
  timer = 0;
  sayPlay();
}

function sayPlay() {
  byId("own-play").textContent = timer ? "❚❚" : "▶";
  byId("own-play").setAttribute("aria-label", timer ? gettext("Pause") : gettext("Play again, slowly"));
}

function next(at) {
  halt();
  const state = states.at(-1);
  if (state.over || !ready(state).includes(at)) return;
  states.push(advance(program, state, at));
  draw();
  if (!states.at(-1).bad || state.bad) return;
  tell("won", fill(gettext("You did it: “%(goal)s” is true."), { goal: program.goals.map((goal) => goal.text).join(", ") }), puzzle ? gettext("Search all schedules to see the fix.") : "");
  if (puzzle && byId("program").value === puzzle.puzzle.program) markSolved(puzzle.number);
}

function tell(kind, text = "", why = "") {
  byId("own-verdict").className = `verdict ${kind}`;
  byId("own-verdict").replaceChildren(text);
  if (why) byId("own-verdict").append(make("small", { textContent: ` ${why}` }));
}

// What is seen ---------------------------------------------------------------------------------------------

const nameOf = ({ name }) => (name.length === 1 ? `${gettext("Buyer")} ${name}` : name);

function lane(actor, at) {
  const code = make("div", { className: "code", role: "group", tabIndex: 0, ariaLabel: fill(gettext("The steps of %(name)s"), { name: nameOf(actor) }) }, ...actor.steps.map(({ line, text }) => lineRow(line, make("code", { textContent: text }))));
  const place = make("article", { className: `lane lane-${LETTERS[at]}`, ariaLabel: nameOf(actor) },
    make("h3", { textContent: nameOf(actor) }),
    make("button", { type: "button", className: "next", textContent: `${actor.name} · ${gettext("next")}`, onclick: () => next(at) }),
    make("p", { className: "now" }), code, make("ol", { className: "marks" }));
  place.dataset.actor = actor.name;
  return place;
}

function draw() {
  const state = states.at(-1);
  byId("own-rows").textContent = Object.entries(state.rows).map(([name, number]) => `${name} = ${number}`).join(" · ");
  byId("own-rows").classList.toggle("bad-text", state.bad);
  state.actors.forEach((actor, at) => drawLane(byId("own-lanes").children[at], actor, at, state));
  byId("own-undo").setAttribute("aria-disabled", states.length < 2);
  plot();
}

function drawLane(place, actor, at, state) {
  const by = blocked(state, actor);
  place.dataset.state = by ? "blocked" : "";
  place.querySelector(".next").setAttribute("aria-disabled", state.over || !ready(state).includes(at));
  place.querySelector(".now").textContent = now(actor, by, state);
  place.querySelectorAll(".line").forEach((line, number) => {
    const here = !actor.end && number === actor.at;
    line.classList.toggle("lit", here);
    line.firstChild.textContent = here ? "▶" : "";
  });
  const steps = states.slice(1).filter(({ who }) => who === at);
  place.querySelector(".marks").replaceChildren(...steps.map(({ said: one, rows }) => make("li", { textContent: markText(actor, one, rows) })));
}

function markText(actor, { mark: name, line, stock, token }) {
  const { text } = actor.steps.find((step) => step.line === line);
  if (name === "refused") return `${text}: ${gettext("no")}`;
  if (["overtaken", "waiting", "stale_token", "busy"].includes(name)) return STEP_NAMES()[name];
  return stock === undefined && token === undefined ? text : `${text}: ${stock ?? fill(gettext("token %(token)s"), { token })}`;
}

function now(actor, by, state) {
  if (actor.end === "stale_token") return `✗ ${STEP_NAMES().stale_token}`;
  if (actor.end) return { ...ANSWERS(), sold: gettext("✓ done"), error: gettext("! gave up") }[ANSWER[actor.end]];
  if (by) return state.deadlock ? fill(gettext("‖ waits for %(by)s forever: a deadlock"), by) : fill(gettext("‖ waits for %(by)s, who has %(on)s"), by);
  const lost = states.at(-1).said?.ended?.find((lock) => lock.by === actor.name);
  return lost ? fill(gettext("its lease of %(name)s has ended"), lost) : "";
}

/** The schedule as a race of the lab: a step is a millisecond. */
function raceOf() {
  const end = states.length - 1;
  const buyers = states.at(-1).actors.map((actor, at) => {
    const marks = states.flatMap((state, ms) => (state.who === at ? marksOf(state, state.actors[at], ms) : []));
    const gone = states.findIndex((state) => state.actors[at].end);
    return { number: at + 1, from: 0, to: gone < 0 ? end : gone, answer: gone < 0 ? "" : ANSWER[actor.end], marks };
  });
  return { buyers, initial: program.rows.stock ?? Infinity, sound: false, kept: false, strategy: "own" };
}

function marksOf({ said: one }, actor, ms) {
  const name = one.mark === "sell" ? (actor.tx ? "recorded" : "committed") : MARKS[one.mark] ?? one.mark;
  const marks = [[name, ms, one.stock ?? null, one.line]];
  return ["write", "update"].includes(one.mark) && !actor.tx ? [...marks, ["committed", ms, null, one.line]] : marks;
}

const inSteps = (number) => interpolate(ngettext("%s step", "%s steps", number), [number]);

function plot() {
  const end = states.length - 1;
  byId("own-panel").hidden = !end;
  if (!end) return;
  const bad = states.findIndex((state) => state.bad);
  const moments = bad < 0 ? [] : [{ ms: bad }];
  const label = states.slice(1).map(({ who, said: one }) => `${states[0].actors[who].name} ${one.mark}`).join(", ");
  drawLanes(byId("own-panel").querySelector(".swim"), raceOf(), { end, moments, label, onPick: () => {}, unit: inSteps })(end);
}
