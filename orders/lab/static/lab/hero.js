// The start page: a recorded race, played once.

import { stockAt } from "./chart.js";
import { isStill } from "./dom.js";
import { drawMugs } from "./mugs.js";
import { figures, headline } from "./words.js";

const SECONDS = 5;
const hero = document.getElementById("hero");
const find = (selector) => hero.querySelector(selector);

function show(race, mugs, moment, end) {
  const { left, sold } = moment >= end ? race : stockAt(race, moment);
  mugs(sold);
  const texts = figures(sold, race.initial, left);
  [".sold", ".initial", ".says"].forEach((name, at) => { find(name).textContent = texts[at]; });
  find(".sold").classList.toggle("bad", sold > race.initial);
}

const { races } = await (await fetch(hero.dataset.recording)).json();
const race = races.find(({ name }) => name === "lost_update");
const end = Math.max(...race.buyers.map((buyer) => buyer.to));
const mugs = drawMugs(find(".mugs"), race);
find(".headline").textContent = `✗ ${headline(race)}`;

if (isStill()) show(race, mugs, end, end);
else {
  const began = performance.now();
  const step = (now) => {
    const moment = Math.min(end, Math.max(0, ((now - began) / (SECONDS * 1000)) * end));
    show(race, mugs, moment, end);
    if (moment < end) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
