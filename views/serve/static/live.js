// Fetches the page again every few seconds and replaces its main part where that changed. Not while the tab is hidden,
// a form is being filled in or text is selected. Without this script the pages work, and stay as they were loaded.
"use strict";
const label = document.getElementById("live-text");
let last = "";

function isBusy(main) {
  const selection = getSelection();
  return document.hidden || document.body.dataset.charts || document.activeElement?.closest("form") || (!selection.isCollapsed && main.contains(selection.anchorNode));
}

function replace(main, next) {
  const open = [...main.querySelectorAll("details[open][id]")].map((part) => part.id);
  const focused = main.contains(document.activeElement) && document.activeElement.getAttribute("href");
  const scrolled = [...main.querySelectorAll(".wide")].map((part) => part.scrollLeft);
  main.replaceChildren(...next.childNodes);
  main.dataset.every = next.dataset.every;
  open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  main.querySelectorAll(".wide").forEach((part, place) => { part.scrollLeft = scrolled[place] ?? 0; });
  if (focused) [...main.querySelectorAll("a")].find((part) => part.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

async function refresh() {
  const main = document.getElementById("main");
  try {
    if (!isBusy(main)) {
      const answer = await fetch(location.href, { cache: "no-store", credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.getElementById("main");
      if (next && next.innerHTML !== last && !isBusy(main)) { last = next.innerHTML; replace(main, next); }
      label.textContent = page.getElementById("live-text")?.textContent ?? "";
      document.body.classList.remove("stale");
    }
  } catch { document.body.classList.add("stale"); label.textContent = "no answer"; }
  setTimeout(refresh, Math.max(2, main.dataset.every) * 1000);
}

if (label) { last = document.getElementById("main").innerHTML; setTimeout(refresh, document.getElementById("main").dataset.every * 1000); }
