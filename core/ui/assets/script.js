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
        replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
        button.textContent = "Live";
      } catch {
        button.textContent = "Live: no answer";
      }
    }
    setTimeout(refresh, period);
  };
  setTimeout(refresh, period);
}

// replace puts the live parts of a newer page in the place of those here. What has the focus keeps it; forms, and
// what was scrolled, are not touched.
function replace(newer) {
  for (const old of document.querySelectorAll("main [data-live], header [data-live]")) {
    const now = newer.getElementById(old.id);
    if (!now || now.isEqualNode(old)) continue;
    const focus = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const fresh = document.importNode(now, true);
    old.replaceWith(fresh);
    if (focus !== null) fresh.querySelector(`[href="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  }
}
