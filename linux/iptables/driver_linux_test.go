// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// What is written is read back, and a restart finds nothing to do.
func TestRestartWritesNothing(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		for seed := range uint64(12) {
			s := k.site(seed)
			if work := s.start(); work.Ops == 0 || work.Failed > 0 {
				t.Fatalf("seed %d: %+v", seed, work)
			}
			drift, err := s.backend.Audit(t.Context())
			if err != nil || drift != 0 {
				t.Errorf("seed %d: %d objects are not as they were written (%v)", seed, drift, err)
			}
			if disturbed, err := s.backend.Disturbed(t.Context()); disturbed || err != nil {
				t.Errorf("seed %d: disturbed without a cause (%v)", seed, err)
			}
			if work := k.site(seed).start(); work.Ops != 0 {
				t.Errorf("seed %d: a restart wrote %d objects", seed, work.Ops)
			}
		}
	})
}

// Changes leave the kernel as a fresh start would.
func TestChangesEndWhereAFreshStartDoes(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		s := k.site(1)
		s.start()
		before := map[model.PortID]*model.Port{}
		for _, p := range s.world.Ports() {
			before[p.ID] = p
		}
		rng := conformance.NewRand(7)
		for range 25 {
			s.world = s.world.Change(rng)
			after := map[model.PortID]*model.Port{}
			var deltas []model.Delta
			for _, p := range s.world.Ports() {
				after[p.ID] = p
				deltas = append(deltas, model.Delta{Old: before[p.ID], New: p})
			}
			for id, p := range before {
				if after[id] == nil {
					deltas = append(deltas, model.Delta{Old: p})
				}
			}
			before = after
			s.backend.SetHost(s.world.Host)
			s.backend.Update(deltas)
			s.sync()
		}
		if drift, err := s.backend.Audit(t.Context()); err != nil || drift != 0 {
			t.Errorf("drift %d (%v)", drift, err)
		}
		if work := (&site{kernel: k, driver: s.driver, backend: dataplane.New(NewCompiler(Options{}), k.driver()), world: s.world}).start(); work.Ops != 0 {
			t.Errorf("a fresh start differs in %d objects", work.Ops)
		}
	})
}

// Rules of others keep their place and content, through everything.
const foreignRules = `*nat
:AWS-SNAT-CHAIN-0 - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-SVC-TOOSHORT - [0:0]
-A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
-A AWS-SNAT-CHAIN-0 -d 10.0.0.0/8 -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -s 10.9.0.0/16 -j DROP
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`

func TestForeignRulesStay(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		k.restore(model.IPv4, foreignRules)
		if slices.Contains(k.tools.Installed(), model.IPv6) {
			k.restore(model.IPv6, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n") // a table without rules that drops packets
		}
		before := k.save()
		s := k.site(3)
		s.start()
		lines := strings.Split(k.save(), "\n")
		for l := range strings.SplitSeq(before, "\n") {
			if !contains(lines, l) {
				t.Errorf("gone: %s", l)
			}
		}
		for range 2 {
			if err := (&backend{Backend: s.backend, driver: s.driver, installed: []xtables.Tools{k.tools}}).Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if after := k.save(); after != before {
			t.Errorf("after cleanup:\n%s\nbefore:\n%s", after, before)
		}
	})
}

func contains(lines []string, line string) bool {
	for _, l := range lines {
		if l == line {
			return true
		}
	}
	return false
}

// A cleanup deletes the chains that a killed probe has left, with tables in which nothing
// else is, and nothing but that.
func TestCleanupAfterAKilledProbe(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		killed := func() {
			for _, table := range []string{"filter", "nat"} {
				k.restore(model.IPv4, fmt.Sprintf("*%s\n:%[2]s - [0:0]\n-A %[2]s -j RETURN\nCOMMIT\n", table, xtables.ScratchChain))
			}
		}
		for _, foreign := range []string{"", foreignRules} {
			if foreign != "" {
				k.restore(model.IPv4, foreign)
			}
			before := k.save()
			killed()
			if k.save() == before {
				t.Fatal("nothing was left to find")
			}
			if err := remove(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if foreign == "" && k.tools.Variant == xtables.NFT { // looking at them makes tables, too
				if out, err := exec.Command("nft", "list", "tables", "ip").CombinedOutput(); err != nil || len(out) > 0 {
					t.Errorf("left: %s(%v)", out, err)
				}
			}
			if after := k.save(); after != before {
				t.Errorf("after cleanup:\n%s\nbefore:\n%s", after, before)
			}
		}
	})
}

