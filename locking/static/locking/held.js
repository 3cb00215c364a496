"use strict";
// Held locks: fetches the list, or the tree of waiters, again every two seconds and swaps what changed. It waits while the tab is hidden or a
// row is ticked, so that what was ticked is what is sent.
{
    const EVERY = 2000;
    const PARTS = ["#held-head", "#held-rows", ".paginator", "#held-trees"];
    const status = document.getElementById("held-live");
    const boxes = () => [...document.querySelectorAll("#held-rows input.action-select")];
    const ticked = () => boxes().filter((box) => box.checked).length;

    const say = (what) => {
        if (status.textContent !== status.dataset[what]) {
            status.textContent = status.dataset[what];
        }
    };

    // What is replaced loses the focus: a keyboard's user would begin at the top of the page every two seconds.
    const keyOf = (element) => `${element.tagName} ${element.getAttribute("href") ?? element.value}`;
    const swap = (old, fresh) => {
        const focused = old.contains(document.activeElement) ? keyOf(document.activeElement) : null;
        old.replaceWith(fresh);
        if (focused) {
            const again = [...fresh.querySelectorAll("a, input")].find((element) => keyOf(element) === focused);
            again?.focus({preventScroll: true});
        }
    };

    const refresh = async () => {
        const answer = await fetch(location.href, {credentials: "same-origin"});
        if (!answer.ok || answer.redirected) {
            throw new Error(`answer ${answer.status}`);
        }
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (ticked()) {
            return;
        }
        for (const part of PARTS) {
            const [old, fresh] = [document.querySelector(part), page.querySelector(part)];
            if (old && fresh && old.innerHTML !== fresh.innerHTML) {
                swap(old, document.adoptNode(fresh));
            }
        }
    };

    const beat = async () => {
        if (!document.hidden) {
            try {
                say(ticked() ? "paused" : "live");
                if (!ticked()) {
                    await refresh();
                }
            } catch {
                say("stale");
            }
        }
        setTimeout(beat, EVERY);
    };

    // The admin's own script knows only the rows that were there at first: ticking is done here, for any row.
    const tick = (event) => {
        const all = event.target.id === "action-toggle";
        if (!all && !event.target.classList.contains("action-select")) {
            return;
        }
        event.stopImmediatePropagation();
        for (const box of boxes()) {
            box.checked = all ? event.target.checked : box.checked;
            box.closest("tr").classList.toggle("selected", box.checked);
        }
        const counter = document.querySelector(".action-counter");
        if (counter) {
            counter.textContent = `${ticked()} / ${boxes().length}`;
        }
        say(ticked() ? "paused" : "live");
    };

    document.addEventListener("change", tick, true);
    setTimeout(beat, EVERY);
    say("live");
}
