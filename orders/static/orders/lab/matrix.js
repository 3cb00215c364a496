// Strategy by strategy, what came out.

import { byId } from "./dom.js";
import { SIGN, kindOf } from "./words.js";

export function fillIn(race) {
  const line = byId("matrix").querySelector(`[data-name="${race.name}"]`);
  if (!line) return;
  const kind = kindOf(race);
  const words = { wrong: gettext("no"), short: gettext("safe, short"), right: gettext("yes") };
  const cells = [`${SIGN[kind]} ${words[kind]}`, race.sold, race.left, race.unaccounted, Math.round(race.p50_ms), Math.round(race.p95_ms), race.retries, race.waits];
  line.className = kind;
  [...line.querySelectorAll("td")].forEach((cell, at) => { cell.textContent = cells[at]; });
}
