// The moments of a race that explain it, found in the buyers' marks and in the stock: [{ ms, text }].

import { fill } from "./dom.js";
import { leases } from "./lanes.js";

const MOST = 6;
const LONG = 400; // ms; a buyer who stands still so long between two steps was stopped
const LEASED = new Set(["expired_lease", "setnx_expire_del", "setnx_getset"]);
const LATE = ["decided", "locked"]; // where a fault stops a holder

const last = (buyer, name) => buyer.marks.findLast(([mark]) => mark === name);
const sold = (race) => race.buyers.filter((buyer) => buyer.answer === "sold");

/** The moments of `race` that are worth a flag, earliest first. */
export function moments(race) {
  const found = [...overtaking(race), stop(race), sameReading(race), secondHolder(race), first(race, "unavailable", gettext("Redis stops answering")), first(race, "overtaken", gettext("buyer %(number)s is overtaken and must read again")), first(race, "deadlocked", gettext("buyer %(number)s gives up: a deadlock")), oneTooMany(race), jump(race)];
  return found.filter(Boolean).slice(0, MOST).sort((a, b) => a.ms - b.ms);
}

function sameReading(race) {
  if (race.sound && race.kept) return null;
  const groups = Map.groupBy ? Map.groupBy(readings(race), (mark) => mark[2]) : grouped(readings(race));
  const [stock, group] = [...groups].sort((a, b) => b[1].length - a[1].length)[0] ?? [];
  if (!group || group.length < 2) return null;
  const ms = Math.max(...group.map((mark) => mark[1]));
  return { ms, text: fill(group.length === 2 ? gettext("both have read %(stock)s here") : gettext("%(count)s buyers have read %(stock)s by here"), { stock, count: group.length }) };
}

const readings = (race) => sold(race).map((buyer) => last(buyer, "read")).filter((mark) => mark && mark[2] !== null);

function grouped(marks) {
  const groups = new Map();
  marks.forEach((mark) => groups.set(mark[2], [...(groups.get(mark[2]) ?? []), mark]));
  return groups;
}

// Two buyers at work under the one lock: from having it until the stock is written.
function secondHolder(race) {
  if (outlived(race)) return null; // its flags say more
  const work = sold(race).map((buyer) => ({ number: buyer.number, from: last(buyer, "locked")?.[1], to: last(buyer, "written")?.[1] })).filter(({ from, to }) => from < to).sort((a, b) => a.from - b.from);
  const at = work.findIndex(({ from }, place) => place && from < work[place - 1].to);
  if (at < 1) return null;
  const facts = { second: work[at].number, first: work[at - 1].number };
  const text = LEASED.has(race.strategy) ? gettext("the lease of buyer %(first)s has ended here: buyer %(second)s gets the lock too") : gettext("buyer %(second)s gets a lock while buyer %(first)s still has one");
  return { ms: work[at].from, text: fill(text, facts) };
}

// The first holder that was still at work when its lease ended, and what came of it: another got the next
// token, and the holder was refused when it came back.
function overtaking(race) {
  const late = outlived(race);
  if (!late) return [];
  const { number, lease } = late;
  const ends = { ms: lease.ends, text: fill(gettext("the lease of buyer %(number)s ends"), { number }) };
  return [ends, nextGrant(race, late), refusal(race, number)];
}

function outlived(race) {
  const late = race.buyers.flatMap((buyer) => leases(buyer).filter(({ from, until, lease }) => lease.ends < until - 1 && from < lease.ends).map(({ lease }) => ({ number: buyer.number, lease })));
  return late.sort((a, b) => a.lease.ends - b.lease.ends)[0];
}

function nextGrant(race, { number, lease }) {
  const grants = race.buyers.filter((buyer) => buyer.number !== number).flatMap((buyer) => leases(buyer).map((grant) => ({ ms: grant.from, number: buyer.number, token: grant.lease.token })));
  const next = grants.filter(({ ms }) => ms >= lease.ends - 1).sort((a, b) => a.ms - b.ms)[0];
  return next && { ms: next.ms, text: fill(next.token ? gettext("buyer %(number)s gets token %(token)s") : gettext("buyer %(number)s gets the lock"), next) };
}

function refusal(race, number) {
  const buyer = race.buyers.find((one) => one.number === number);
  const at = buyer.marks.findIndex(([mark]) => mark === "stale_token");
  if (at < 0) return null;
  const { token } = buyer.marks.slice(0, at).findLast((mark) => mark[4])[4];
  return { ms: buyer.marks[at][1], text: fill(gettext("buyer %(number)s returns with token %(token)s: REFUSED"), { number, token }) };
}

// Only where a process was stopped on purpose: a buyer who waits for a row takes its time as well.
function stop(race) {
  if (race.parameters?.fault !== "pause") return null;
  for (const buyer of race.buyers) {
    const at = buyer.marks.findIndex(([mark, ms], place) => LATE.includes(mark) && (buyer.marks[place + 1]?.[1] ?? buyer.to) - ms > LONG);
    if (at >= 0) return { ms: buyer.marks[at][1], text: fill(gettext("buyer %(number)s stands still here, and its lease runs on"), buyer) };
  }
  return null;
}

function first(race, name, text) {
  const marks = race.buyers.flatMap((buyer) => buyer.marks.filter(([mark]) => mark === name).map(([, ms]) => ({ ms, number: buyer.number })));
  const earliest = marks.sort((a, b) => a.ms - b.ms)[0];
  return earliest ? { ms: earliest.ms, text: fill(text, earliest) } : null;
}

function oneTooMany(race) {
  const sale = sold(race).map((buyer) => buyer.to).sort((a, b) => a - b)[race.initial];
  return sale === undefined ? null : { ms: sale, text: fill(gettext("mug number %(number)s of %(initial)s is sold"), { number: race.initial + 1, initial: race.initial }) };
}

function jump(race) {
  const { ms, left } = race.stock;
  const rises = left.map((value, at) => ({ ms: ms[at], from: left[at - 1], to: value, by: value - (left[at - 1] ?? value) })).filter(({ by }) => by > 0);
  const highest = rises.sort((a, b) => b.by - a.by)[0];
  return highest ? { ms: highest.ms, text: fill(gettext("the page jumps from %(from)s to %(to)s"), highest) } : null;
}
