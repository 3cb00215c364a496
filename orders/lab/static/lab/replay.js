// Sessions of steps that were recorded, with the calls of a lab that has a server.

const MOST_MS = 1500; // for which a press takes its time
const place = document.getElementById("lab");
const sessions = new Map();

class Session {
  #coming = [];
  #wake = () => {};
  #at = 0;
  #moved = Promise.resolve(); // a press waits for the one before it

  constructor(recorded) {
    this.recorded = recorded;
    this.#tell(this.#state(0));
  }

  press(who) {
    this.#moved = this.#moved.then(() => this.#move(who));
  }

  async #move(who) {
    const moves = this.recorded.presses[`${this.#at}${who}`] ?? [];
    let gone = 0;
    for (const [ms, at] of moves) {
      await new Promise((done) => setTimeout(done, Math.min(ms - gone, MOST_MS)));
      gone = ms;
      this.#at = at;
      this.#tell(this.#state(at));
    }
    const { A, B } = this.#state(this.#at).lanes;
    if (A.state === "done" && B.state === "done") this.end();
  }

  end() {
    this.#tell({ type: "ended", why: "done" });
  }

  async *events() {
    for (;;) {
      while (!this.#coming.length) await new Promise((wake) => { this.#wake = wake; });
      const event = this.#coming.shift();
      yield event;
      if (event.type === "ended") return;
    }
  }

  #tell(event) {
    this.#coming.push(event);
    this.#wake();
  }

  #state(at) {
    const { states, lanes, products } = this.recorded;
    const [a, b, product, left, sold] = states[at];
    return { type: "steps", initial: 1, left, sold, products: products[product], lanes: { A: lanes[a], B: lanes[b] } };
  }
}

export async function startSteps({ strategy }) {
  const recorded = await (await fetch(place.dataset.steps.replace("NAME", strategy))).json();
  const id = String(sessions.size + 1);
  sessions.set(id, new Session(recorded));
  return { id };
}

export const follow = (id) => sessions.get(id).events();

export async function say(id, word) {
  if (word === "stop") sessions.get(id).end();
  else sessions.get(id).press(word); // its answer is an event
}
