// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
)

// TestRestartAndCleanup starts the program in each mode, kills it, starts it on
// what it left, and removes that: with every kernel a restart writes nothing, and
// cleanup leaves nothing, not even the tables that iptables made for it. A table of
// another program stays, though it is empty.
func TestRestartAndCleanup(t *testing.T) {
	eachFlavour(t, func(t *testing.T, mode dataplane.Mode, flavour flavour) {
		s := newSite(t)
		s.wrap, s.flags = flavour.wrap, []string{"--proxy-mode", string(mode.Name)}
		s.write("", "10.244.1.2", "10.244.1.3")
		_, _ = s.run("nft", "add table ip6 raw") // where the kernel has nf_tables
		before := s.ruleset()
		s.start()
		if err := s.answers(clusterIP); err != nil {
			t.Fatal(err)
		}
		s.kill()
		if err := s.answers(clusterIP); err != nil && mode.Name != relay.Mode {
			t.Errorf("while no tandem runs: %v", err)
		}
		s.start()
		keeps := mode.Name != relay.Mode // its relays end with the program and are opened again
		if doc, err := s.status(); err != nil || doc.Mode != string(mode.Name) || keeps && doc.Writes != 0 || doc.Objects == 0 {
			t.Errorf("a restart on right rules in mode %s wrote %d of %d objects (%v)", doc.Mode, doc.Writes, doc.Objects, err)
		}
		if err := s.answers(nodePort); err != nil {
			t.Error(err)
		}
		s.kill()
		s.must(s.bin, "cleanup")
		if err := s.left(mode.Name); err != nil {
			t.Errorf("after cleanup: %v", err)
		}
		if after := s.ruleset(); after != before {
			t.Errorf("after cleanup:\n%s\nbefore everything:\n%s", after, before)
		}
	})
}

// ruleset is everything in nf_tables and, of the legacy tables of iptables, which the
// kernel keeps once they were used, the rules and chains.
func (s *site) ruleset() string {
	var text string
	for range 100 { // nft 1.0.6 aborts at times, with a failed assertion
		text, _ = s.run("nft", "-s", "list", "ruleset") // nothing on a kernel without it
		if !strings.Contains(text, "Assertion") {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		legacy, _ := s.run(family + "-legacy-save")
		for l := range strings.Lines(legacy) {
			if strings.HasPrefix(l, "-A ") || strings.HasPrefix(l, ":") && strings.Contains(l, " - [") {
				text += l
			}
		}
	}
	return text
}
