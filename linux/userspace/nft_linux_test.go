// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// harms are what others may do to our table, as nft scripts: T is the table, O
// its comment.
var harms = map[string]string{
	"an element goes":      "delete element T portals-host { 10.96.0.10 . tcp . 80 }",
	"another comes":        "add element T portals-host { 10.96.0.77 . tcp . 80 : 169.254.84.1 . 7 }",
	"one leads elsewhere":  "delete element T portals-host { 10.96.0.10 . tcp . 80 }; add element T portals-host { 10.96.0.10 . tcp . 80 comment \"default/web:http\" : 169.254.84.1 . 7 }",
	"one loses its name":   "delete element T nodeport-host { tcp . 30080 }; add element T nodeport-host { tcp . 30080 : 169.254.84.1 . 7 }",
	"a range goes":         "delete element T allowed { 203.0.113.10 . tcp . 80 . 198.51.100.0/24 }",
	"a range is added":     "add element T allowed { 203.0.113.10 . tcp . 80 . 192.0.2.7-192.0.2.9 }",
	"no source ranges":     "flush set T guarded",
	"a chain is empty":     "flush chain T KUBE-PORTALS-IN",
	"a rule is added":      "add rule T KUBE-PORTALS-HOST tcp dport 1234 return",
	"we are overtaken":     "insert rule T prerouting accept",
	"the way in is closed": "flush chain T output",
	"a chain is added":     "add chain T theirs { type filter hook input priority 0; }; add rule T theirs drop",
	"a set is added":       "add set T theirs { type ipv4_addr; }; add element T theirs { 192.0.2.7 }",
	"a set is gone":        "flush chain T KUBE-PORTALS-GUARD; delete set T allowed",
	"the table sleeps":     "add table T { comment \"O\"; flags dormant; }",
	"the table is gone":    "delete table T",
	"a hook is added":      "delete table T; table T { comment \"O\"; chain KUBE-PORTALS-IN { type filter hook input priority 0; }; }",
	"an old layout":        "delete table T; table T { comment \"Kubernetes Services, kept by Tandem (layout 0)\"; set portals-host { type ipv4_addr; }; }",
}

