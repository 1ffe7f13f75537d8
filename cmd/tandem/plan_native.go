// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/status"
)

// nativePart is what one tool reads of a native plan.
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

// partName is the tool of a head line, with what tells two of its parts apart.
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

// compare says what the tandem at an address does not serve as planned, and what it
// serves besides. Differences are pending changes.
func (w *world) compare(cmd *cobra.Command, address string) error {
	if address == "" {
		return nil
	}
	running, err := fetchStatus(cmd, address)
	if err != nil {
		return err
	}
	pending := differences(w.document(), running)
	for _, line := range pending {
		fmt.Fprintln(cmd.ErrOrStderr(), printable.Text(line))
	}
	if len(pending) > 0 {
		return pendingError(fmt.Sprintf("%d changes pending on %s", len(pending), running.Node))
	}
	return nil
}

// differences lists the frontends that only one of them has, or with other endpoints.
func differences(d planDocument, running status.Document) (lines []string) {
	have := map[string][]int{} // endpoints; a node port is there once for each family
	for _, s := range running.Services {
		for _, f := range s.Frontends {
			name := frontendName(s.Name, f.Kind, f.Address, f.Proto)
			have[name] = append(have[name], f.Endpoints)
		}
	}
	for _, s := range d.Services {
		for _, f := range s.Fronts {
			name := frontendName(s.Name, f.Kind, f.Address, f.Protocol)
			if len(have[name]) == 0 {
				lines = append(lines, "+ "+name)
				continue
			}
			at := max(slices.Index(have[name], f.outside), 0)
			if n := have[name][at]; n != f.outside {
				lines = append(lines, fmt.Sprintf("~ %s: %d endpoints, planned %d", name, n, f.outside))
			}
			have[name] = slices.Delete(have[name], at, at+1)
		}
	}
	for name, left := range have {
		for range left {
			lines = append(lines, "- "+name)
		}
	}
	slices.Sort(lines)
	return lines
}

// frontendName names a frontend alike for a plan and a status, which writes node ports
// of both families as one.
func frontendName(service, kind, address, proto string) string {
	return fmt.Sprintf("%s %s %s/%s", service, kind, strings.Replace(address, "[*]", "*", 1), proto)
}
