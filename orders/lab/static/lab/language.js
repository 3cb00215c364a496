// The language of one's own strategies: plain text, one step a line. Text in, a program or its errors out.

import { fill } from "./dom.js";

const MOST_LINES = 60;
const MOST_ACTORS = 4;
const LEVELS = { "": "committed", "read committed": "committed", "repeatable read": "repeatable", serializable: "serializable" };
/** What a goal may ask for besides the shared values. */
export const COUNTED = ["sold", "waiting", "again", "refused", "deadlock"];

// Steps: a pattern of the whole line, and what its groups mean. `:name` is a name, `:rest` an expression.
const STEPS = [
  ["begin", /^begin(?: (read committed|repeatable read|serializable))?$/, ([level]) => ({ level: LEVELS[level ?? ""] }), "begin · begin repeatable read · begin serializable"],
  ["commit", /^commit$/, () => ({}), "commit"],
  ["read", /^read (\w+)(?: as (\w+))?( for update)?$/, ([row, as, lock]) => ({ row, as: as ?? row, lock: Boolean(lock) }), "read stock · read stock as seen · read stock for update"],
  ["check", /^check (.+?)( else again)?$/, ([test, again]) => ({ test, again: Boolean(again) }), "check seen > 0 · check seen > 0 else again"],
  ["write", /^write (\w+) = (.+)$/, ([row, value]) => ({ row, value }), "write stock = seen - 1"],
  ["update", /^update (\w+) = (.+?)(?: if (.+?))?( else again)?$/, ([row, value, test, again]) => ({ row, value, test, again: Boolean(again) }), "update stock = stock - 1 if stock > 0 · … else again"],
  ["sell", /^sell$/, () => ({}), "sell"],
  ["lock", /^lock (\w+)(?: for (\d+) steps?)?$/, ([name, steps]) => ({ name, steps: steps ? Number(steps) : null }), "lock mug · lock mug for 4 steps"],
  ["unlock", /^unlock (\w+)$/, ([name]) => ({ name }), "unlock mug"],
  ["delete", /^delete (\w+)$/, ([name]) => ({ name }), "delete mug"],
  ["fence", /^fence (\w+)$/, ([name]) => ({ name }), "fence mug"],
];

export const FORMS = STEPS.map(([, , , form]) => form);

class Wrong extends Error {}
const wrong = (text, facts) => new Wrong(fill(text, facts));

/** Read a program: `{ rows, goals, actors: [{ name, steps }], problems: [{ line, text }], named }`. */
export function parse(text) {
  const program = { rows: {}, goals: [], actors: [], named: false, problems: [] };
  const lines = text.split("\n").map((line, at) => [line.split("#")[0].trim().replace(/\s+/g, " "), at + 1]).filter(([line]) => line);
  const say = (line, words, facts) => program.problems.push({ line, text: fill(words, facts) });
  const shared = [];
  let places = [shared]; // where steps go: to all, or below a heading to those whom it names
  for (const [line, number] of lines) {
    try {
      const heading = /^(\w+(?:, \w+)*):$/.exec(line);
      if (heading) places = begin(program, heading[1].split(", "));
      else if (!setting(program, line)) step(line, number, places);
    } catch (problem) {
      if (!(problem instanceof Wrong)) throw problem;
      say(number, problem.message, {});
    }
  }
  if (!program.named) program.actors = [{ name: "", steps: shared }];
  else if (shared.length) say(shared[0].line, gettext("A step before the first heading belongs to no buyer: move it below a heading such as A:"), {});
  if (!program.actors.some(({ steps }) => steps.length)) say(1, gettext("There is no step yet: write one such as read stock."), {});
  if (lines.length > MOST_LINES) say(MOST_LINES + 1, gettext("More than %(most)s lines: shorten it."), { most: MOST_LINES });
  if (program.actors.length > MOST_ACTORS) say(1, gettext("More than %(most)s take part: leave some out."), { most: MOST_ACTORS });
  if (!program.goals.length) program.goals.push(oversold(program, say));
  if (!program.problems.length) namesAreKnown(program);
  return program;
}

function begin(program, names) {
  program.named = true;
  return names.map((name) => {
    const found = program.actors.find((actor) => actor.name === name) ?? { name, steps: [] };
    if (!program.actors.includes(found)) program.actors.push(found);
    return found.steps;
  });
}

// What is searched for where nothing is said: more was sold than there was.
function oversold(program, say) {
  if (!("stock" in program.rows)) say(1, gettext("Nothing says how much there is: add the line stock = 1 at the top, or one that says what must never be, such as never sold > 1."), {});
  const text = `sold > ${program.rows.stock ?? 1}`;
  return { test: expression(text), text, end: false };
}

// What is there at the start, and what must not happen: `stock = 1`, `never sold > 1`, `never cache > stock in the end`.
function setting(program, line) {
  const start = /^(\w+) = (-?\d+)$/.exec(line);
  const goal = /^never (.+?)( in the end)?$/.exec(line);
  if (start) program.rows[nameOf(start[1])] = Number(start[2]);
  if (goal) program.goals.push({ test: expression(goal[1]), text: goal[1], end: Boolean(goal[2]) });
  return Boolean(start || goal);
}

