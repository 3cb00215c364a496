// The lab: buttons, address, and who shows what.

import { Refused, follow, recording, say, startRace } from "./api.js";
import { CodePane } from "./code.js";
import { byId, fill, make } from "./dom.js";
import { fillIn, whenChosen } from "./matrix.js";
import * as own from "./own.js";
import { Lecture } from "./present.js";
import { Stage } from "./stage.js";
import * as steps from "./steps.js";
import { announcement } from "./words.js";

const form = byId("controls");
const select = form.elements.strategy;
const code = new CodePane(byId("race-code"));
const stage = new Stage(follows);
const wanted = new URLSearchParams(location.search);
const lecture = wanted.get("present") === "1" ? new Lecture() : null;
const results = new Map(); // by name: what was raced since the page was opened
let shown = {}; // what is seen: { left, right } with { id, race, parameters }, or { all: id }
let running = null;

const option = (name) => [...select.options].find((one) => one.value === name);
const strategyOf = (name) => option(name)?.dataset.strategy ?? name;
const EMPTY = { left: () => gettext("The broken strategy appears here."), right: () => gettext("The fix appears here.") };

// The two buttons of the first visit -----------------------------------------------------------------------

function pair(name = select.value) {
  const chosen = option(name === "all" ? "lost_update" : name);
  if (chosen.dataset.sound === "no") return [chosen.value, chosen.dataset.fix];
  const broken = [...select.options].find((one) => one.dataset.fix === chosen.value);
  return [broken?.value ?? "lost_update", chosen.value];
}

function choose() {
  const [broken, fix] = pair();
  byId("broken").querySelector("small").textContent = broken;
  byId("fixed").querySelector("small").textContent = fix;
  byId("idea").textContent = select.selectedOptions[0].dataset.idea;
  showCode(select.value === "all" ? "lost_update" : select.value);
}

async function showCode(name) {
  const parts = await code.show(strategyOf(name));
  if (code.name !== strategyOf(name)) return; // another was chosen before this one came
  byId("code-title").textContent = parts.name;
  byId("code-idea").textContent = option(name)?.dataset.idea ?? "";
  byId("code-notes").replaceChildren(...["interleaving", "verdict"].map((part) => make("p", { textContent: parts[part] ?? "" })));
}

function follows(panel) {
  if (code.name === panel.race.strategy) code.light(panel.standing());
}

// Racing ---------------------------------------------------------------------------------------------------

function fields(more) {
  return { ...Object.fromEntries(new FormData(form)), fault: "none", ...more };
}

async function race(more) {
  if (running) return;
  running = "starting";
  busy(true);
  point([]);
  endRecording();
  tell(gettext("The buyers are on their way …"));
  try {
    const { id } = await startRace(fields(more));
    running = id;
    await watch(id);
  } catch (problem) {
    tell(problem instanceof Refused ? problem.message : gettext("The lab doesn't answer."), true);
    point(problem.fields ?? []);
  }
  running = null;
  busy(false);
}

// A recording that went on would look like the race that is about to begin.
function endRecording() {
  for (const [place, panel] of Object.entries(stage.panels)) if (panel.race && panel.recorded) stage.clear(place, gettext("Your own race is on its way …"));
}

async function watch(id, place) {
  for await (const event of follow(id)) {
    if (event.type === "round") begin(event);
    if (event.type === "answered") answered(event);
    if (event.type === "result") result(event, id, place);
    if (event.type === "ended") ended(event, id);
  }
}

function begin({ name, attempt, parameters }) {
  const text = attempt > 1 ? gettext("%(name)s: its fault did not show, try %(attempt)s …") : gettext("%(name)s: %(buyers)s buyers are starting …");
  tell(fill(text, { name, attempt, buyers: parameters.buyers }));
  byId("progress").max = parameters.buyers;
  byId("progress").value = 0;
}

// Each answer moves the bar only: forty announcements would be too many.
function answered({ buyers, parameters }) {
  byId("progress").value = buyers;
  byId("counter").textContent = fill(gettext("%(buyers)s of %(all)s buyers have their answer"), { buyers, all: parameters.buyers });
}

const isAll = (parameters) => parameters.strategy === "all";

function result(found, id, wanted) {
  const { parameters } = found;
  fillIn(found);
  results.set(found.name, { id, race: found, parameters });
  if (isAll(parameters)) shown = { all: id };
  else put(wanted ?? (found.sound ? "right" : "left"), found.name, wanted);
  remember(parameters);
}

// Races shown side by side ran under the same conditions; a recording gives way to the visitor's own race.
function put(place, name, replayed) {
  const one = results.get(name);
  const other = place === "left" ? "right" : "left";
  const stays = shown[other] && same(shown[other].parameters, one.parameters);
  if (!stays || (place === "left" && !replayed)) {
    delete shown[other];
    stage.clear(other, EMPTY[other]());
  }
  delete shown.all;
  shown[place] = one;
  showCode(name);
  stage.show(place, one.race);
}

const same = (some, others) => ["buyers", "stock", "gap", "processes", "fault"].every((name) => String(some[name]) === String(others[name]));

