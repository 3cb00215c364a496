"use strict";

// The shop page: it buys through the same address as every other client and shows what was answered.
// gettext, ngettext and interpolate come from /texts.js, Django's catalog of this app's translations.

const form = document.getElementById("order");
const byId = (id) => document.getElementById(id);
const rows = form ? [...form.querySelectorAll(".product")] : [];

// The basket -------------------------------------------------------------------------------------------------

const field = (row) => row.querySelector("input");

const MOST = 10_000; // of one product in one order, as the checkout has it

function quantity(row) {
  const value = field(row).valueAsNumber;
  return Number.isFinite(value) ? value : 0;
}

// An empty field is none of it; anything else must be a whole number.
const isGood = (row) => !field(row).validity.badInput && Number.isInteger(quantity(row)) && quantity(row) >= 0 && quantity(row) <= MOST;
const nameOf = (row) => row.querySelector("strong").textContent;

function lines() {
  return rows
    .filter((row) => quantity(row) !== 0)
    .map((row) => ({ sku: row.dataset.sku, quantity: quantity(row) }));
}

// In cents: a sum of floats would show 29.970000000000002.
const cents = (price) => Math.round(Number(price) * 100);

function showSum() {
  const good = rows.filter(isGood);
  const units = good.reduce((sum, row) => sum + quantity(row), 0);
  byId("units").textContent = interpolate(ngettext("%s piece", "%s pieces", units), [units]);
  byId("total").textContent = totals(good).join(" + ");
  ready(units > 0 || good.length < rows.length);
  good.forEach((row) => field(row).removeAttribute("aria-invalid"));
  keep();
}

// One sum for each currency in the basket; of an empty basket in the first product's.
function totals(good) {
  const sums = new Map();
  good.forEach((row) => sums.set(row.dataset.currency, (sums.get(row.dataset.currency) ?? 0) + quantity(row) * cents(row.dataset.price)));
  const some = [...sums].filter(([, sum]) => sum);
  return (some.length ? some : [...sums].slice(0, 1)).map(([currency, sum]) => money(sum / 100, currency));
}

// An amount with the decimals that its currency has, which only the style "currency" knows.
function money(amount, currency) {
  const { minimumFractionDigits, maximumFractionDigits } = new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions();
  return `${Number(amount).toLocaleString(document.documentElement.lang, { minimumFractionDigits, maximumFractionDigits })} ${currency}`;
}

// A disabled button would lose the focus: it only says that it can't be pressed now.
const ready = (on) => byId("buy").setAttribute("aria-disabled", !on);
const isReady = () => byId("buy").getAttribute("aria-disabled") !== "true";

// What is in the basket stays there when the page is loaded again, in another language for instance.
const BASKET = "holdfast.basket";

function keep() {
  sessionStorage.setItem(BASKET, JSON.stringify(Object.fromEntries(rows.map((row) => [row.dataset.sku, field(row).value]))));
}

function restore() {
  const kept = JSON.parse(sessionStorage.getItem(BASKET) ?? "{}");
  rows.filter((row) => kept[row.dataset.sku]).forEach((row) => { field(row).value = kept[row.dataset.sku]; });
}

function step(event) {
  const button = event.target.closest("[data-step]");
  if (!button) return;
  const input = button.parentElement.querySelector("input");
  input.value = Math.max(0, (input.valueAsNumber || 0) + Number(button.dataset.step));
  showSum();
}

// Anyone who comes to a quantity by keyboard types over it, not behind its zero.
function selectAll(event) {
  if (event.target.matches("input")) event.target.select();
}

// The shelf --------------------------------------------------------------------------------------------------

function stockText(available) {
  if (available < 0) return interpolate(gettext("%s: oversold"), [available]);
  if (available === 0) return gettext("sold out");
  return interpolate(ngettext("%s in stock", "%s in stock", available), [available]);
}

function showStock(row, available) {
  const stock = row.querySelector(".stock");
  stock.textContent = stockText(available);
  stock.dataset.stock = available;
  stock.dataset.level = available < 0 ? "below" : available === 0 ? "none" : available <= 5 ? "low" : "good";
}

let looks = 0;

async function refresh() {
  const look = ++looks;
  try {
    const answer = await fetch(form.dataset.products, { credentials: "omit" });
    const { products } = await answer.json();
    if (look !== looks) return; // answers overtake each other: the page shows what was asked for last
    const available = new Map(products.map((product) => [product.sku, product.available]));
    rows.filter((row) => available.has(row.dataset.sku)).forEach((row) => showStock(row, available.get(row.dataset.sku)));
  } catch {
    say(gettext("The stock can't be read: the shop doesn't answer."));
  }
}

// Buying -----------------------------------------------------------------------------------------------------

async function buy(event) {
  event.preventDefault();
  if (!isReady()) return;
  const wrong = rows.filter((row) => !isGood(row));
  if (wrong.length) return refuse(wrong);
  const order = { lines: lines() };
  const strategy = byId("strategy")?.value;
  if (strategy) order.strategy = strategy;
  await place(order, newKey());
}

function refuse(wrong) {
  wrong.forEach((row) => {
    field(row).setAttribute("aria-invalid", "true");
    field(row).setAttribute("aria-describedby", "message");
  });
  field(wrong[0]).focus();
  const faults = wrong.map((row) => interpolate(gettext("%(name)s: %(quantity)s is not a whole number from 0 to %(most)s."), { name: nameOf(row), quantity: field(row).value || "?", most: MOST }, true));
  say(faults.join(" "), true);
}