function step(line, number, places) {
  const word = line.split(" ")[0];
  const known = STEPS.find(([name]) => name === word);
  if (!known) throw wrong(gettext("Unknown step “%(word)s”: %(cure)s"), { word, cure: cureOf(word) });
  const [op, pattern, meaning, form] = known;
  const match = pattern.exec(line);
  if (!match) throw wrong(gettext("“%(word)s” is written like this: %(form)s"), { word, form });
  const found = { op, line: number, text: line, ...meaning(match.slice(1)) };
  for (const part of ["test", "value"]) if (found[part] !== undefined) found[part] = expression(found[part]);
  places.forEach((steps) => steps.push(found));
}

function cureOf(word) {
  const near = STEPS.map(([name]) => name).find((name) => distance(name, word.toLowerCase()) < 3);
  if (near) return fill(gettext("did you mean “%(near)s”?"), { near });
  return fill(gettext("use one of %(words)s."), { words: STEPS.map(([name]) => name).join(", ") });
}

function distance(one, other) {
  let row = [...Array(other.length + 1).keys()];
  for (let i = 1; i <= one.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= other.length; j += 1) next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1));
    row = next;
  }
  return row[other.length];
}

// Every name has a value by the time it is used: a row of the database, or what this buyer has read before.
function namesAreKnown(program) {
  const rows = new Set(Object.keys(program.rows));
  const say = (line, text, facts) => program.problems.push({ line, text: fill(text, facts) });
  program.goals.forEach(({ test }) => namesOf(test).filter((name) => !rows.has(name) && !COUNTED.includes(name)).forEach((name) => say(1, gettext("“%(name)s” in a goal is unknown: add the line %(name)s = 0 at the top."), { name })));
  for (const { steps } of program.actors) {
    const memory = new Set(["token"]);
    for (const one of steps) {
      if (one.row && !rows.has(one.row)) say(one.line, gettext("There is no “%(name)s”: add the line %(name)s = 1 at the top."), { name: one.row });
      const known = (name) => memory.has(name) || (one.op === "update" && name === one.row);
      [one.test, one.value].filter(Boolean).flatMap(namesOf).filter((name) => !known(name)).forEach((name) => say(one.line, gettext("“%(name)s” has not been read: add read %(name)s above."), { name }));
      if (one.op === "read") memory.add(one.as);
    }
  }
}

// Expressions ------------------------------------------------------------------------------------------------

const WORD = /\s*(?:(\d+)|([A-Za-z_]\w*)|(<=|>=|!=|[-+*()<>=]))/y;
const RANKS = [["or"], ["and"], ["<", "<=", ">", ">=", "=", "!="], ["+", "-"], ["*"]];
const DO = {
  or: (a, b) => a || b, and: (a, b) => a && b, "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b, "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b,
};

function nameOf(word) {
  if (COUNTED.includes(word) || RANKS.flat().includes(word)) throw wrong(gettext("“%(word)s” already has a meaning here: choose another name."), { word });
  return word;
}

/** Read an expression such as `seen - 1` or `sold > 1 and stock = 0`: a tree of arrays. */
export function expression(text) {
  const words = [];
  WORD.lastIndex = 0;
  for (let match; WORD.lastIndex < text.trimEnd().length; words.push(match[1] ? Number(match[1]) : match[2] ?? match[3])) {
    const at = WORD.lastIndex;
    match = WORD.exec(text);
    if (!match) throw wrong(gettext("“%(rest)s” can't be read: use numbers, names, + - * and < <= = != >= >, and, or."), { rest: text.slice(at).trim() });
  }
  const tree = ranked(words, 0);
  if (words.length) throw wrong(gettext("“%(rest)s” can't be read: use numbers, names, + - * and < <= = != >= >, and, or."), { rest: words.join(" ") });
  return tree;
}

function ranked(words, rank) {
  if (rank === RANKS.length) return single(words);
  let left = ranked(words, rank + 1);
  while (RANKS[rank].includes(words[0])) left = [words.shift(), left, ranked(words, rank + 1)];
  return left;
}

function single(words) {
  const word = words.shift();
  if (typeof word === "number") return word;
  if (word === "-") return ["-", 0, single(words)];
  if (word === "(") {
    const inner = ranked(words, 0);
    if (words.shift() === ")") return inner;
  } else if (word && /^\w/.test(word) && !RANKS.flat().includes(word)) return word;
  throw wrong(gettext("Something is missing in this line: a number, a name, or a closing bracket."), {});
}

const namesOf = (tree) => (Array.isArray(tree) ? tree.slice(1).flatMap(namesOf) : typeof tree === "string" ? [tree] : []);

/** The value of an expression, where `look` gives that of a name. */
export function value(tree, look) {
  if (Array.isArray(tree)) return Number(DO[tree[0]](value(tree[1], look), value(tree[2], look)));
  return typeof tree === "string" ? look(tree) : tree;
}
