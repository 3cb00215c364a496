// One race on the page: verdict, player, swimlane, chart, crowd.

import { drawStock, stockAt } from "./chart.js";
import { byId, fill, isStill, make } from "./dom.js";
import { drawLanes } from "./lanes.js";
import { SIGN, evidence, kindOf, missing, verdict } from "./words.js";

const PLAY_SECONDS = 5;
const CROWD = { waiting: "░", locked: "▒", read: "○", decided: "◐", written: "●", recorded: "●", sold: "✓", refused: "✗", error: "!" };

export class Panel {
  constructor(place, onMoment) {
    this.place = place;
    this.onMoment = onMoment;
    this.race = null;
    new ResizeObserver(() => this.#fit()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  clear(text) {
    this.#halt();
    this.race = null;
    this.place.className = "panel";
    this.place.replaceChildren(make("p", { className: "empty", textContent: text }));
  }

  show(race) {
    this.#halt();
    this.race = race;
    this.picked = null;
    this.end = Math.max(1, ...race.buyers.map((buyer) => buyer.to), ...race.stock.ms);
    const kind = kindOf(race);
    this.place.className = `panel ${kind}`;
    this.place.replaceChildren(byId("panel").content.cloneNode(true));
    this.#find("h2").textContent = `${race.sound ? "✓" : "✗"} ${race.name}`;
    this.#find(".verdict").textContent = `${SIGN[kind]} ${verdict(race)}`;
    this.#find(".evidence").textContent = evidence(race);
    this.#find(".play").addEventListener("click", () => this.#toggle());
    this.slider.addEventListener("input", () => { this.#halt(); this.seek((this.slider.value / 1000) * this.end); });
    this.#crowd();
    this.redraw();
    this.seek(this.end);
    this.#sayPlay();
    if (!isStill()) this.#play();
  }

  redraw() {
    this.width = this.place.clientWidth;
    if (!this.race || this.width < 100) return; // not laid out: the observer calls again when it is
    this.lanes = drawLanes(this.#find(".swim"), this.race, `${this.race.name}: ${verdict(this.race)}`, (number) => this.pick(number));
    this.stock = drawStock(this.#find(".chart"), this.race, this.end);
    this.seek(this.moment ?? this.end);
  }

  pick(number) {
    this.picked = this.picked === number ? null : number;
    this.cells.forEach((cell) => cell.firstChild.setAttribute("aria-pressed", cell.dataset.number === String(this.picked)));
    this.seek(this.moment);
  }

  seek(moment) {
    const { race } = this;
    this.moment = moment;
    this.lanes?.(moment);
    this.stock?.(moment);
    this.slider.value = Math.round((moment / this.end) * 1000);
    this.#find("output").textContent = `${Math.round(moment)} ms`;
    const over = moment >= this.end;
    const { left, sold } = over ? race : stockAt(race, moment);
    this.#find(".sold").textContent = fill(gettext("sold %(sold)s of %(initial)s"), { sold, initial: race.initial });
    this.#find(".says").textContent = fill(gettext("the page says %(left)s left"), { left });
    this.#find(".missing").textContent = missing(race.initial - sold - left);
    this.#find(".missing").classList.toggle("bad", race.initial - sold - left !== 0);
    race.buyers.forEach((buyer, at) => this.#cell(this.cells[at], buyer, over));
    this.onMoment(this);
  }

  /** The buyer that is looked at, or anyone who moved last, and the line on which it stands. */
  standing() {
    const marks = this.race.buyers
      .filter((buyer) => this.picked === null || buyer.number === this.picked)
      .map((buyer) => [buyer.number, buyer.marks.findLast(([, at, , line]) => at <= this.moment && line)])
      .filter(([, mark]) => mark)
      .sort(([, a], [, b]) => b[1] - a[1]);
    return marks.length ? { [marks[0][0]]: marks[0][1][3] } : {};
  }

  get slider() {
    return this.#find("input");
  }

  #find(selector) {
    return this.place.querySelector(selector);
  }

  #crowd() {
    this.cells = this.race.buyers.map((buyer) => {
      const cell = make("li", {}, make("button", { type: "button", onclick: () => this.pick(buyer.number) }));
      cell.dataset.number = buyer.number;
      cell.firstChild.setAttribute("aria-pressed", "false");
      return cell;
    });
    this.#find(".crowd").replaceChildren(...this.cells);
  }

  #cell(cell, buyer, over) {
    const mark = buyer.marks.findLast(([, at]) => at <= this.moment);
    const state = over || buyer.to <= this.moment ? buyer.answer : mark?.[0];
    cell.className = state ?? "";
    cell.firstChild.textContent = `${buyer.number} ${CROWD[state] ?? "·"}`;
  }

  #toggle() {
    if (this.frame) this.#halt();
    else this.#play();
  }

  #halt() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.#sayPlay();
  }

  #sayPlay() {
    const button = this.#find(".play");
    if (!button) return;
    button.textContent = this.frame ? "❚❚" : "▶";
    button.setAttribute("aria-label", this.frame ? gettext("Pause") : gettext("Play again, slowly"));
  }

  #play() {
    const began = performance.now();
    const from = this.moment >= this.end ? 0 : this.moment;
    const step = (now) => {
      const moment = from + ((now - began) / (PLAY_SECONDS * 1000)) * this.end;
      this.seek(Math.min(this.end, Math.max(0, moment)));
      if (moment >= this.end) this.#halt();
      else this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
    this.#sayPlay();
  }

  #fit() {
    if (this.race && Math.abs(this.place.clientWidth - this.width) > 2) this.redraw();
  }
}
