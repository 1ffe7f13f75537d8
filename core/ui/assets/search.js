// SPDX-License-Identifier: Apache-2.0
// The search of the manual as files: sections.js has what /ui/docs/search looks through.
"use strict";
const query = new URLSearchParams(location.search).get("q") || "";
const words = query.toLowerCase().split(/\s+/).filter(Boolean).slice(0, 8);
document.getElementById("q").value = query;
if (words.length > 0) {
  const rank = (s) => words.reduce((n, w) => n + ((s.title + " " + s.heading).toLowerCase().includes(w) ? 0 : s.text.toLowerCase().includes(w) ? 1 : 9), 0);
  const hits = sections.map((s) => [rank(s), s]).filter(([n]) => n <= 8).sort((a, b) => a[0] - b[0]).slice(0, 40);
  document.getElementById("found").textContent = `${hits.length} sections have all words of “${query}”.`;
  for (const [, s] of hits) {
    const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("p");
    link.href = s.to;
    link.textContent = s.heading === s.title ? s.title : `${s.title}: ${s.heading}`;
    const at = Math.max(0, Math.min(...words.map((w) => s.text.toLowerCase().indexOf(w)).filter((i) => i >= 0), s.text.length) - 60);
    text.className = "quiet";
    text.textContent = s.text.slice(at === s.text.length - 60 ? 0 : at).slice(0, 200);
    item.append(link, text);
    document.getElementById("hits").append(item);
  }
}
