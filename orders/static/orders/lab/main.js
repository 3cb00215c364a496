// The lab: buttons, address, and who shows what.

import { Refused, follow, say, startRace } from "./api.js";
import { CodePane } from "./code.js";
import { byId, fill, make } from "./dom.js";
import { fillIn } from "./matrix.js";
import { Panel } from "./panel.js";
import * as steps from "./steps.js";

const form = byId("controls");
const select = form.elements.strategy;
const code = new CodePane(byId("race-code"));
const panels = { left: new Panel(byId("left"), follows), right: new Panel(byId("right"), follows) };
const shown = {}; // ids of the runs that are seen, by panel
let running = null;

const option = (name) => [...select.options].find((one) => one.value === name);
const strategyOf = (name) => option(name)?.dataset.strategy ?? name;

// The two buttons of the first visit -----------------------------------------------------------------------

function pair() {
  const chosen = select.value === "all" ? option("lost_update") : select.selectedOptions[0];
  if (chosen.dataset.sound === "no") return [chosen.value, chosen.dataset.fix];
  const broken = [...select.options].filter((one) => one.dataset.fix === chosen.value)[0];
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
  byId("code-title").textContent = parts.name;
  byId("code-notes").replaceChildren(...["interleaving", "verdict"].map((part) => make("p", { lang: "en", textContent: parts[part] ?? "" })));
}

async function follows(panel) {
  if (code.name === panel.race.strategy) code.light(panel.standing());
}

// Racing ---------------------------------------------------------------------------------------------------

function fields(more) {
  return { ...Object.fromEntries(new FormData(form)), fault: "none", ...more };
}

async function race(more) {
  if (running) return;
  busy(true);
  say_(gettext("The buyers are coming …"));
  try {
    const { id } = await startRace(fields(more));
    running = id;
    await watch(id);
  } catch (problem) {
    say_(problem instanceof Refused ? problem.message : gettext("The lab doesn't answer."), true);
  }
  running = null;
  busy(false);
}

async function watch(id, place) {
  for await (const event of follow(id)) {
    if (event.type === "round") begin(event);
    if (event.type === "answered") answered(event);
    if (event.type === "result") result(event, id, place);
    if (event.type === "ended") ended(event);
  }
}

function begin({ name, attempt, parameters }) {
  const text = attempt > 1 ? gettext("%(name)s: its fault did not show, try %(attempt)s …") : gettext("%(name)s: %(buyers)s buyers at the door …");
  say_(fill(text, { name, attempt, buyers: parameters.buyers }));
  byId("progress").max = parameters.buyers;
  byId("progress").value = 0;
}

function answered({ name, buyers, parameters }) {
  byId("progress").value = buyers;
  say_(fill(gettext("%(name)s: %(buyers)s of %(all)s buyers have their answer"), { name, buyers, all: parameters.buyers }));
}

function result(found, id, wanted) {
  fillIn(found);
  const place = wanted ?? (found.sound ? "right" : "left");
  if (place === "left" && !wanted && shown.right) panels.right.clear(gettext("Here its fix will be seen, beside it."));
  if (place === "left" && !wanted) delete shown.right;
  shown[place] = id;
  showCode(found.name);
  panels[place].show(found);
  remember(found.parameters);
}

function ended({ why, problem }) {
  const words = {
    done: gettext("Done."),
    stopped: gettext("Stopped: the buyers went home, and nothing of theirs is left."),
    late: gettext("Called off: it took too long."),
    died: gettext("The race ended before its time: its process was killed."),
    left: gettext("The race ended before its time: its server was restarted."),
  };
  say_(words[why] ?? `${gettext("The race failed:")} ${problem}`, !["done", "stopped"].includes(why));
}

function busy(on) {
  byId("lab").setAttribute("aria-busy", on);
  document.querySelectorAll("#broken, #fixed, #race, #race-all, [data-fault]").forEach((button) => { button.disabled = on; });
  byId("progress").hidden = byId("stop").hidden = byId("held").hidden = !on;
}

function say_(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}

// The address: everything that was asked for, and the runs that are seen ------------------------------------

function remember(parameters) {
  const address = new URL(location.pathname, location.href);
  Object.entries(parameters).forEach(([name, value]) => address.searchParams.set(name, value));
  Object.entries(shown).forEach(([place, id]) => address.searchParams.set(place, id));
  history.replaceState(null, "", address);
  byId("link").hidden = false;
}

async function replay() {
  const wanted = new URLSearchParams(location.search);
  for (const place of ["left", "right"]) {
    if (!wanted.get(place)) continue;
    try {
      await watch(wanted.get(place), place);
      say_(gettext("This is a race that was run before. Race to see a new one."));
    } catch (problem) {
      say_(problem.message, true);
    }
  }
}

async function copy() {
  await navigator.clipboard?.writeText(location.href).catch(() => {});
  byId("link").textContent = gettext("Copied");
}

// Start ----------------------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => { event.preventDefault(); race({}); });
select.addEventListener("change", choose);
byId("broken").addEventListener("click", () => race({ strategy: pair()[0] }));
byId("fixed").addEventListener("click", () => race({ strategy: pair()[1] }));
byId("race-all").addEventListener("click", () => race({ strategy: "all" }));
byId("stop").addEventListener("click", () => running && say(running, "stop").catch(() => {}));
byId("link").addEventListener("click", copy);
byId("to-steps").addEventListener("click", () => {
  byId("steps").scrollIntoView();
  byId("begin").focus();
});
document.querySelectorAll("[data-fault]").forEach((button) => button.addEventListener("click", () => {
  byId("panels").scrollIntoView();
  race({ ...button.dataset, buyers: 20, stock: 10, gap: 20, processes: 2 });
}));
byId("matrix").addEventListener("click", (event) => {
  const button = event.target.closest("[data-show]");
  if (button) showCode(button.dataset.show);
});
steps.listen(() => strategyOf(select.value === "all" ? "lost_update" : select.value));
choose();
replay();
