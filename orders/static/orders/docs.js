"use strict";

// Swagger UI, with what it lacks for those who don't see the page or have no mouse.

const place = document.getElementById("swagger-ui");
const address = place.dataset.url;

// Headings that follow on the page's own, and no links inside buttons.
const outline = ({ React: { createElement } }) => ({
  components: {
    DeepLink: ({ text }) => createElement("span", {}, text),
    InfoContainer: ({ specSelectors }) => {
      const { title, version } = specSelectors.info().toJS();
      return createElement("div", { className: "info" }, createElement("h2", { className: "title" }, `${title} ${version}`), createElement("a", { href: address }, address));
    },
  },
});

const LACKING = {
  ".copy-to-clipboard button": { "aria-label": gettext("Copy") },
  ".close-modal": { "aria-label": gettext("Close") },
  ".body-param__text": { "aria-label": gettext("Body of the request") },
  "pre, .responses-inner": { tabindex: "0" },
  ".responses-table": { role: "table" },
};

// In another language: Swagger UI's own words, and those of the document, which is English for programs.
let texts = {};

function inTheReadersLanguage(text) {
  const { page, problems, document: described } = texts;
  return page[text] ?? described[text] ?? text.replace(/([a-z-]+: )([^.]+)\./g, (all, slug, title) => (problems[title] ? `${slug}${problems[title]}。` : all));
}

function translate() {
  const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const text = node.data.trim();
    if (!text || node.parentElement.closest("pre, textarea, style")) continue;
    const translated = inTheReadersLanguage(text);
    if (translated !== text) node.data = node.data.replace(text, () => translated);
  }
  for (const name of ["title", "aria-label"]) {
    for (const part of place.querySelectorAll(`[${name}]`)) {
      const translated = texts.page[part.getAttribute(name)];
      if (translated) part.setAttribute(name, translated);
    }
  }
}

new MutationObserver(() => {
  for (const [parts, attributes] of Object.entries(LACKING)) {
    for (const part of place.querySelectorAll(parts)) {
      for (const [name, value] of Object.entries(attributes)) if (part.getAttribute(name) !== value) part.setAttribute(name, value);
    }
  }
  if (texts.page) translate();
}).observe(place, { childList: true, subtree: true, characterData: true });

async function show() {
  if (place.dataset.texts) texts = await (await fetch(place.dataset.texts)).json();
  SwaggerUIBundle({ url: address, dom_id: "#swagger-ui", layout: "BaseLayout", deepLinking: true, syntaxHighlight: { activated: false }, plugins: [outline] });
}

show();
