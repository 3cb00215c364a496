// What is said of a race: one number first, then what was sold, what there was and what the page says.

import { fill } from "./dom.js";

const count = (text, number) => interpolate(text, [number]);

/** The verdict as one sentence with one number. */
export function headline(race) {
  if (race.oversold) return count(ngettext("%s person paid for a mug that doesn't exist", "%s people paid for a mug that doesn't exist", race.oversold), race.oversold);
  if (race.deadlocks) return count(ngettext("%s deadlock: buyers waited for each other in a circle", "%s deadlocks: buyers waited for each other in a circle", race.deadlocks), race.deadlocks);
  if (race.unaccounted > 0) return count(ngettext("%s mug is lost: neither sold nor in stock", "%s mugs are lost: neither sold nor in stock", race.unaccounted), race.unaccounted);
  if (race.unaccounted < 0) return count(ngettext("The page shows %s mug that is already sold", "The page shows %s mugs that are already sold", -race.unaccounted), -race.unaccounted);
  if (race.errors) return count(ngettext("Everyone who paid gets a mug, but %s buyer got no answer", "Everyone who paid gets a mug, but %s buyers got no answer", race.errors), race.errors);
  if (!race.exact) return fill(gettext("Everyone who paid gets a mug, but only %(sold)s of %(due)s mugs were sold"), race);
  return count(ngettext("%s mug sold, to a buyer who gets it", "%s mugs sold, each to a buyer who gets it", race.sold), race.sold);
}

/** Three figures: sold, in stock, and what the product page says. */
export const figures = (sold, initial, left) => [
  fill(gettext("sold %(sold)s"), { sold }),
  fill(gettext("in stock %(initial)s"), { initial }),
  fill(gettext("page says %(left)s"), { left }),
];

/** The verdict and its figures, for those who hear the page. */
export const announcement = (race) => fill(gettext("%(name)s: %(verdict)s. %(figures)s"), { name: race.name, verdict: headline(race), figures: figures(race.sold, race.initial, race.left).join(" · ") });

/** The sum behind the verdict. */
export function sum(initial, sold, left) {
  const unaccounted = initial - sold - left;
  if (!unaccounted) return gettext("Every unit is accounted for: in stock − sold − page = 0.");
  return fill(gettext("%(unaccounted)s unaccounted for: in stock %(initial)s − sold %(sold)s − page %(left)s."), { unaccounted, initial, sold, left });
}

/** `wrong`: too much was sold or units are missing; `short`: safe, and too little was sold; `right`. */
export function kindOf(race) {
  if (race.oversold || race.unaccounted || race.deadlocks) return "wrong";
  return race.exact ? "right" : "short";
}

export const SIGN = { wrong: "✗", short: "△", right: "✓" };

export function evidence(race) {
  const said = race.evidence[document.documentElement.lang] || race.evidence.en || answers(race);
  const first = said.charAt(0).toUpperCase() + said.slice(1);
  return [first, race.problems[0], trouble(race)].filter(Boolean).join(" ");
}

// Where the traces show nothing in particular, the buyers' answers are evidence too.
const answers = (race) => {
  const bought = count(ngettext("%s buyer got a mug", "%s buyers got a mug", race.sold), race.sold);
  const refused = count(ngettext("%s was refused: sold out", "%s were refused: sold out", race.refused), race.refused);
  return fill(gettext("%(bought)s, %(refused)s."), { bought, refused });
};

function trouble(race) {
  const kind = kindOf(race);
  if (kind === "short" && race.errors) return gettext("Nothing wrong was sold, but buyers went away without an answer.");
  if (kind !== "wrong" && !race.sound) return gettext("Its fault did not show this time: race again, or use more buyers and a longer gap.");
  return "";
}

/** The numbers of the buyers who paid for a unit that was no longer there: all sales after the last unit. */
export function victims(race) {
  const sales = race.buyers.filter((buyer) => buyer.answer === "sold").sort((a, b) => a.to - b.to);
  return new Set(sales.slice(race.initial).map((buyer) => buyer.number));
}

export const STEP_NAMES = () => ({
  waiting: gettext("waits for a lock"),
  locked: gettext("has the lock"),
  fenced: gettext("has passed the fence"),
  read: gettext("has read the stock"),
  decided: gettext("has decided: enough"),
  written: gettext("has written the new stock"),
  recorded: gettext("has written the order"),
  committed: gettext("has committed"),
  unlocked: gettext("has released the lock"),
  overtaken: gettext("was overtaken, begins again"),
  busy: gettext("was refused: busy, try again"),
  deadlocked: gettext("was the victim of a deadlock: both waited for each other"),
  unavailable: gettext("Redis does not answer"),
  lost: gettext("has lost its lock: nothing is written"),
  stale_token: gettext("came with an old token: refused by the database"),
  second_line: gettext("was stopped by the database"),
});

export const ANSWERS = () => ({
  sold: gettext("✓ bought it"),
  refused: gettext("✗ sold out"),
  error: gettext("! error"),
  home: gettext("left"),
});
