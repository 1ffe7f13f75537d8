// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
)

// nativePart is the part of a native plan for one tool.
type nativePart struct{ name, text string }

// nativeParts cuts a plan at the lines that name the tool of what follows: "# TOOL
// ARGUMENTS". A plan without any is nft's, or HNS' JSON.
func nativeParts(mode config.Mode, native string) (parts []nativePart) {
	name, text := "nft", ""
	if mode == "kernelspace" {
		name = "hns"
	}
	for line := range strings.Lines(native) {
		if head, ok := strings.CutPrefix(line, "# "); ok {
			if text != "" {
				parts = append(parts, nativePart{name, text})
			}
			name, text = partName(head), ""
			continue
		}
		if strings.TrimSpace(line) != "" {
			text += line
		}
	}
	return append(parts, nativePart{name, text})
}

// partName is the tool of a head line, with what distinguishes two of its parts.
func partName(head string) string {
	words := strings.Fields(strings.ReplaceAll(head, ";", " "))
	if len(words) > 1 && words[0] == "ip" {
		return words[0] + words[1]
	}
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// selectPart leaves one part of a native plan; all with "".
func (w *world) selectPart(name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, p := range nativeParts(w.mode.Name, w.plan.Native) {
		if p.name == name {
			w.plan.Native = p.text
			return nil
		}
		names = append(names, p.name)
	}
	return usageError{fmt.Errorf("--part %s: mode %s has %s", name, w.mode.Name, strings.Join(names, ", "))}
}
