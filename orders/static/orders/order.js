"use strict";

// An order on the shop page after it was placed: pay, cancel, and the time that is left to pay.
// `element`, `say` and `refresh` are those of shop.js.

const STATES = () => ({
  placed: gettext("placed, not paid yet"),
  paid: gettext("paid"),
  partly_shipped: gettext("partly shipped"),
  shipped: gettext("shipped"),
  returned: gettext("returned: the pieces are back on the shelf"),
  cancelled: gettext("cancelled: the pieces went back on the shelf"),
  expired: gettext("expired: the pieces went back on the shelf"),
});

/** Show the state of `order` in `item`, with what may be done about it. */
function follow(item, order) {
  const state = element("p", { className: "state" });
  const buttons = element("p", { className: "actions" });
  item.querySelector("details").before(state, buttons);
  showOrder({ item, state, buttons }, order);
}

function showOrder(place, order) {
  place.item.dataset.state = order.state;
  place.state.textContent = STATES()[order.state] ?? order.state;
  place.buttons.replaceChildren();
  clearInterval(place.clock);
  if (order.state === "placed" && form.dataset.pay) offer(place, order, "pay", gettext("Pay"));
  if (["placed", "paid"].includes(order.state) && form.dataset.cancel) offer(place, order, "cancel", gettext("Cancel the order"));
  if (order.state === "placed" && order.pay_by) count(place, order);
}

function offer(place, order, action, label) {
  const button = element("button", { type: "button", textContent: label });
  button.addEventListener("click", () => act(place, order, action));
  place.buttons.append(button);
}

async function act(place, order, action) {
  place.buttons.querySelectorAll("button").forEach((button) => { button.disabled = true; });
  try {
    const answer = await send(form.dataset[action].replace("ORDER", order.id), {});
    const body = await answer.json();
    // A refusal tells the state that the order is in by now.
    showOrder(place, answer.ok ? body : { ...order, state: body.state ?? order.state });
    say(answer.ok ? STATES()[body.state] : body.detail);
  } catch {
    showOrder(place, order);
    say(gettext("No answer: it isn't known whether it was done. Try again."));
  }
  await refresh();
}

function count(place, order) {
  const tell = () => {
    const left = Math.round((Date.parse(order.pay_by) - Date.now()) / 1000);
    const time = `${Math.floor(Math.max(0, left) / 60)}:${String(Math.max(0, left) % 60).padStart(2, "0")}`;
    place.state.textContent = left > 0 ? interpolate(gettext("placed, %s left to pay"), [time]) : gettext("the time to pay is over");
    if (left <= 0) clearInterval(place.clock);
  };
  place.clock = setInterval(tell, 1000);
  tell();
}
