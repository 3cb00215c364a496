// How the page speaks to the lab: it asks for a run, follows what the run says, and says something to it.

const lab = document.getElementById("lab");
const EVERY = 120; // ms between two looks

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const runAddress = (id) => lab.dataset.run.replace("RUN", id);

/** The lab's refusal: its sentence, and the names of the fields that it is about. */
export class Refused extends Error {
  constructor(message, fields = []) {
    super(message);
    this.fields = fields;
  }
}

async function send(address, fields) {
  const answer = await fetch(address, {
    method: "POST",
    headers: { "X-CSRFToken": lab.querySelector("[name=csrfmiddlewaretoken]").value },
    body: new URLSearchParams(fields),
  });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(body.message ?? `${answer.status} ${answer.statusText}`, body.fields);
  return body;
}

export const startRace = (fields) => send(lab.dataset.races, fields);
export const startSteps = (fields) => send(lab.dataset.steps, fields);
export const startVote = (fields) => send(lab.dataset.votes, fields);
export const say = (id, word) => send(`${runAddress(id)}say/`, { say: word });

/** Yield what a run says, oldest first, until it has ended; `null` if there is no such run. */
export async function* follow(id) {
  let after = 0;
  for (;;) {
    const answer = await fetch(`${runAddress(id)}?after=${after}`);
    if (!answer.ok) throw new Refused(gettext("This race is no longer kept: run it again."));
    const run = await answer.json();
    for (const event of run.events) {
      after = event.id;
      yield { ...event, parameters: run.parameters };
      if (event.type === "ended") return;
    }
    if (!run.events.length) await pause(EVERY);
  }
}

/** The races that were recorded for those who have not run one yet. */
export const recording = async () => (await fetch(lab.dataset.recording)).json();

const sources = new Map();

/** The lines of a strategy. */
export async function source(name) {
  if (!sources.has(name)) {
    const answer = await fetch(lab.dataset.source.replace("NAME", name));
    sources.set(name, await answer.json());
  }
  return sources.get(name);
}