/** Show a race of this visit beside what belongs to it: a broken strategy and its fix. */
function showPair(name) {
  showCode(name);
  const [broken, fix] = pair(name);
  const found = { left: results.get(broken), right: results.get(fix) };
  if (!results.get(name)) return;
  const { all } = shown;
  shown = all ? { all } : {};
  for (const place of ["left", "right"]) {
    if (!found[place] || !same(found[place].parameters, results.get(name).parameters)) {
      stage.clear(place, EMPTY[place]());
      continue;
    }
    if (!all) shown[place] = found[place];
    stage.show(place, found[place].race);
  }
}

function ended({ why, problem, parameters }, id) {
  const words = {
    stopped: gettext("Stopped: nothing of this race is left behind."),
    late: gettext("Called off: it took too long."),
    died: gettext("The race ended before its time: its process was killed."),
    left: gettext("The race ended before its time: its server was restarted."),
  };
  if (why !== "done") return tell(words[why] ?? `${gettext("The race failed:")} ${problem}`, why !== "stopped");
  const own = [...results.values()].filter((one) => one.id === id);
  if (isAll(parameters ?? {})) {
    if (own.length) showPair(results.get("lost_update")?.id === id ? "lost_update" : own[0].race.name);
    return tell(fill(gettext("Done: %(count)s strategies raced, %(wrong)s of them sold what doesn't exist."), { count: own.length, wrong: own.filter((one) => one.race.oversold).length }));
  }
  return tell(own.length ? announcement(own[0].race) : gettext("Done."));
}

// A disabled button would lose the focus, so the buttons only say that they can't be pressed now.
function busy(on) {
  byId("lab").setAttribute("aria-busy", on);
  document.querySelectorAll("#broken, #fixed, #race, #race-all, [data-fault]").forEach((button) => button.setAttribute("aria-disabled", on));
  byId("progress").hidden = byId("stop").hidden = byId("held").hidden = !on;
  byId("counter").textContent = "";
}

function tell(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}

/** Mark the fields that were refused, and go to the first. */
function point(names) {
  [...form.elements].forEach((field) => {
    const wrong = names.includes(field.name);
    if (wrong) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    describe(field, wrong);
  });
  if (names.length) form.elements[names[0]]?.focus();
}

/** Have the message read out with a field, beside what describes it anyway. */
function describe(field, wrong) {
  const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((id) => id && id !== "message");
  const all = wrong ? [...others, "message"] : others;
  if (all.length) field.setAttribute("aria-describedby", all.join(" "));
  else field.removeAttribute("aria-describedby");
}

// The address: everything that was asked for, and the runs that are seen ------------------------------------

function remember(parameters) {
  const address = new URL(location.pathname, location.href);
  Object.entries(parameters).forEach(([name, value]) => address.searchParams.set(name, value));
  if (shown.all) address.searchParams.set("all", shown.all);
  else ["left", "right"].forEach((place) => shown[place] && address.searchParams.set(place, shown[place].id));
  if (lecture) address.searchParams.set("present", "1");
  history.replaceState(null, "", address);
  byId("link").hidden = false;
}

async function replay() {
  const runs = ["all", "left", "right"].filter((place) => wanted.get(place));
  for (const place of runs) {
    try {
      await watch(wanted.get(place), place === "all" ? undefined : place);
      tell(gettext("This is a race that was run before. Race to see a new one."));
    } catch (problem) {
      tell(problem.message, true);
    }
  }
  return runs.length;
}

/** Before the first race of a visit: one that was recorded, so that the page shows what it is about at once. */
async function open() {
  const { parameters, races } = await recording();
  races.forEach((race) => fillIn(race, true));
  if (await replay()) return;
  const [broken, fix] = pair().map((name) => races.find((race) => race.name === name && race.buyers));
  if (running || !broken || !fix) return;
  if (!byId("message").textContent) tell(gettext("A recorded race. Press button 1 to run your own.")); // a refusal stays
  Object.entries({ left: broken, right: fix }).forEach(([place, race]) => shown[place] || stage.show(place, { ...race, parameters }, { recorded: true, play: !lecture }));
}

async function copy() {
  await navigator.clipboard?.writeText(location.href).catch(() => {});
  byId("link").textContent = gettext("Copied");
}

// Start ----------------------------------------------------------------------------------------------------

const left = () => race({ strategy: pair()[0] });
const right = () => race({ strategy: pair()[1] });

form.addEventListener("submit", (event) => { event.preventDefault(); race({}); });
select.addEventListener("change", choose);
byId("broken").addEventListener("click", left);
byId("fixed").addEventListener("click", right);
byId("race-all").addEventListener("click", () => race({ strategy: "all" }));
byId("stop").addEventListener("click", () => running && say(running, "stop").catch(() => {}));
byId("link").addEventListener("click", copy);
byId("to-steps").addEventListener("click", () => {
  byId("steps").scrollIntoView();
  byId("begin").focus({ preventScroll: true });
});
document.querySelectorAll("[data-fault]").forEach((button) => button.addEventListener("click", () => {
  if (running) return;
  byId("stage").scrollIntoView();
  race({ ...button.dataset, buyers: 20, stock: 10, gap: 20, processes: 2 });
}));
whenChosen(showPair);
steps.listen(() => strategyOf(select.value === "all" ? "lost_update" : select.value), (name) => pair(name)[1]);
own.listen(steps.open);
lecture?.listen(stage, left, right);
busy(false);
choose();
open().catch((problem) => tell(String(problem), true)).then(() => stage.panels.left.race && lecture?.ask(stage.panels.left.race));
