// One race on the page: one number, mugs, swimlane, curve, crowd.

import { drawStock, rangeOf, stockAt } from "./chart.js";
import { byId, fill, make } from "./dom.js";
import { SIGNS, drawLanes } from "./lanes.js";
import { moments } from "./moments.js";
import { drawMugs } from "./mugs.js";
import { SIGN, announcement, evidence, figures, headline, kindOf, sum, victims } from "./words.js";

const CROWD = { waiting: "░", locked: "▒", fenced: "▒", stale_token: "✗", read: "○", decided: "◐", written: "●", recorded: "●", ...SIGNS };

export class Panel {
  /** `stage` plays the races of all panels on one scale of time. */
  constructor(place, stage) {
    this.place = place;
    this.stage = stage;
    this.race = null;
    new ResizeObserver(() => this.#fit()).observe(place);
  }

  clear(text) {
    this.race = null;
    this.place.className = "panel";
    this.place.replaceChildren(make("p", { className: "empty", textContent: text }));
  }

  show(race, recorded = false) {
    this.race = race;
    this.recorded = recorded;
    this.picked = null;
    this.paid = victims(race);
    this.moments = moments(race);
    const kind = kindOf(race);
    this.place.className = `panel ${kind}`;
    this.place.replaceChildren(byId("panel").content.cloneNode(true));
    this.find("h2").textContent = race.name;
    this.find(".tag").hidden = !recorded;
    this.find(".headline").textContent = `${SIGN[kind]} ${headline(race)}`;
    this.find(".evidence").textContent = evidence(race);
    this.mugs = drawMugs(this.find(".mugs"), race);
    this.find(".moments").replaceChildren(...this.moments.map((moment) => this.#moment(moment)));
    this.#crowd();
  }

  get end() {
    return Math.max(1, ...this.race.buyers.map((buyer) => buyer.to), ...this.race.stock.ms);
  }

  get range() {
    return rangeOf(this.race);
  }

  /** Draw lanes and curve on the scales that all panels share: `{ end, low, high }`. */
  draw(scales) {
    this.width = this.place.clientWidth;
    if (!this.race || this.width < 100) return; // not laid out: the observer calls again when it is
    const label = announcement(this.race);
    const shared = { ...scales, moments: this.moments, label, onPick: (number) => this.pick(number) };
    this.lanes = drawLanes(this.find(".swim"), this.race, shared);
    this.stock = drawStock(this.find(".chart"), this.race, shared);
  }

  pick(number) {
    this.picked = this.picked === number ? null : number;
    this.cells.forEach((cell) => cell.firstChild.setAttribute("aria-pressed", cell.dataset.number === String(this.picked)));
    this.stage.seek(this.stage.moment);
  }

  seek(moment) {
    const { race } = this;
    this.moment = moment;
    this.lanes?.(moment);
    this.stock?.(moment);
    const over = moment >= this.end;
    const { left, sold } = over ? race : stockAt(race, moment);
    this.mugs(sold);
    const [paid, initial, says] = figures(sold, race.initial, left);
    this.find(".sold").textContent = paid;
    this.find(".sold").classList.toggle("bad", sold > race.initial);
    this.find(".initial").textContent = initial;
    this.find(".says").textContent = says;
    this.find(".sum").textContent = sum(race.initial, sold, left);
    race.buyers.forEach((buyer, at) => this.#cell(this.cells[at], buyer, over));
  }

  /** The buyer that is looked at, or anyone who moved last, and the line it executes. */
  standing() {
    const marks = this.race.buyers
      .filter((buyer) => this.picked === null || buyer.number === this.picked)
      .map((buyer) => [buyer.number, buyer.marks.findLast(([, at, , line]) => at <= this.moment && line)])
      .filter(([, mark]) => mark)
      .sort(([, a], [, b]) => b[1] - a[1]);
    return marks.length ? { [marks[0][0]]: marks[0][1][3] } : {};
  }

  find(selector) {
    return this.place.querySelector(selector);
  }

  #moment({ ms, text }) {
    const button = make("button", { type: "button", textContent: fill(gettext("%(text)s (%(ms)s ms)"), { text, ms: Math.round(ms) }), onclick: () => this.stage.stopAt(ms) });
    return make("li", {}, button);
  }

  #crowd() {
    this.cells = this.race.buyers.map((buyer) => {
      const cell = make("li", {}, make("button", { type: "button", onclick: () => this.pick(buyer.number) }));
      cell.dataset.number = buyer.number;
      cell.firstChild.setAttribute("aria-pressed", "false");
      return cell;
    });
    this.find(".crowd").replaceChildren(...this.cells);
  }

  #cell(cell, buyer, over) {
    const mark = buyer.marks.findLast(([, at]) => at <= this.moment);
    const answer = this.paid.has(buyer.number) ? "victim" : buyer.answer;
    const state = over || buyer.to <= this.moment ? answer : mark?.[0];
    cell.className = state ?? "";
    cell.firstChild.textContent = `${buyer.number} ${CROWD[state] ?? "·"}`;
  }

  #fit() {
    if (this.race && Math.abs(this.place.clientWidth - this.width) > 2) this.stage.redraw();
  }
}
