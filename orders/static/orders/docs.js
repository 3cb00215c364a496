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

new MutationObserver(() => {
  for (const [parts, attributes] of Object.entries(LACKING)) {
    for (const part of place.querySelectorAll(parts)) {
      for (const [name, value] of Object.entries(attributes)) if (part.getAttribute(name) !== value) part.setAttribute(name, value);
    }
  }
}).observe(place, { childList: true, subtree: true });

SwaggerUIBundle({ url: address, dom_id: "#swagger-ui", layout: "BaseLayout", deepLinking: true, syntaxHighlight: { activated: false }, plugins: [outline] });