async function place(order, key) {
  busy(true);
  let unknown;
  try {
    unknown = await show(await send(form.dataset.checkout, order, { "Idempotency-Key": key }), order);
  } catch {
    unknown = add("unknown", gettext("No answer: it isn't known whether the order was placed"), []);
  }
  if (unknown) offerRepetition(unknown, order, key);
  busy(false);
  showSum();
  await refresh();
}

// The same key: if the order was placed, this gets its answer and places no second one.
function offerRepetition(item, order, key) {
  const again = element("button", { type: "button", textContent: gettext("Ask again") });
  again.addEventListener("click", () => { again.remove(); place(order, key); });
  item.append(again);
}

// crypto.randomUUID() is missing where a page comes over plain HTTP from another machine.
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function send(address, body, headers = {}) {
  return fetch(address, {
    method: "POST",
    credentials: "omit", // the checkout needs no login, so no cookie goes along
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
}

function busy(on) {
  ready(!on);
  byId("buy").setAttribute("aria-busy", on);
  if (on) say(gettext("Placing the order …"));
}

async function show(answer, order) {
  const text = await answer.text();
  const isJson = /json/.test(answer.headers.get("Content-Type") ?? "");
  const body = isJson ? JSON.parse(text) : {};
  const [kind, title, details] = answer.ok ? ordered(body) : refused(answer, body, order);
  const item = add(kind, title, details, `${answer.status} ${isJson ? JSON.stringify(body, null, 2) : answer.statusText}`);
  if (answer.ok) follow(item, body);
  if (answer.ok) rows.forEach((row) => (field(row).value = 0));
  return kind === "unknown" ? item : null;
}

function ordered(order) {
  const items = order.lines.map((line) => `${line.quantity} × ${line.sku}`).join(", ");
  return ["ordered", interpolate(gettext("Ordered for %s"), [money(order.total, order.currency)]), [interpolate(gettext("Order %s"), [order.number]), items, order.strategy]];
}

function refused(answer, problem, order) {
  const wait = answer.headers.get("Retry-After");
  const again = wait ? [interpolate(gettext("Try again in %s s."), [wait])] : [];
  switch ((problem.type ?? "").split("#")[1]) {
    case "sold-out":
      return ["soldout", gettext("Not enough in stock; nothing was ordered"), problem.shortages.map(shortage)];
    case "too-many-requests":
      return ["busy", gettext("Too many requests; nothing was ordered"), again];
    case "busy":
      return ["busy", gettext("Too busy right now; nothing was ordered"), again];
    case "unavailable":
      return ["busy", gettext("The shop's servers are down; nothing was ordered"), again];
    case "invalid-request":
    case "unknown-product":
      return ["invalid", gettext("The order can't be understood"), problem.errors.map((fault) => inWords(fault, order))];
  }
  // Without a known type only the status tells: below 500 the server refused, from 500 on anything may have happened.
  return answer.status < 500
    ? ["invalid", gettext("The order was refused"), [problem.detail ?? answer.statusText]]
    : ["unknown", gettext("It isn't known whether the order was placed"), [gettext("Ask again: no second order is placed.")]];
}

// A JSON pointer is for programs; people get the product's name.
function inWords({ pointer, detail }, order) {
  const line = order.lines[/^\/lines\/(\d+)/.exec(pointer)?.[1]];
  const row = rows.find((one) => one.dataset.sku === line?.sku);
  return row ? `${nameOf(row)}: ${detail}` : detail;
}

function shortage({ sku, requested, available }) {
  return interpolate(gettext("%(sku)s: %(requested)s wanted, %(available)s in stock"), { sku, requested, available }, true);
}

// Answers, newest first --------------------------------------------------------------------------------------

const SIGNS = { ordered: "✓", soldout: "✗", busy: "⧗", invalid: "!", unknown: "?" };

function add(kind, title, details, raw) {
  const item = element("li", { className: `answer ${kind}` });
  item.append(element("strong", { textContent: `${SIGNS[kind]} ${title}` }));
  details.forEach((detail) => item.append(element("p", { textContent: detail })));
  if (raw) item.append(whole(raw));
  byId("answers").prepend(item);
  byId("none").hidden = true;
  say(title, kind !== "ordered");
  return item;
}

function whole(raw) {
  const details = element("details", {});
  details.append(element("summary", { textContent: gettext("the whole answer") }), element("pre", { textContent: raw }));
  return details;
}

const element = (name, properties) => Object.assign(document.createElement(name), properties);

function say(text, bad = false) {
  byId("message").textContent = text;
  byId("message").classList.toggle("bad", bad);
}

// Start ------------------------------------------------------------------------------------------------------

function showIdea() {
  byId("idea").textContent = byId("strategy").selectedOptions[0].dataset.idea;
}

if (form) {
  rows.forEach((row) => showStock(row, Number(row.querySelector(".stock").dataset.stock)));
  form.addEventListener("click", step);
  form.addEventListener("input", showSum);
  form.addEventListener("focusin", selectAll);
  form.addEventListener("submit", buy);
  byId("refresh").addEventListener("click", refresh);
  byId("strategy")?.addEventListener("change", showIdea);
  restore();
  showSum();
}
