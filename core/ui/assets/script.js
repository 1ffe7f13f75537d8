// SPDX-License-Identifier: Apache-2.0
// The pages work without this: it only makes "/" lead to the search.
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
