// Both panels, one player: they share the scale of time, the scale of stock, the moment and the play button.

import { byId, isStill } from "./dom.js";
import { Panel } from "./panel.js";

const PLAY_SECONDS = 5;

export class Stage {
  constructor(onMoment) {
    this.onMoment = onMoment;
    this.frame = 0;
    this.moment = 0;
    this.end = 1;
    this.panels = { left: new Panel(byId("left"), this), right: new Panel(byId("right"), this) };
    this.slider.addEventListener("input", () => this.stopAt((this.slider.value / 1000) * this.end));
    byId("play").addEventListener("click", () => this.toggle());
  }

  get slider() {
    return byId("moment");
  }

  get shown() {
    return Object.values(this.panels).filter((panel) => panel.race);
  }

  show(place, race, { recorded = false, play = true } = {}) {
    this.#halt();
    this.panels[place].show(race, recorded);
    byId("player").hidden = false;
    this.redraw();
    this.seek(this.end);
    if (play && !isStill()) this.play();
  }

  clear(place, text) {
    this.#halt();
    this.panels[place].clear(text);
    if (this.shown.length) this.redraw();
  }

  redraw() {
    const ranges = this.shown.map((panel) => panel.range);
    const over = this.moment >= this.end;
    this.end = Math.max(...this.shown.map((panel) => panel.end));
    const scales = { end: this.end, low: Math.min(...ranges.map(([low]) => low)), high: Math.max(...ranges.map(([, high]) => high)) };
    this.shown.forEach((panel) => panel.draw(scales));
    this.seek(over ? this.end : this.moment);
  }

  seek(moment) {
    this.moment = Math.min(this.end, Math.max(0, moment));
    this.slider.value = Math.round((this.moment / this.end) * 1000);
    this.slider.setAttribute("aria-valuetext", `${Math.round(this.moment)} ms`);
    byId("clock").textContent = `${Math.round(this.moment)} ms`;
    this.shown.forEach((panel) => panel.seek(this.moment));
    this.shown.forEach(this.onMoment);
  }

  stopAt(moment) {
    this.#halt();
    this.seek(moment);
  }

  toggle() {
    if (this.frame) this.#halt();
    else if (this.shown.length) this.play();
  }

  play() {
    const began = performance.now();
    const from = this.moment >= this.end ? 0 : this.moment;
    const step = (now) => {
      const moment = from + ((now - began) / (PLAY_SECONDS * 1000)) * this.end;
      this.seek(moment);
      if (moment >= this.end) this.#halt();
      else this.frame = requestAnimationFrame(step);
    };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(step);
    this.#sayPlay();
  }

  #halt() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.#sayPlay();
  }

  #sayPlay() {
    byId("play").textContent = this.frame ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", this.frame ? gettext("Pause") : gettext("Play again, slowly"));
  }
}
