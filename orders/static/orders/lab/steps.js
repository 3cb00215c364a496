// Step by step: two buyers, and the last piece.

import { Refused, follow, say, source, startSteps } from "./api.js";
import { CodePane } from "./code.js";
import { byId, fill, make } from "./dom.js";
import { ANSWERS, STEP_NAMES, missing } from "./words.js";

const code = new CodePane(byId("step-code"));
const lane = (name) => document.querySelector(`[data-lane="${name}"]`);
let current = null;

export function listen(strategy) {
  byId("begin").addEventListener("click", () => begin(strategy()));
  document.querySelectorAll("[data-next]").forEach((button) => button.addEventListener("click", () => next(button)));
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (current && ["a", "b"].includes(event.key.toLowerCase())) next(lane(event.key.toUpperCase()).querySelector("button"));
  });
  // A session whose visitor has gone would block others until it notices.
  addEventListener("pagehide", () => { if (current) say(current, "stop").catch(() => {}); });
}

export async function begin(strategy) {
  byId("begin").disabled = true;
  tell("", gettext("Two buyers come to the shop …"));
  byId("stage").hidden = false;
  await code.show(strategy);
  try {
    if (current) await say(current, "stop").catch(() => {});
    const { id } = await startSteps({ strategy });
    current = id;
    byId("begin").textContent = gettext("Begin again");
    byId("begin").disabled = false;
    for await (const event of follow(id)) if (id === current) hear(event, strategy);
  } catch (problem) {
    tell("bad", problem instanceof Refused ? problem.message : gettext("The lab doesn't answer."));
  }
  byId("begin").disabled = false;
}

async function next(button) {
  if (button.disabled || !current) return;
  button.disabled = true;
  await say(current, button.dataset.next).catch((problem) => tell("bad", problem.message));
}

function hear(event, strategy) {
  if (event.type === "steps") show(event, strategy);
  if (event.type !== "ended") return;
  current = null;
  document.querySelectorAll("[data-next]").forEach((button) => { button.disabled = true; });
  if (event.why !== "done") tell("", event.why === "idle" ? gettext("Nobody pressed anything for a while, so both went home.") : `${gettext("The session has ended.")} ${event.problem ?? ""}`);
}

function show(state, strategy) {
  const lanes = Object.entries(state.lanes);
  lanes.forEach(([name, one]) => showLane(name, one));
  code.light(Object.fromEntries(lanes.filter(([, one]) => one.state !== "done").map(([name, one]) => [name, one.marks.at(-1)?.[2]]).filter(([, line]) => line)));
  byId("books").hidden = false;
  byId("books").textContent = [fill(gettext("sold %(sold)s of %(initial)s"), state), fill(gettext("the page says %(left)s left"), state), missing(state.initial - state.sold - state.left)].join(" · ");
  if (lanes.every(([, one]) => one.state === "done")) judge(state, strategy);
  else tell("", lanes.every(([, one]) => !one.marks.length) ? gettext("Both stand at the door. Press A or B.") : "");
}

function showLane(name, one) {
  const names = STEP_NAMES();
  const place = lane(name);
  place.dataset.state = one.blocked ? "blocked" : one.state;
  place.querySelector(".marks").replaceChildren(...one.marks.map(([mark, stock]) => make("li", { className: mark, textContent: `${names[mark] ?? mark}${stock === null ? "" : `: ${stock}`}` })));
  place.querySelector(".now").textContent = now(one);
  place.querySelector("button").disabled = one.state !== "parked";
}

function now(one) {
  if (one.state === "done") return `${ANSWERS()[one.answer] ?? one.answer} ${one.answer === "error" ? one.problem : ""}`;
  if (one.blocked?.on === "row") return fill(gettext("‖ waits for %(by)s, who has the row"), one.blocked);
  if (one.blocked) return fill(gettext("‖ waits for %(by)s, who has the lock"), one.blocked);
  return one.state === "parked" ? "" : gettext("on its way …");
}

async function judge(state, strategy) {
  const answers = Object.values(state.lanes).map((one) => one.answer);
  if (answers.includes("home")) return;
  if (state.sold > state.initial) return tell("won", gettext("You did it: the last piece is sold twice. Now try it with a sound strategy."));
  const { sound, verdict } = await source(strategy);
  if (!sound) return tell("", gettext("Sold once. This strategy can be broken: let both read before either writes."));
  tell("kept", gettext("Sold once, and with this strategy it can't be sold twice."), verdict);
}

function tell(kind, text, why = "") {
  const goal = byId("goal");
  goal.hidden = !text;
  goal.className = `verdict ${kind}`;
  goal.replaceChildren(text);
  if (why) goal.append(make("small", { lang: "en", textContent: ` ${why}` }));
}
