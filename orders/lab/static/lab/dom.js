// Small helpers for making elements.

export const byId = (id) => document.getElementById(id);

export const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};

export const draw = (name, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

/** `text` with its %(names)s filled in. */
export const fill = (text, facts) => interpolate(text, facts, true);

export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
