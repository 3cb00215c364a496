// Lecture mode, `?present=1`: slides for a projector, led by the space bar and the arrow keys alone.

import { startVote } from "./api.js";
import { byId, fill, isStill, make } from "./dom.js";

const COUNT_EVERY = 1000; // ms
const STEP = 0.02; // of a race, for each press of an arrow
const page = document.documentElement;

export class Lecture {
  constructor() {
    page.classList.add("present");
    byId("lecture").hidden = false;
    this.slides = [...byId("notes").querySelectorAll("[data-slide]")];
    byId("notes-button").addEventListener("click", () => this.#notes());
    byId("notes-window").addEventListener("click", () => this.#ownWindow());
    byId("full-screen").addEventListener("click", () => page.requestFullscreen?.().catch(() => {}));
  }

  /** Lead through what `stage` shows; `left` and `right` run a race of one's own. */
  listen(stage, left, right) {
    this.stage = stage;
    const keys = {
      1: () => this.#live("broken", left),
      2: () => this.#live("fixed", right),
      " ": () => this.#space(),
      ArrowLeft: () => this.#go(this.at - 1),
      ArrowRight: () => this.#go(this.at + 1),
      ArrowUp: () => stage.stopAt(stage.moment - STEP * stage.end),
      ArrowDown: () => stage.stopAt(stage.moment + STEP * stage.end),
      n: () => this.#notes(),
      w: () => this.#ownWindow(),
      f: () => byId("full-screen").click(),
    };
    document.addEventListener("keydown", (event) => {
      if (event.target.matches("input:not([type=range]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys[event.key];
      if (!act) return;
      event.preventDefault(); // so that the space bar presses no button: Enter does
      act();
    });
    this.#go(0);
  }

  get slide() {
    return this.slides[this.at].dataset.slide;
  }

  /** Ask how `race` will end, before it is shown. */
  ask(race) {
    const buyers = race.buyers.length;
    const guesses = [race.initial, `${race.initial + 1} – ${buyers - 1}`, buyers];
    const buttons = guesses.map((guess) => make("button", { type: "button", textContent: guess, onclick: () => this.#guess(guess) }));
    byId("prediction").replaceChildren(
      make("p", { textContent: fill(ngettext("%(buyers)s people, one mug. How many are sold?", "%(buyers)s people, %(stock)s mugs. How many are sold?", race.initial), { buyers, stock: race.initial }) }),
      make("p", { className: "guesses" }, ...buttons));
    byId("prediction").hidden = false;
    this.#go(this.at);
    this.#openVote(race, buttons).catch(() => {}); // without votes the guesses are collected by hand
  }

  /** Show where the audience votes, and draw its votes as bars under the guesses while they are asked for. */
  async #openVote(race, buttons) {
    const { address, qr, counts } = await startVote({ buyers: race.buyers.length, stock: race.initial });
    const bars = buttons.map((button) => button.appendChild(make("span", { className: "bar" })));
    const figure = make("figure", { className: "qr" }, make("figcaption", {}, make("a", { href: address, textContent: address })));
    if (qr) figure.insertAdjacentHTML("afterbegin", qr); // the server's own drawing
    byId("prediction").append(figure);
    for (;;) {
      if (this.slide === "ask" && !document.hidden) await this.#count(counts, bars).catch(() => {});
      await new Promise((done) => setTimeout(done, COUNT_EVERY));
    }
  }

  async #count(counts, bars) {
    const { votes } = await (await fetch(counts)).json();
    const most = Math.max(1, ...votes);
    bars.forEach((bar, at) => {
      bar.textContent = votes[at];
      bar.classList.toggle("none", !votes[at]);
      bar.style.setProperty("--share", votes[at] / most);
    });
  }

  #guess(guess) {
    this.prediction = fill(gettext("Your prediction: %(guess)s"), { guess });
    this.#go(this.at + 1);
  }

  #space() {
    if (this.slide === "ask") this.#go(this.at + 1);
    else if (this.slide !== "steps") this.stage.toggle();
    else if (byId("stage-of-steps").hidden) byId("begin").click();
  }

  #live(slide, race) {
    this.#go(this.slides.findIndex((one) => one.dataset.slide === slide));
    race();
  }

  #go(to) {
    this.at = Math.min(this.slides.length - 1, Math.max(0, to));
    page.dataset.slide = this.slide;
    this.slides.forEach((note, at) => { note.hidden = at !== this.at; });
    byId("slide-title").textContent = `${this.at + 1}/${this.slides.length} · ${this.slides[this.at].dataset.title}`;
    scrollTo(0, 0);
    this.#writeNote();
    if (this.stage.shown.length) this.#show();
  }

  // A race is played from its beginning, or stopped at what explains it.
  #show() {
    const { left } = this.stage.panels;
    this.stage.redraw(); // what was hidden before had no width
    byId("guessed").textContent = this.prediction ?? "";
    if (["broken", "fixed"].includes(this.slide)) {
      this.stage.stopAt(isStill() ? this.stage.end : 0);
      if (!isStill()) this.stage.toggle();
    } else if (this.slide === "why" && left.race) {
      const [first] = left.moments;
      this.stage.stopAt(first?.ms ?? this.stage.end);
      byId("guessed").textContent = first?.text ?? "";
    } else this.stage.stopAt(this.stage.end);
  }

  #notes() {
    const notes = byId("notes");
    notes.hidden = !notes.hidden;
    byId("notes-button").setAttribute("aria-expanded", !notes.hidden);
  }

  /** Show the notes in a window for the lecturer's own screen. */
  #ownWindow() {
    this.window = open("", "holdfast-notes", "width=640,height=480");
    this.#writeNote();
  }

  #writeNote() {
    if (!this.window || this.window.closed) return;
    const { document: other } = this.window;
    other.title = byId("slide-title").textContent;
    other.body.replaceChildren(...[["h1", other.title], ["p", this.slides[this.at].textContent]].map(([name, text]) => Object.assign(other.createElement(name), { textContent: text })));
  }
}
