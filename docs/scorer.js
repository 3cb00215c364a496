/* Ranks the hits of Sphinx's search: titles with the words of the query first, guides before decisions. */
"use strict";

const QUERY = (new URLSearchParams(location.search).get("q") || "").toLowerCase().match(/\w{3,}/g) || [];

const ROOMS = [
  [/^library\/how-to\//, 6],
  [/^library\/(tutorial|explanation)\//, 3],
  [/^library\//, 0],
  [/^(shop|inventory)\//, -5],
  [/^contributing\//, -15],
  [/^adr\//, -25],
];

var Scorer = {
  score: ([docname, title, anchor, descr, score]) => {
    const found = QUERY.filter((word) => title.toLowerCase().includes(word.replace(/(ing|ed|es|s)$/, "")));
    const room = ROOMS.find(([pattern]) => pattern.test(docname));
    return score + (20 * found.length) / QUERY.length + (room ? room[1] : 0) - (anchor ? 2 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
