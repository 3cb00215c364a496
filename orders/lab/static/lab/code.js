// The strategy's own lines; the ones that a buyer executes are lit.

import { source } from "./api.js";
import { make } from "./dom.js";

export class CodePane {
  constructor(place) {
    this.place = place;
    this.name = "";
  }

  show(name) {
    if (this.name !== name) {
      this.name = name;
      this.coming = this.#fetch(name);
    }
    return this.coming;
  }

  async #fetch(name) {
    const parts = await source(name);
    if (this.name !== name) return parts;
    this.rows = new Map(parts.lines.map(([number, html]) => [number, lineRow(number, make("code", { innerHTML: html || " " }))]));
    this.place.replaceChildren(...this.rows.values());
    return parts;
  }

  /** Light lines: `{A: 34}` or `{7: 34}`, by who executes it. */
  light(standing) {
    if (!this.rows) return;
    for (const line of this.rows.values()) {
      line.classList.remove("lit");
      line.firstChild.textContent = "";
    }
    for (const [who, number] of Object.entries(standing)) this.#mark(who, this.rows.get(number));
  }

  #mark(who, line) {
    if (!line) return;
    line.classList.add("lit");
    line.firstChild.textContent = `▶${who}`;
    const { place } = this;
    const above = line.offsetTop < place.scrollTop;
    const below = line.offsetTop + line.offsetHeight > place.scrollTop + place.clientHeight;
    if (above || below) place.scrollTop = line.offsetTop - place.clientHeight / 2;
  }
}

// The buyers on a line have a column of their own, beside the line's number.
export const lineRow = (number, code) => make("div", { className: "line" }, make("span", { className: "who" }), make("span", { className: "gutter", textContent: number }), code);
