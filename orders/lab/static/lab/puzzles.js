// Twenty puzzles: what to bring about, a hint, what really happened, and the program; `fix` are its changed lines.

import { byId, fill, make } from "./dom.js";

const SOLVED = "holdfast.puzzles";

const NAIVE = "stock = 1\n\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell";
const PAIR = (first, second) => `never deadlock = 1\n\nA:\n${first}\nB:\n${second}`;

/** Where one begins to write. */
export const STARTERS = () => [
  { name: gettext("naive, broken"), program: `# ${gettext("One unit is left. Each buyer takes these steps.")}\n${NAIVE}` },
  { name: gettext("conditional update, sound"), program: "stock = 1\n\nupdate stock = stock - 1 if stock > 0\nsell" },
  { name: gettext("a lock, sound"), program: "stock = 1\n\nlock mug\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\nunlock mug" },
];

export const PUZZLES = () => [
  {
    text: gettext("Sell the last piece twice."), goal: "twice", strategy: "lost_update", program: NAIVE,
    hint: gettext("Let both read before either writes."),
    incident: gettext("Flexcoin, 2014: thousands of simultaneous transfers overdrew accounts before the balances were updated. 896 bitcoins were gone, and the company closed."),
    link: "https://vladmihalcea.com/race-condition/",
    fix: [["read stock as seen\ncheck seen > 0\nwrite stock = seen - 1", "update stock = stock - 1 if stock > 0"]],
  },
  {
    text: gettext("Sell it twice, and bring the page below zero."), goal: "twice", strategy: "negative_stock",
    program: "stock = 1\nnever stock < 0\n\nread stock as seen\ncheck seen > 0\nupdate stock = stock - 1\nsell",
    hint: gettext("The subtraction is atomic, the check before it is not: let both check first."),
    incident: gettext("Poloniex, 2014: withdrawals placed at the same instant left a negative balance, which no check looked for. 12.3 % of its bitcoins were gone."),
    link: "https://www.quadrigainitiative.com/casestudy/poloniexwithdrawalhack.php",
    fix: [["update stock = stock - 1", "update stock = stock - 1 if stock > 0"]],
  },
  {
    text: gettext("Make B wait for A."), goal: "wait", strategy: "row_lock",
    program: "stock = 1\nnever waiting > 0\n\nbegin\nread stock for update\ncheck stock > 0\nwrite stock = stock - 1\nsell\ncommit",
    hint: gettext("Lead A to its row lock and leave it there; then press B."),
    incident: gettext("GoCardless, 2015: a migration waited for the lock of a table behind one slow query, and every other query waited behind the migration. The API was down for 15 seconds."),
    link: "https://gocardless.com/blog/zero-downtime-postgres-migrations-the-hard-parts/",
  },
  {
    text: gettext("Let one buyer be overtaken and begin again."), goal: "again", strategy: "version_cas",
    program: "stock = 2\nnever again > 0\n\nread stock as seen\ncheck seen > 0\nupdate stock = seen - 1 if stock = seen else again\nsell",
    hint: gettext("Let both read; the second one to write finds another value than it has read."),
    incident: gettext("Nasdaq, Facebook's first day in 2012: each time the opening price had been computed, an order had changed meanwhile, so it was computed again, for 25 minutes. The fine was 10 million dollars."),
    link: "https://www.sec.gov/files/litigation/admin/2013/34-69655.pdf",
  },
  {
    text: gettext("Make both wait for each other."), goal: "circle", strategy: "unsorted_locks",
    program: PAIR("begin\nread pen for update\nread mug for update\nsell\ncommit", "begin\nread mug for update\nread pen for update\nsell\ncommit").replace("never", "pen = 1\nmug = 1\nnever"),
    hint: gettext("Each locks its first row; then each asks for the other one."),
    incident: gettext("PostgreSQL's manual shows it with two bank transfers in opposite directions. The server looks for such rings after a second and ends one of the transactions."),
    link: "https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-DEADLOCKS",
    fix: [["B:\nbegin\nread mug for update\nread pen for update", "B:\nbegin\nread pen for update\nread mug for update"]],
  },
  {
    text: gettext("Do it where no database sees it."), goal: "circle", strategy: "unsorted_redis_locks",
    program: PAIR("lock pen\nlock mug\nsell\nunlock mug\nunlock pen", "lock mug\nlock pen\nsell\nunlock pen\nunlock mug"),
    hint: gettext("Two locks in Redis, taken in opposite orders. No server knows both waiters."),
    incident: gettext("Edsger Dijkstra posed it to students in 1965 as computers that compete for tape drives. It is known as the dining philosophers, each with one fork in the hand."),
    link: "https://en.wikipedia.org/wiki/Dining_philosophers_problem",
    fix: [["B:\nlock mug\nlock pen", "B:\nlock pen\nlock mug"]],
  },
  {
    text: gettext("Redeem a gift card twice, inside a transaction."),
    program: "card = 1\nnever sold > 1\n\nbegin read committed\nread card\ncheck card > 0\nwrite card = 0\nsell\ncommit",
    hint: gettext("A transaction does not lock what it reads. Let both read, then let one wait for the other's commit: it writes all the same."),
    incident: gettext("ACIDRain, 2017: researchers found 22 such holes in 12 web shop systems that ran on two million sites: gift cards, stock, carts. Some came from too weak a level of isolation."),
    link: "http://www.bailis.org/papers/acidrain-sigmod2017.pdf",
    fix: [["read card", "read card for update"]],
  },
  {
    text: gettext("Write skew: let both doctors go off call."),
    program: "alice = 1\nbob = 1\nnever alice + bob = 0\n\nA:\nbegin repeatable read\nread alice\nread bob\ncheck alice + bob > 1\nwrite alice = 0\ncommit\n\nB:\nbegin repeatable read\nread alice\nread bob\ncheck alice + bob > 1\nwrite bob = 0\ncommit",
    hint: gettext("Each writes another row, so no write conflicts with another. Let both read before either commits."),
    incident: gettext("The textbook case against snapshot isolation. Jepsen found in 2020 that PostgreSQL, too, had let such pairs through at its strictest level, since 2011."),
    link: "https://jepsen.io/analyses/postgresql-12.3",
    fix: [["repeatable read", "serializable"]],
  },
  {
    text: gettext("Move five dollars to another card twice."),
    program: "card = 5\nother = 0\nnever card + other > 5 in the end\n\nread card\ncheck card > 4\nwrite card = card - 5\nupdate other = other + 5",
    hint: gettext("The first card is overwritten with the same zero; the second one is added to."),
    incident: gettext("Starbucks, 2015: Egor Homakov sent the same transfer between two gift cards twice at once, had five dollars too many, and spent them to prove it."),
    link: "https://sakurity.com/blog/2015/05/21/starbucks.html",
    fix: [["read card\ncheck card > 4\nwrite card = card - 5", "update card = card - 5 if card > 4"]],
  },
  {
    text: gettext("Idempotency: charge one payment twice, though its key is checked."),
    program: "done = 0\ncharged = 0\nnever charged > 1\n\nrequest, retry:\nread done\ncheck done = 0\nupdate charged = charged + 1\nwrite done = 1",
    hint: gettext("The client has waited long enough and sends the request again while the first one is still at work."),
    incident: gettext("Santander UK paid 130 million pounds a second time on Christmas Day 2021: 75,000 payments were made twice because of a scheduling issue."),
    link: "https://www.cityam.com/santander-mistakenly-sends-christmas-bonus-to-thousands-of-brits-leaving-lender-130m-out-of-pocket/",
    fix: [["read done\ncheck done = 0\nupdate charged = charged + 1\nwrite done = 1", "update done = 1 if done = 0\nupdate charged = charged + 1"]],
  },
  {
    text: gettext("Sell twice under a lock whose lease ends."),
    program: "stock = 1\n\nlock mug for 4 steps\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\nunlock mug",
    hint: gettext("Let A read and then stand still, as in a pause of the garbage collector, until its lease has ended."),
    incident: gettext("HBase used to have this bug: a process that paused for longer than its lease wrote on as if it still had it. Martin Kleppmann describes how."),
    link: "https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html",
    fix: [["for 4 steps\n", "for 4 steps\nbegin\nfence mug\n"], ["unlock mug", "commit\nunlock mug"]],
  },
  {
    text: gettext("Fencing: have a holder that comes back late refused."),
    program: "stock = 2\nnever refused > 0\n\nlock mug for 4 steps\nbegin\nfence mug\nread stock\ncheck stock > 0\nwrite stock = stock - 1\nsell\ncommit\nunlock mug",
    hint: gettext("Let A take the lock and no more. When its lease has ended, B gets the next token and passes the fence first."),
    incident: gettext("GitHub, December 2012: the network froze for 90 seconds, and the file servers of a pair both took themselves for the active one. A message may arrive long after its sender has lost its role."),
    link: "https://github.blog/2012-12-26-downtime-last-saturday/",
  },
  {
    text: gettext("Delete another buyer's lock, so that a third one comes in."),
    program: "stock = 1\n\nslow:\nlock mug for 2 steps\nread stock\nread stock\ndelete mug\n\nB, C:\nlock mug\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\nunlock mug",
    hint: gettext("Its lease has ended long ago, and it deletes the lock all the same. Who has it now?"),
    incident: gettext("Redis' own manual warns of it: DEL without a look at the owner removes the lock of another client, so the release has to compare a random value first."),
    link: "https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/",
    fix: [["delete mug", "unlock mug"]],
  },
  {
    text: gettext("Redlock under a partition: two majorities of three servers."),
    program: "stock = 1\n\n# A does not reach server 3, B does not reach server 1.\nA:\nlock redis1\nlock redis2\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\n\nB:\nlock redis2\nlock redis3\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\n\nrestart:\ndelete redis2",
    hint: gettext("Server 2 restarts without its memory while A is at work."),
    incident: gettext("The description of Redlock names the case itself: a server without fsync that restarts has forgotten its locks, so it has to stay away for as long as a lease."),
    link: "https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/",
    fix: [["read stock as seen\ncheck seen > 0\nwrite stock = seen - 1", "update stock = stock - 1 if stock > 0"]],
  },
  {
    text: gettext("Sell twice under a lock, reading from a replica."),
    program: "stock = 1\nreplica = 1\n\nA, B:\nlock mug\nread replica as seen\ncheck seen > 0\nupdate stock = stock - 1\nsell\nunlock mug\n\nreplication:\nread stock\nwrite replica = stock",
    hint: gettext("The lock is good, the stock that is read under it is old."),
    incident: gettext("GitHub, October 2018: 43 seconds without a line between two data centers made both take writes that the other never saw. Reads were stale for 24 hours and 11 minutes."),
    link: "https://github.blog/2018-10-30-oct21-post-incident-analysis/",
    fix: [["read replica as seen", "read stock as seen"]],
  },
  {
    text: gettext("ABA: a compare-and-swap that sees no difference."),
    program: "# Coupon 1 lies on top, coupon 2 below it.\ntop = 1\nbelow = 2\ngiven = 0\nnever top = 2 and given = 1\n\nA:\nread top as seen\nread below\nupdate top = below if top = seen else again\n\n# B takes both, gives coupon 2 away and puts coupon 1 back.\nB:\nbegin\nupdate given = 1\nupdate below = 0\nupdate top = 1\ncommit",
    hint: gettext("Let A read top and below, then B do everything: the top is 1 again, and what lies below is not."),
    incident: gettext("IBM's manual of the System/370 described it in 1975 for lists of free storage, and put a counter beside the pointer: that is why there is a double compare-and-swap."),
    link: "https://en.wikipedia.org/wiki/ABA_problem",
    fix: [["update top = 1", "update top = 101"]],
  },
  {
    text: gettext("Sell twice because the lock ends before the commit."),
    program: "stock = 1\n\nlock mug\nbegin\nread stock as seen\ncheck seen > 0\nwrite stock = seen - 1\nsell\nunlock mug\ncommit",
    hint: gettext("Stop A between its last two lines."),
    incident: gettext("No single incident, but one of the most frequent mistakes: in Spring a synchronized method under @Transactional, in Django a lock inside atomic(). The decorator commits when the lock is gone."),
    fix: [["unlock mug\ncommit", "commit\nunlock mug"]],
  },
  {
    text: gettext("Have the cache show forever what is gone."),
    program: "stock = 1\ncache = -1\nnever cache > stock in the end\n\nreader:\nread stock\nwrite cache = stock\n\nbuyer:\nupdate stock = stock - 1\nupdate cache = -1",
    hint: gettext("Let the reader look at the stock and fill the cache only when the buyer has emptied it."),
    incident: gettext("Facebook calls these stale sets. Its memcache gives a reader a lease that a deletion takes away, so that a late fill is refused."),
    link: "https://www.usenix.org/conference/nsdi13/technical-sessions/presentation/nishtala",
    fix: [["reader:\nread stock\nwrite cache = stock", "reader:\nbegin\nread stock for update\nwrite cache = stock\ncommit"]],
  },
  {
    text: gettext("Register one name twice, past a check for uniqueness."),
    program: "name_of_a = 0\nname_of_b = 0\nnever name_of_a + name_of_b > 1\n\nA:\nbegin repeatable read\nread name_of_a\nread name_of_b\ncheck name_of_a + name_of_b = 0\nwrite name_of_a = 1\ncommit\n\nB:\nbegin repeatable read\nread name_of_a\nread name_of_b\ncheck name_of_a + name_of_b = 0\nwrite name_of_b = 1\ncommit",
    hint: gettext("Neither sees the row that the other has inserted and not committed."),
    incident: gettext("A study of 67 Rails projects in 2015 found that their checks for uniqueness let duplicates through under load, as the manual warns. Only an index in the database holds."),
    link: "http://www.bailis.org/papers/feral-sigmod2015.pdf",
    fix: [["repeatable read", "serializable"]],
  },
  {
    text: gettext("Have an old plan overwrite a newer one, and be cleaned up."),
    program: "plan = 1\noldest = 1\nnever plan < oldest in the end\n\nslow:\nread plan\ncheck plan < 2\nwrite plan = 2\n\nfast:\nread plan\ncheck plan < 3\nwrite plan = 3\n# clean up: plans before the third one are deleted\nwrite oldest = 3",
    hint: gettext("The slow one has checked that its plan is newer, and stands still before it writes."),
    incident: gettext("Amazon, October 2025: a delayed worker put an old DNS plan over the newest one, and the other worker's clean-up deleted it. DynamoDB had no address left, and many services went down with it."),
    link: "https://aws.amazon.com/message/101925/",
    fix: [["read plan\ncheck plan < 2\nwrite plan = 2", "update plan = 2 if plan < 2"], ["read plan\ncheck plan < 3\nwrite plan = 3", "update plan = 3 if plan < 3"]],
  },
];