// kube-proxy's rules are adopted where we serve, and kept by cleanup
// where we do not.
func TestCleanupLeavesKubeProxyAlone(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		k.restore(model.IPv4, "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]\n"+
			"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n"+
			"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O\nCOMMIT\n")
		before := k.save()
		s := k.site(3)
		cleanup := &backend{Backend: s.backend, driver: s.driver, installed: []xtables.Tools{k.tools}}
		if err := cleanup.Remove(t.Context()); err != nil || k.save() != before {
			t.Errorf("cleanup removed what it did not make (%v):\n%s", err, k.save())
		}
		s.start()
		if strings.Contains(k.save(), "XPGD46QRK7WJZT7O") {
			t.Error("chains of kube-proxy that no Service needs are still there")
		}
	})
}

// Every external change of our rules is noticed, and repaired.
func TestDriftIsRepaired(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		s := k.site(3)
		s.start()
		want := k.save()
		svc, tree := "", ""
		for l := range strings.Lines(want) {
			if chain, ok := strings.CutPrefix(strings.TrimSuffix(l, " -\n"), ":"); ok && chain+" -\n" != l[:len(l)-1] {
				if strings.HasPrefix(chain, prefixCluster) {
					svc = chain
				}
				if strings.HasPrefix(chain, vipTree.prefix+"10.96.0") && strings.HasSuffix(chain, "/26") {
					tree = chain
				}
			}
		}
		for _, tt := range [][]string{
			{"-t", "nat", "-F"},
			{"-t", "filter", "-F"},
			{"-t", "nat", "-F", svc},
			{"-t", "nat", "-F", tree},
			{"-t", "nat", "-D", tree, "1"},
			{"-t", "nat", "-I", tree, "-s", "192.0.2.77", "-j", "RETURN"},
			{"-t", "nat", "-A", svc, "-j", "ACCEPT"},
			{"-t", "nat", "-A", "KUBE-MARK-MASQ", "-m", "tos", "--tos", "0x10", "-j", "RETURN"},
			{"-t", "nat", "-D", "PREROUTING", "1"},
			{"-t", "filter", "-D", "FORWARD", "2"},
			{"-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"},
			{"-t", "nat", "-N", "KUBE-SVC-AAAAAAAAAAAAAAAA"},
		} {
			k.command(tt...)
			if disturbed, err := s.backend.Disturbed(t.Context()); !disturbed || err != nil {
				t.Errorf("%v is not noticed (%v)", tt, err)
			}
			drift, err := s.backend.Audit(t.Context())
			if err != nil || drift == 0 {
				t.Errorf("%v: drift %d (%v)", tt, drift, err)
			}
			s.sync()
			if now := k.save(); now != want {
				t.Fatalf("%v is not repaired: %s", tt, difference(want, now))
			}
			// That audit read twice, and compared only the first reading in full: one
			// more looks at what came between.
			if drift, err := s.backend.Audit(t.Context()); drift != 0 || err != nil {
				t.Errorf("%v: drift %d after the repair (%v)", tt, drift, err)
			}
			if disturbed, _ := s.backend.Disturbed(t.Context()); disturbed {
				t.Errorf("%v: our own repair disturbs us", tt)
			}
		}
	})
}

func difference(want, have string) string {
	var b strings.Builder
	w, h := strings.Split(want, "\n"), strings.Split(have, "\n")
	for _, l := range w {
		if !contains(h, l) {
			fmt.Fprintf(&b, "\n- %s", l)
		}
	}
	for _, l := range h {
		if !contains(w, l) {
			fmt.Fprintf(&b, "\n+ %s", l)
		}
	}
	return b.String() + "\n(or another order)"
}

// While another program holds the lock, nothing fails and nothing is lost.
func TestLockHeldByOthers(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		if k.tools.Variant != xtables.Legacy {
			t.Skip("only the legacy variant has a lock")
		}
		s := k.site(3)
		lock, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := s.backend.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		s.backend.SetHost(s.world.Host)
		_, err = s.backend.Sync(t.Context())
		var busy ledger.BusyError
		if !errors.As(err, &busy) || len(s.backend.Health().Failures) != 0 || s.backend.Next().IsZero() {
			t.Fatalf("%v, %v", err, s.backend.Health().Failures)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Until(s.backend.Next()))
		if work := s.sync(); work.Ops == 0 {
			t.Error("nothing was done after the lock was free")
		}
	})
}

