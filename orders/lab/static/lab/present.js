// Lecture mode, `?present=1`: large, by keyboard, with notes, and a prediction before the reveal.

import { byId, fill, make } from "./dom.js";

const STEP = 0.02; // of a race, for each press of an arrow

export class Lecture {
  constructor() {
    document.documentElement.classList.add("present");
    byId("lecture").hidden = false;
    byId("notes-button").addEventListener("click", () => this.#notes());
    byId("full-screen").addEventListener("click", () => document.documentElement.requestFullscreen?.().catch(() => {}));
  }

  listen(stage, left, right) {
    this.stage = stage;
    const keys = {
      1: left,
      2: right,
      " ": () => (this.reveal ? this.#reveal() : stage.toggle()),
      ArrowLeft: () => stage.stopAt(stage.moment - STEP * stage.end),
      ArrowRight: () => stage.stopAt(stage.moment + STEP * stage.end),
      n: () => this.#notes(),
      f: () => byId("full-screen").click(),
    };
    document.addEventListener("keydown", (event) => {
      if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === " " && event.target.closest("button, a, summary, [role=button]")) return; // it presses that one
      const act = keys[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  /** Ask the audience before `race` is run; a choice or the space bar starts it. */
  predict({ buyers, stock }, race) {
    if (this.reveal) return;
    this.reveal = race;
    const question = fill(gettext("%(buyers)s people, %(stock)s mugs. How many are sold?"), { buyers, stock });
    const guesses = [stock, `${Number(stock) + 1} – ${Number(buyers) - 1}`, buyers];
    const buttons = guesses.map((guess) => make("button", { type: "button", textContent: guess, onclick: () => this.#reveal(guess) }));
    byId("prediction").replaceChildren(make("p", { textContent: question }), make("p", { className: "guesses" }, ...buttons));
    byId("prediction").hidden = false;
    byId("prediction").scrollIntoView({ block: "center" });
    byId("prediction").focus({ preventScroll: true }); // not on a guess: the space bar would choose it
  }

  #reveal(guess) {
    const race = this.reveal;
    this.reveal = null;
    byId("prediction").replaceChildren(make("p", { textContent: guess ? fill(gettext("Your prediction: %(guess)s"), { guess }) : "" }));
    byId("prediction").hidden = !guess;
    byId("broken").focus({ preventScroll: true });
    race();
  }

  #notes() {
    const notes = byId("notes");
    notes.hidden = !notes.hidden;
    byId("notes-button").setAttribute("aria-expanded", !notes.hidden);
  }
}
