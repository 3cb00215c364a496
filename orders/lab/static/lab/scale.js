// One scale of time for the lanes and the curve of both panels.

import { draw } from "./dom.js";

export const LEFT = 34;
export const RIGHT = 26;

/** From a moment in ms to a place in px. */
export const scale = (end, width) => (ms) => LEFT + (ms / end) * (width - LEFT - RIGHT);

/** The ticks of the time axis at the height `y`. */
export function ticks(end, x, y, unit = (number) => `${number} ms`) {
  return (end > 1 ? [0, 0.5, 1] : [0, 1]).map((part) => {
    const text = draw("text", { class: "tick", x: x(end * part), y, "text-anchor": ["start", "middle", "end"][part * 2] });
    text.textContent = unit(Math.round(end * part));
    return text;
  });
}

/** Vertical flags at the moments of a race; `numbered` ones are side by side where their lines are close. */
export function flags(moments, x, height, numbered) {
  let free = 0;
  return moments.flatMap(({ ms }, at) => {
    const line = draw("line", { class: "flag", x1: x(ms), x2: x(ms), y1: numbered ? 18 : 0, y2: height });
    if (!numbered) return [line];
    const middle = Math.max(x(ms), free);
    free = middle + 19;
    const text = draw("text", { class: "flag-number", x: middle, y: 9.5, "text-anchor": "middle" });
    text.textContent = at + 1;
    return [line, draw("circle", { class: "flag-back", cx: middle, cy: 9, r: 8.5 }), text];
  });
}