// One object that the kernel refuses is found; its error shows the line.
func TestARefusedRuleIsNamed(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		d := k.driver()
		id := nat(model.IPv4, "KUBE-SVC-AAAAAAAAAAAAAAAA")
		bad := op{Key: Key{chainID: id}, New: xtables.List(xtables.JumpTo("NO-SUCH-CHAIN-HERE"))}
		err := d.Commit(t.Context(), []op{bad})[0]
		if err == nil || !strings.Contains(err.Error(), "IPv4 table nat") || !strings.Contains(err.Error(), "NO-SUCH-CHAIN") && !strings.Contains(err.Error(), "COMMIT") {
			t.Errorf("got %v", err)
		}
		if strings.Contains(k.save(), "AAAAAAAAAAAAAAAA") {
			t.Error("a part of what failed is there")
		}
		if disturbed, _ := d.Disturbed(t.Context()); !disturbed {
			t.Error("after a failure the rules should be read again")
		}
	})
}

// Legacy tables that cannot be listed are not taken for none: neither is the other
// variant chosen, nor is cleaning up done.
func TestUnreadableLegacyTables(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		if k.tools.Variant != xtables.Legacy {
			t.Skip("only for the legacy variant the kernel lists its tables")
		}
		found, err := xtables.FindTools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		k.command("-A", "INPUT", "-s", "192.0.2.5", "-j", "DROP")
		failing := filepath.Join(t.TempDir(), "save")
		if err := os.WriteFile(failing, []byte("#!/bin/sh\necho out of memory >&2\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range found {
			if found[i].Variant == xtables.Legacy {
				found[i].Paths[model.IPv4].Save = failing
			}
		}
		if chosen, err := xtables.Choose(t.Context(), found); err == nil || !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("chosen %v (%v)", chosen, err)
		}
		here, err := host.OpenNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		if err := removeOwned(t.Context(), found, here); err == nil || !strings.Contains(err.Error(), "out of memory") {
			t.Errorf("cleaned up: %v", err)
		}
	})
}

// Tables that the nft variant cannot list are not taken for none either.
func TestUnlistedNFTTables(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		if k.tools.Variant != xtables.NFT {
			t.Skip("of the nft variant alone nft writes the tables")
		}
		found, err := xtables.FindTools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s := k.site(1)
		s.start()
		if out, err := exec.Command("nft", "add rule ip nat POSTROUTING numgen inc mod 2 0 counter").CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, out)
		}
		here, err := host.OpenNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer here.Close()
		if err := removeOwned(t.Context(), found, here); !errors.Is(err, xtables.ErrIncompatible) {
			t.Errorf("cleaned up: %v", err)
		}
		if err := s.driver.Observe(t.Context(), func(Key, Value) {}); !errors.Is(err, xtables.ErrIncompatible) {
			t.Errorf("observed: %v", err)
		}
	})
}

// Rules of both variants are refused, and what either holds is chosen.
func TestVariantOfTheHost(t *testing.T) {
	eachVariant(t, func(t *testing.T, k *kernel) {
		found, err := xtables.FindTools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(found) < 2 {
			t.Skip("only one variant is installed")
		}
		k.command("-A", "INPUT", "-s", "192.0.2.5", "-j", "DROP")
		if chosen, err := xtables.Choose(t.Context(), found); err != nil || len(chosen) != 1 || chosen[0].Variant != k.tools.Variant {
			t.Errorf("chosen %v (%v), want %s alone", chosen, err, k.tools.Variant)
		}
		for _, other := range found {
			(&kernel{t: t, tools: other}).command("-A", "INPUT", "-s", "192.0.2.5", "-j", "DROP")
		}
		_, err = xtables.Choose(t.Context(), found)
		for _, part := range []string{"iptables-legacy", "iptables-nft", "update-alternatives"} {
			if !errors.Is(err, xtables.ErrMixed) || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is missing in %v", part, err)
			}
		}
		if err := probe(t.Context()); !errors.Is(err, xtables.ErrMixed) {
			t.Errorf("probe: %v", err)
		}
	})
}
