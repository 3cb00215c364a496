// What a program does, step by step, and the search through all of its schedules.
//
// A database with rows, row locks and three levels of isolation (as PostgreSQL has them), locks outside of it
// whose leases may end, and actors who take one step at a time. Time is counted in steps.

import { parse, value } from "./language.js";

const MOST_AGAIN = 2;
const MOST_STATES = 400_000;
const PAUSE_EVERY = 2_000;
const LETTERS = "ABCD";

/** The state before the first step: `buyers` run the one program, unless it names who takes part. */
export function start(program, buyers = 2) {
  const actors = program.named ? program.actors : [...LETTERS.slice(0, buyers)].map((name) => ({ ...program.actors[0], name }));
  return {
    rows: { sold: 0, ...program.rows },
    locks: {},
    tokens: {},
    actors: actors.map(({ name, steps }) => ({ name, steps, at: 0, again: 0, memory: {}, tx: null, end: "" })),
    refused: 0,
    bad: false,
  };
}

const copy = (state) => ({
  ...state,
  rows: { ...state.rows },
  locks: { ...state.locks },
  tokens: { ...state.tokens },
  actors: state.actors.map((actor) => ({ ...actor, memory: { ...actor.memory }, tx: actor.tx && { ...actor.tx, writes: { ...actor.tx.writes }, reads: [...actor.tx.reads], stale: [...actor.tx.stale], held: [...actor.tx.held] } })),
});

/** For whom `actor` waits, `null` if it can go on: `{ by, on }`. */
export function blocked(state, actor) {
  const step = actor.steps[actor.at];
  if (actor.end || !step) return null;
  if (step.op === "lock") {
    const lock = state.locks[step.name];
    return lock && lock.by !== actor.name ? { by: lock.by, on: step.name } : null;
  }
  const row = rowOf(step);
  const other = row && state.actors.find((one) => one !== actor && one.tx?.held.includes(row));
  return other ? { by: other.name, on: row } : null;
}

const rowOf = (step) => (step.op === "fence" ? `fence of ${step.name}` : ["write", "update"].includes(step.op) || step.lock ? step.row : null);

export const isOver = (actor) => Boolean(actor.end);

// Before a lock whose lease runs one waits by looking at the clock, which is a step as well.
const ends = (state, { on }) => (state.locks[on]?.left ?? null) !== null;

/** The numbers of those who can take a step now. */
export const ready = (state) => state.actors.map((actor, at) => at).filter((at) => canGo(state, state.actors[at]));

function canGo(state, actor) {
  const by = blocked(state, actor);
  return !actor.end && (!by || ends(state, by));
}

/** The state after the step of actor number `at`; what happened is in `said`, a mark such as `read`. */
export function advance(program, before, at) {
  const state = copy(before);
  const actor = state.actors[at];
  const step = actor.steps[actor.at];
  state.who = at;
  state.said = { mark: step.op, line: step.line };
  if (blocked(state, actor)) state.said.mark = "waiting";
  else take(state, actor, step);
  pass(state);
  judge(program, state);
  return state;
}

function take(state, actor, step) {
  actor.at += 1;
  if (!changedMeanwhile(state, actor, step)) DO[step.op](state, actor, step);
  if (!actor.end && actor.at === actor.steps.length) finish(state, actor, "done");
}

// In a transaction with a snapshot, a row that another has committed since can't be written.
function changedMeanwhile(state, actor, step) {
  const row = rowOf(step);
  if (!row || actor.tx?.level === "committed" || !actor.tx?.stale.includes(row)) return false;
  beginAgain(state, actor, "overtaken");
  return true;
}

const look = (state, actor, row) => actor.tx?.writes[row] ?? actor.tx?.snapshot?.[row] ?? state.rows[row] ?? 0;
const memoryOf = (state, actor) => (name) => (name === "token" ? actor.memory.token ?? 0 : actor.memory[name]);

function note(state, actor, row) {
  const { tx } = actor;
  if (!tx) return;
  if (tx.level !== "committed") tx.snapshot ??= { ...state.rows };
  if (!tx.reads.includes(row)) tx.reads.push(row);
}

function put(state, actor, row, number) {
  note(state, actor, row);
  if (!actor.tx) return commitRow(state, actor, row, number);
  actor.tx.writes[row] = number;
  hold(actor, row);
}

const hold = ({ tx }, row) => row !== "sold" && tx && !tx.held.includes(row) && tx.held.push(row);

function commitRow(state, actor, row, number) {
  state.rows[row] = number;
  state.actors.filter((one) => one !== actor && one.tx?.snapshot && !one.tx.stale.includes(row)).forEach((one) => one.tx.stale.push(row));
}

