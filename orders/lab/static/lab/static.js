// The lab without a server: recorded races, their strategies' lines, the puzzles and one's own strategy.

import { recording } from "./api.js";
import { CodePane } from "./code.js";
import { byId, make } from "./dom.js";
import { fillIn, whenChosen } from "./matrix.js";
import * as own from "./own.js";
import * as replay from "./replay.js";
import { Stage } from "./stage.js";
import * as steps from "./steps.js";

const code = new CodePane(byId("race-code"));
const stage = new Stage((panel) => code.name === panel.race.strategy && code.light(panel.standing()));

async function showCode(name) {
  const parts = await code.show(name.split("@")[0]);
  byId("code-title").textContent = parts.name;
  byId("code-idea").textContent = parts.idea ?? "";
  byId("code-notes").replaceChildren(...["interleaving", "verdict"].map((part) => make("p", { textContent: parts[part] ?? "" })));
}

// In a frame of another page there is room for the puzzle alone.
document.documentElement.classList.toggle("embed", new URLSearchParams(location.search).get("embed") === "1");
// The other language shows the same puzzle.
document.querySelectorAll("[data-language]").forEach((link) => link.addEventListener("click", () => { link.search = location.search; }));

const select = byId("recorded");
steps.listen(() => select.value, (name) => [...select.options].find((one) => one.value === name)?.dataset.fix ?? name, replay);
own.listen(steps.open);
const { parameters, races } = await recording();
races.forEach((race) => fillIn(race, true));
whenChosen(showCode);
showCode("lost_update");
const full = (name) => ({ ...races.find((race) => race.name === name), parameters });
stage.show("left", full("lost_update"), { recorded: true });
stage.show("right", full("row_lock"), { recorded: true });
