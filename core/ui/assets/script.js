// SPDX-License-Identifier: Apache-2.0
// The pages work without this: it makes "/" lead to the search, and keeps a page about a running Tandem up to date.
"use strict";
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  const search = document.getElementById("q");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && search) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

const button = document.getElementById("live");
if (button && document.body.hasAttribute("data-live")) {
  const period = 1000 * (Number(document.body.dataset.live) || 3); // milliseconds between two loads
  const live = () => button.getAttribute("aria-pressed") === "true";
  button.hidden = false;
  button.addEventListener("click", () => button.setAttribute("aria-pressed", String(!live())));
  const refresh = async () => {
    if (live() && !document.hidden && document.getSelection().isCollapsed) {
      try {
        const answer = await fetch(location.href, { credentials: "same-origin" });
        if (answer.status >= 500) throw new Error(answer.statusText);
        show(new DOMParser().parseFromString(await answer.text(), "text/html"));
        button.textContent = "Live";
      } catch {
        button.textContent = "Live: no answer";
      }
    }
    setTimeout(refresh, period);
  };
  setTimeout(refresh, period);
}

// parts are the live parts of a page.
function parts(page) {
  return [...page.querySelectorAll("main [data-live], header [data-live]")];
}

// show puts the live parts of a newer page in the place of those here. What has the focus keeps it; forms, and what was
// scrolled, are not touched. A page of other parts is another page, which is loaded whole: one without an answer has
// none of its own, nor has that of a Service that is gone.
function show(newer) {
  const ids = (page) => parts(page).map((part) => part.id).join();
  if (ids(newer) !== ids(document)) {
    location.reload();
    return;
  }
  for (const old of parts(document)) {
    const now = newer.getElementById(old.id);
    if (now.isEqualNode(old)) continue;
    const focus = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const fresh = document.importNode(now, true);
    old.replaceWith(fresh);
    if (focus !== null) fresh.querySelector(`[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
}