/** The program of `puzzle` with its changed lines, or nothing where nothing is broken. */
export const fixed = ({ program, fix }) => fix && fix.reduce((text, [from, to]) => text.replaceAll(from, to), program);

/** List the puzzles; `open` is called with the one that is chosen, and its number. */
export function listPuzzles(open) {
  const items = PUZZLES().map((puzzle, at) => make("li", {}, make("button", { type: "button", onclick: () => open(puzzle, at + 1) }, make("span", { className: "solved" }), ` ${at + 1} · ${puzzle.text}`)));
  items.forEach((item, at) => { item.firstChild.dataset.puzzle = at + 1; });
  byId("puzzles").replaceChildren(...items);
  showSolved();
  const number = Number(new URLSearchParams(location.search).get("puzzle"));
  const chosen = PUZZLES()[number - 1];
  if (chosen) open(chosen, number);
}

/** Say what puzzle `number` is about, above the place where it is played; the address is its link. */
export function tellPuzzle(puzzle, number, place) {
  const card = byId("puzzle");
  const address = new URL(location.href);
  address.searchParams.set("puzzle", number);
  history.replaceState(null, "", address);
  document.querySelectorAll("[data-puzzle]").forEach((button) => button.setAttribute("aria-pressed", button.dataset.puzzle === String(number)));
  const link = puzzle.link ? [make("a", { href: puzzle.link, rel: "noopener", target: "_blank", textContent: gettext("Read more") })] : [];
  card.replaceChildren(
    make("h3", { textContent: `${number} · ${puzzle.text}` }),
    make("details", {}, make("summary", { textContent: gettext("A hint") }), make("p", { textContent: puzzle.hint })),
    make("p", {}, make("strong", { textContent: gettext("It happened:") }), ` ${puzzle.incident} `, ...link));
  card.hidden = false;
  place.before(card);
}

const solved = () => new Set(JSON.parse(sessionStorage.getItem(SOLVED) ?? "[]"));

/** Remember that puzzle `number` is solved. */
export function markSolved(number) {
  sessionStorage.setItem(SOLVED, JSON.stringify([...solved().add(number)]));
  showSolved();
}

function showSolved() {
  const done = solved();
  const all = [...document.querySelectorAll("[data-puzzle]")];
  all.forEach((button) => {
    const is = done.has(Number(button.dataset.puzzle));
    const sign = button.querySelector(".solved");
    sign.textContent = is ? "✓" : "";
    sign.setAttribute("role", "img");
    sign.setAttribute("aria-label", is ? gettext("solved") : gettext("not solved yet"));
  });
  byId("solved").textContent = fill(gettext("%(done)s of %(all)s puzzles solved"), { done: done.size, all: all.length });
}
