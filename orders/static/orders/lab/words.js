// What is said of a race. Always with initial − sold − left.

import { fill } from "./dom.js";

export function verdict(race) {
  const parts = [
    fill(gettext("Sold %(sold)s of %(initial)s"), race),
    fill(gettext("the page says %(left)s left"), race),
    missing(race.unaccounted),
  ];
  if (race.deadlocks) parts.push(interpolate(ngettext("%s deadlock", "%s deadlocks", race.deadlocks), [race.deadlocks]));
  if (race.errors) parts.push(interpolate(ngettext("%s buyer without an answer", "%s buyers without an answer", race.errors), [race.errors]));
  return parts.join(" · ");
}

export function missing(unaccounted) {
  const units = Math.abs(unaccounted);
  if (!units) return gettext("every unit accounted for");
  return interpolate(ngettext("%s unit unaccounted for", "%s units unaccounted for", units), [units]);
}

/** `wrong`: too much was sold or units are missing; `short`: safe, and too little was sold; `right`. */
export function kindOf(race) {
  if (race.oversold || race.unaccounted || race.deadlocks) return "wrong";
  return race.exact ? "right" : "short";
}

export const SIGN = { wrong: "✗", short: "△", right: "✓" };

export function evidence(race) {
  const said = race.evidence[document.documentElement.lang] ?? race.evidence.en;
  const first = said.charAt(0).toUpperCase() + said.slice(1);
  return [first, race.problems[0], trouble(race)].filter(Boolean).join(" ");
}

function trouble(race) {
  const kind = kindOf(race);
  if (kind === "short" && race.errors) return gettext("Nothing wrong was sold, but buyers went away without an answer.");
  if (kind !== "wrong" && !race.sound) return gettext("Its fault did not show this time: race again, or use more buyers and a longer gap.");
  return "";
}

export const STEP_NAMES = () => ({
  waiting: gettext("waits for a lock"),
  locked: gettext("has the lock"),
  read: gettext("has read the stock"),
  decided: gettext("has decided: enough"),
  written: gettext("has written the new stock"),
  recorded: gettext("has written the order"),
  committed: gettext("has committed"),
  unlocked: gettext("has let the lock go"),
  overtaken: gettext("was overtaken, begins again"),
  busy: gettext("was told: busy, try again"),
  deadlocked: gettext("was ended by the database: both waited for each other"),
  unavailable: gettext("Redis does not answer"),
  second_line: gettext("was stopped by the database"),
});

export const ANSWERS = () => ({
  sold: gettext("✓ bought it"),
  refused: gettext("✗ sold out"),
  error: gettext("! error"),
  home: gettext("went home"),
});
