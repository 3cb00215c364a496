// The strategy's own lines; the ones on which somebody stands are lit.

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
    this.rows = new Map(parts.lines.map(([number, html]) => [number, row(number, html)]));
    this.place.replaceChildren(...this.rows.values());
    return parts;
  }

  /** Light lines: `{A: 34, B: 36}` or `{7: 34}`, by anyone who stands there. */
  light(standing) {
    if (!this.rows) return;
    for (const line of this.rows.values()) {
      line.classList.remove("lit");
      line.firstChild.textContent = line.dataset.number;
    }
    for (const [who, number] of Object.entries(standing)) this.#mark(who, this.rows.get(number));
  }

  #mark(who, line) {
    if (!line) return;
    const others = line.classList.contains("lit") ? `${line.firstChild.textContent.slice(1)} ` : "";
    line.classList.add("lit");
    line.firstChild.textContent = `▶${others}${who}`;
    const { place } = this;
    const above = line.offsetTop < place.scrollTop;
    const below = line.offsetTop + line.offsetHeight > place.scrollTop + place.clientHeight;
    if (above || below) place.scrollTop = line.offsetTop - place.clientHeight / 2;
  }
}

function row(number, html) {
  const line = make("div", { className: "line" }, make("span", { className: "gutter", textContent: number }), make("code", { innerHTML: html || " " }));
  line.dataset.number = number;
  return line;
}