// Whatever others do to our tables is undone; what they have of their own stays
// byte for byte, also when ours is removed.
func TestExternalChangesInNFT(t *testing.T) {
	onNode(t, tableKinds()[1], func(t *testing.T) {
		do(t, "nft 'table ip foreign { chain c { type nat hook prerouting priority -100; tcp dport 99 drop; }; }'")
		foreign := ruleset(t)
		p := start(t, tableKinds()[1], web(), dns())
		p.sync()
		before := rules(t)
		if disturbed, err := p.Disturbed(t.Context()); disturbed || err != nil {
			t.Errorf("no other program: %t, %v", disturbed, err)
		}
		comment := Key{Kind: KindTable}
		nftObjects(comment, nil, func(k nft.Key, v nft.Value) {
			if k.Kind == nft.KindTable {
				comment.Rest = v.Body.Comment
			}
		})
		for what, harm := range harms {
			harm = strings.NewReplacer(" T ", " ip "+nftTable.Name+" ", "table T", "table ip "+nftTable.Name, "O\"", comment.Rest+"\"").Replace(harm)
			do(t, "nft '"+harm+"'")
			if disturbed, err := p.Disturbed(t.Context()); err != nil || !disturbed {
				t.Errorf("%s: noticed %t, %v", what, disturbed, err)
			}
			if drift, err := p.Audit(t.Context()); err != nil || drift == 0 {
				t.Errorf("%s: drift %d, %v", what, drift, err)
			}
			p.sync()
			if got := rules(t); !slices.Equal(got, before) {
				t.Errorf("%s: not repaired:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(before, "\n"))
			}
		}
		if err := p.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		p.stop()
		if got := ruleset(t); got != foreign {
			t.Errorf("after the removal:\n%s\nwant\n%s", got, foreign)
		}
		if has, err := hasRelayAddr(model.IPv4); has || err != nil {
			t.Errorf("the shelter: %t, %v", has, err)
		}
	})
}

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A restart on right rules makes no transaction at all.
func TestRestartWritesNothingToNFT(t *testing.T) {
	onNode(t, tableKinds()[1], func(t *testing.T) {
		p := start(t, tableKinds()[1], web(), dns())
		p.sync()
		p.stop()
		observer, err := openNFT(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer observer.Close()
		if _, err := observer.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		p = start(t, tableKinds()[1], web(), dns())
		defer p.stop()
		p.sync()
		if disturbed, err := observer.Disturbed(t.Context()); disturbed || err != nil {
			t.Errorf("the restart wrote: %t, %v", disturbed, err)
		}
	})
}

// A table that has our name and is not ours is not touched, whenever it comes.
func TestNamesakeInNFT(t *testing.T) {
	theirs := "nft 'table ip " + nftTable.Name + " { chain c { tcp dport 99 drop; }; }'"
	onNode(t, tableKinds()[1], func(t *testing.T) {
		p := start(t, tableKinds()[1], web())
		defer p.stop()
		p.sync()
		do(t, "nft delete table ip "+nftTable.Name+" && "+theirs)
		before := ruleset(t)
		if _, err := p.Audit(t.Context()); !errors.Is(err, nft.ErrForeign) {
			t.Errorf("audit: %v", err)
		}
		if err := p.Remove(t.Context()); !errors.Is(err, nft.ErrForeign) {
			t.Errorf("removal: %v", err)
		}
		if _, err := openNFT(t.Context()); !errors.Is(err, nft.ErrForeign) || !strings.Contains(err.Error(), nftTable.Name) {
			t.Errorf("opening: %v", err)
		}
		if after := ruleset(t); after != before {
			t.Errorf("the table is now\n%s", after)
		}
	})
}

// Where there is no iptables nftables is taken, and where neither works the error
// names both.
func TestChoice(t *testing.T) {
	onNode(t, tableKinds()[1], func(t *testing.T) {
		none := func(name string) tableKind {
			return tableKind{open: func(context.Context) (table, error) { return nil, fmt.Errorf("%s %w", name, dataplane.ErrAbsent) }}
		}
		chosen, at, err := choose(t.Context(), [...]tableKind{none("one"), tableKinds()[1]})
		if err != nil || at != 1 {
			t.Fatalf("chosen: %d, %v", at, err)
		}
		if err := chosen.Close(); err != nil {
			t.Error(err)
		}
		_, _, err = choose(t.Context(), [...]tableKind{none("one"), none("two")})
		if err == nil || !strings.Contains(err.Error(), "one") || !strings.Contains(err.Error(), "two") {
			t.Errorf("neither: %v", err)
		}
		if got := ruleset(t); got != "" {
			t.Errorf("left behind: %s", got)
		}
	})
}

// With iptables again, what the mode had in nftables goes after the first sync, but
// for the address; with the mode everything goes.
func TestBackToIPTables(t *testing.T) {
	onNode(t, tableKinds()[0], func(t *testing.T) {
		p := start(t, tableKinds()[1], web(), dns())
		p.sync()
		p.stop()
		b, err := openBackend(t.Context(), &config.Config{}, relay.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		begin(t, plane{Backend: b, t: t}, web(), dns()).sync()
		for _, r := range rules(t) {
			if strings.Contains(r, nftTable.Name) {
				t.Errorf("left: %s", r)
			}
		}
		if has, err := hasRelayAddr(model.IPv4); !has || err != nil {
			t.Errorf("the shelter: %t, %v", has, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		p = start(t, tableKinds()[1], web())
		p.sync()
		p.stop()
		if err := remove(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if got := strings.Join(rules(t), "\n"); strings.Contains(got, "KUBE") || strings.Contains(got, nftTable.Name) {
			t.Errorf("after the removal:\n%s", got)
		}
		if has, err := hasRelayAddr(model.IPv4); has || err != nil {
			t.Errorf("the shelter: %t, %v", has, err)
		}
	})
}

// Names of any length come back: nft's own comments would be too short for them.
func TestLongNames(t *testing.T) {
	eachKind(t, func(t *testing.T, k tableKind) {
		port := web()
		long := strings.Repeat("x", 63)
		port.ID.Service, port.ID.Name = model.ServiceName{Namespace: long, Name: long}, long
		p := start(t, k, port)
		p.sync()
		p.stop()
		p = start(t, k, port)
		defer p.stop()
		if w := p.sync(); w.Ops != 2+2 { // relays and sinks
			t.Errorf("%d ops after a restart", w.Ops)
		}
		if drift, err := p.Audit(t.Context()); drift != 0 || err != nil {
			t.Errorf("drift %d, %v", drift, err)
		}
	})
}