const DO = {
  begin(state, actor, { level }) {
    commit(state, actor);
    actor.tx = { level, snapshot: null, writes: {}, reads: [], stale: [], held: [] };
  },
  commit,
  read(state, actor, { row, as, lock }) {
    note(state, actor, row);
    if (lock) hold(actor, row);
    actor.memory[as] = look(state, actor, row);
    state.said.stock = actor.memory[as];
  },
  check(state, actor, { test, again }) {
    if (value(test, memoryOf(state, actor))) state.said.mark = "decided";
    else if (again) beginAgain(state, actor, "overtaken");
    else finish(state, actor, "refused");
  },
  write(state, actor, { row, value: tree }) {
    put(state, actor, row, value(tree, memoryOf(state, actor)));
  },
  // The row's own name is its value in the database, now; all other names are what was read.
  update(state, actor, { row, value: tree, test, again }) {
    const now = (name) => (name === row ? look(state, actor, row) : memoryOf(state, actor)(name));
    if (test === undefined || value(test, now)) put(state, actor, row, value(tree, now));
    else if (again) beginAgain(state, actor, "overtaken");
    else finish(state, actor, "refused");
  },
  // An order is a row of its own, for which no buyer waits: orders add up.
  sell(state, actor) {
    if (actor.tx) actor.tx.writes.sold = (actor.tx.writes.sold ?? 0) + 1;
    else state.rows.sold += 1;
  },
  lock(state, actor, { name, steps }) {
    actor.memory.token = state.tokens[name] = (state.tokens[name] ?? 0) + 1;
    state.locks[name] = { by: actor.name, left: steps === null ? null : steps + 1, token: actor.memory.token };
    state.said.token = actor.memory.token;
  },
  unlock(state, actor, { name }) {
    if (state.locks[name]?.by === actor.name) delete state.locks[name];
  },
  delete(state, actor, { name }) {
    delete state.locks[name];
  },
  fence(state, actor, { name }) {
    const row = `fence of ${name}`;
    if (look(state, actor, row) > (actor.memory.token ?? 0)) {
      state.refused += 1;
      finish(state, actor, "stale_token");
    } else put(state, actor, row, actor.memory.token ?? 0);
  },
};

function commit(state, actor) {
  const { tx } = actor;
  if (!tx) return;
  const { sold, ...writes } = tx.writes;
  if (tx.level === "serializable" && Object.keys(tx.writes).length && tx.reads.some((row) => tx.stale.includes(row))) return beginAgain(state, actor, "overtaken");
  actor.tx = null;
  Object.entries(writes).forEach(([row, number]) => commitRow(state, actor, row, number));
  state.rows.sold += sold ?? 0;
}

// What was not committed is rolled back, and the locks that the actor has are released.
function leave(state, actor) {
  actor.tx = null;
  Object.entries(state.locks).filter(([, lock]) => lock.by === actor.name).forEach(([name]) => delete state.locks[name]);
}

function beginAgain(state, actor, mark) {
  state.said.mark = mark;
  leave(state, actor);
  actor.again += 1;
  actor.at = 0;
  actor.memory = {};
  if (actor.again > MOST_AGAIN) actor.end = "busy";
}

function finish(state, actor, end) {
  if (end === "done") {
    commit(state, actor);
    if (actor.at < actor.steps.length) return; // the commit was refused, and it begins again
  } else {
    state.said.mark = end;
    leave(state, actor);
  }
  actor.end = end;
}

// Each step is time that passes for every lease.
function pass(state) {
  for (const [name, lock] of Object.entries(state.locks)) {
    if (lock.left === null) continue;
    if (lock.left === 1) {
      delete state.locks[name];
      state.said.ended = [...(state.said.ended ?? []), { name, by: lock.by }];
    } else state.locks[name] = { ...lock, left: lock.left - 1 };
  }
}

// What is so now: whether anyone can go on, and whether what must never be has come about.
function judge(program, state) {
  state.deadlock = state.actors.every(isOver) || ready(state).length ? 0 : 1;
  const over = state.deadlock || state.actors.every(isOver);
  const counted = { waiting: state.actors.filter((actor) => blocked(state, actor)).length, again: Math.max(...state.actors.map(({ again }) => again)), refused: state.refused, deadlock: state.deadlock };
  state.bad ||= program.goals.some(({ test, end }) => (over || !end) && value(test, (name) => counted[name] ?? state.rows[name]));
  state.over = Boolean(over);
}

const keyOf = ({ rows, locks, tokens, actors, refused, bad }) => JSON.stringify([rows, locks, tokens, refused, bad, actors.map(({ at, again, memory, tx, end }) => [at, again, memory, tx, end])]);

const breathe = () => new Promise((done) => setTimeout(done));

/** Search every schedule, breadth first: `{ schedules, bad, states, shortest, deadlocks, cut }`; the shortest is a list of numbers. */
export async function search(program, buyers = 2) {
  const found = { buyers: program.named ? program.actors.length : buyers, schedules: 0, bad: 0, deadlocks: 0, states: 0, shortest: null, cut: false };
  let level = new Map([["", { state: start(program, buyers), count: 1, before: null }]]);
  while (level.size && !found.cut) {
    const next = new Map();
    for (const node of level.values()) {
      for (const at of ready(node.state)) {
        const state = advance(program, node.state, at);
        const key = keyOf(state);
        const known = next.get(key);
        if (known) known.count += node.count;
        else {
          next.set(key, { state, at, count: node.count, before: node });
          found.states += 1;
          if (found.states % PAUSE_EVERY === 0) await breathe();
        }
      }
      found.cut = found.states > MOST_STATES;
      if (found.cut) break;
    }
    for (const node of next.values()) count(found, node);
    level = new Map([...next].filter(([, { state }]) => !state.over));
  }
  return found;
}

function count(found, node) {
  if (node.state.bad && !found.shortest) found.shortest = pathTo(node);
  if (!node.state.over) return;
  found.schedules += node.count;
  if (node.state.bad) found.bad += node.count;
  if (node.state.deadlock) found.deadlocks += node.count;
}

function pathTo(node) {
  const path = [];
  for (let one = node; one.before; one = one.before) path.unshift(one.at);
  return path;
}

/** All states along `schedule`, the first one included; a step that can't be taken ends it. */
export function run(program, schedule, buyers = 2) {
  const states = [start(program, buyers)];
  for (const at of schedule) {
    if (!ready(states.at(-1)).includes(at)) break;
    states.push(advance(program, states.at(-1), at));
  }
  return states;
}

/** Search with two buyers, and with three if two do no harm; named actors are searched as they are. */
export async function searchAll(program) {
  const two = await search(program, 2);
  return two.shortest || program.named ? [two] : [two, await search(program, 3)];
}

export { parse };
