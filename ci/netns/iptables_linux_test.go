// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/iptables"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// flavours are the ways in which a mode can be run: iptables over either of its
// two variants, userspace with iptables or without it, all others once.
func flavours(mode dataplane.Mode) []flavour {
	plain := flavour{name: string(mode.Name), prepare: func(testing.TB) {}}
	switch mode.Name {
	case iptables.Name:
	case relay.Mode:
		return []flavour{plain, {name: plain.name + "-nft", prepare: needNFTables, wrap: withoutIPTables}}
	default:
		return []flavour{plain}
	}
	var all []flavour
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFT} {
		all = append(all, flavour{
			name:    string(mode.Name) + "-" + string(v),
			prepare: func(t testing.TB) { UseVariant(t, v) },
		})
	}
	return all
}

type flavour struct {
	name    string
	prepare func(testing.TB)
	wrap    func(*exec.Cmd) // of a process of its own; or nil
}

// eachVariant runs a test with the plain names of iptables standing for either
// variant.
func eachVariant(t *testing.T, f func(t *testing.T)) {
	for _, v := range []xtables.Variant{xtables.Legacy, xtables.NFT} {
		t.Run(string(v), func(t *testing.T) {
			UseVariant(t, v)
			f(t)
		})
	}
}

// rules returns all rules of a site, without counters and comments.
func (s *site) rules() string {
	s.t.Helper()
	var kept []string
	for l := range strings.Lines(s.must("iptables-save", "-t", "filter") + s.must("iptables-save", "-t", "nat")) {
		if !strings.HasPrefix(l, "#") {
			l, _, _ = strings.Cut(l, " [")
			kept = append(kept, strings.TrimSpace(l))
		}
	}
	return strings.Join(kept, "\n")
}

// TestIPTablesUnderFire kills the program, starts it again on its own rules and
// changes its rules externally, in iptables mode.
func TestIPTablesUnderFire(t *testing.T) {
	eachVariant(t, func(t *testing.T) {
		s := newSite(t)
		s.flags = []string{"--proxy-mode", "iptables"}
		foreign := "-A POSTROUTING -m comment --comment \"AWS SNAT CHAIN\" -j AWS-SNAT-CHAIN-0"
		s.must("iptables", "-t", "nat", "-N", "AWS-SNAT-CHAIN-0")
		s.must("iptables", "-t", "nat", "-A", "POSTROUTING", "-m", "comment", "--comment", "AWS SNAT CHAIN", "-j", "AWS-SNAT-CHAIN-0")
		s.write("", "10.244.1.2", "10.244.1.3")
		s.start()
		right := s.rules()
		if !strings.Contains(right, foreign) {
			t.Errorf("another program's rule is gone: %s", right)
		}
		s.kill()
		if err := s.answers(clusterIP); err != nil {
			t.Errorf("while no tandem runs: %v", err)
		}
		s.start()
		if doc, err := s.status(); err != nil || doc.Writes != 0 || doc.Objects == 0 {
			t.Errorf("a restart on right rules wrote %d of %d objects (%v)", doc.Writes, doc.Objects, err)
		}
		for _, args := range []string{"-t filter -F", "-t nat -F KUBE-SERVICES", "-t nat -F KUBE-POSTROUTING", "-t nat -D PREROUTING 1"} {
			s.must("iptables", strings.Fields(args)...)
			s.repaired(args, right)
		}
		s.must("iptables", "-t", "nat", "-F") // also what is another program's, which stays gone
		s.repaired("-t nat -F", strings.ReplaceAll(right, "\n"+foreign, ""))
		s.kill()
		for range 2 {
			s.must(s.bin, "cleanup")
		}
		if left := s.rules(); strings.Contains(left, "KUBE") || !strings.Contains(left, "AWS-SNAT-CHAIN-0") {
			t.Errorf("after cleanup:\n%s", left)
		}
	})
}

// repaired waits for rules to be as they should.
func (s *site) repaired(what, right string) {
	s.t.Helper()
	took := s.eventually(5*time.Second, what, func() error {
		if now := s.rules(); now != right {
			return fmt.Errorf("not repaired:\n%s", now)
		}
		return s.reach(clusterIP)
	})
	s.t.Logf("%s: repaired after %s", what, took.Round(time.Millisecond))
}
