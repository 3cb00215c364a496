"use strict";

// What Django's admin leaves without words: the search box has a picture for a label, some columns have no head, what
// scrolls sideways can't be reached by keyboard.

const picture = document.querySelector("label[for=searchbar] img");
const { value } = document.querySelector("#changelist-search [type=submit]") ?? { value: "" };
picture?.replaceWith(value || picture.alt); // the picture's words are English in every language

document.querySelectorAll("thead th").forEach((head) => {
  if (head.textContent.trim() || head.querySelector("input")) return;
  const cell = document.createElement("td");
  cell.className = head.className;
  head.replaceWith(cell);
});

document.querySelectorAll(".inline-group").forEach((group) => { group.tabIndex = 0; });
