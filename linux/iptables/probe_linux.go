package iptables

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/tandem-proxy/tandem/core/model"
)

// found is what a probe found out.
type found struct {
	tools         tools
	families      []model.Family
	noRandomFully bool
}

// Probe finds out with which commands this host can do what we need, by doing
// it in chains that no packet enters. The error says what is missing.
func probeHost(ctx context.Context) (found, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	candidates, err := choose(ctx)
	if err != nil {
		return found{}, err
	}
	var failed []error
	for _, t := range candidates {
		f := found{tools: t}
		err := f.probe(ctx)
		if err == nil {
			return f, nil
		}
		failed = append(failed, fmt.Errorf("iptables, %s variant: %w", t.variant, err))
	}
	return found{}, errors.Join(failed...)
}

// probe tries IPv4, which every node needs, and IPv6, which it may do without.
func (f *found) probe(ctx context.Context) error {
	for _, family := range f.tools.families() {
		err := f.family(ctx, family)
		switch {
		case err == nil:
			f.families = append(f.families, family)
		case family == model.IPv4 || ctx.Err() != nil:
			return err
		}
	}
	return nil
}

func (f *found) family(ctx context.Context, family model.Family) error {
	command, err := iptables.New(iptables.IPFamily(iptables.Protocol(family)), iptables.Path(f.tools.family[family].command), iptables.Timeout(5))
	if err != nil {
		return fmt.Errorf("%s: %w", f.tools.family[family].command, err)
	}
	if a, b, c := command.GetIptablesVersion(); a < 1 || a == 1 && (b < 6 || b == 6 && c < 2) {
		return fmt.Errorf("iptables %d.%d.%d is too old: 1.6.2 or later is needed", a, b, c)
	}
	f.noRandomFully = f.noRandomFully || !command.HasRandomFully()
	for _, t := range []Table{Filter, NAT} {
		if err := f.table(ctx, command, family, t); err != nil {
			return fmt.Errorf("%s table %s: %w", family, t, err)
		}
	}
	return nil
}

// table writes rules of every kind into a scratch chain, and reads them back.
func (f *found) table(ctx context.Context, command *iptables.IPTables, family model.Family, t Table) error {
	name := fmt.Sprintf("TANDEM-PROBE-%08X", rand.Uint32())
	rules := probeRules(family, t, !f.noRandomFully)
	var s script
	s.rewrite(name, rules)
	if err := f.tools.restore(ctx, family, s.text(t)); err != nil {
		return err
	}
	have, listed := command.List(t.String(), name)
	if err := errors.Join(listed, command.ClearAndDeleteChain(t.String(), name)); err != nil {
		return err
	}
	var read []string
	for _, l := range have {
		if rest, ok := strings.CutPrefix(l, "-A "+name+" "); ok {
			read = append(read, rest)
		}
	}
	if canonical(read) != Value(strings.Join(texts(rules), "")) {
		return fmt.Errorf("rules do not come back as they were written: %q for %q", read, rules)
	}
	return nil
}

func texts(vs []Value) (all []string) {
	for _, v := range vs {
		all = append(all, string(v))
	}
	return all
}

// probeRules are the kinds of rules that a full-featured port gives.
func probeRules(f model.Family, t Table, randomFully bool) (rules []Value) {
	a := netip.MustParseAddr([...]string{model.IPv4: "192.0.2.1", model.IPv6: "2001:db8::1"}[f])
	list := "TANDEM-PROBE"
	to := Rule{Dst: exactly(a), Proto: model.TCP, Ports: port(80)}
	kinds := []Rule{
		{Src: addrMatch{exactly(a).Prefix, true}, Comment: "a/b:c", State: nameMatch{Name: "NEW"}, Target: targetDrop},
		{In: nameMatch{"tandem0", true}, DstLocal: true, Mark: markMatch{DefaultMark, DefaultMark, true}, Target: targetReject},
		{SrcLocal: true, Proto: model.UDP, Ports: portRange{16, 31}, Target: targetReturn},
	}
	if t == NAT {
		kinds = []Rule{
			{Dst: exactly(a), Comment: "a/b:c", Target: targetMark, XMark: markSet{DefaultMark, DefaultMark, true}},
			{Remember: recent{Name: list, Seconds: 10}, Target: targetReturn},
			{Chance: chance(3), Proto: model.TCP, Target: targetDNAT, To: netip.AddrPortFrom(a, 80)},
			{Remember: recent{Name: list, Set: true}, Proto: model.UDP, Target: targetDNAT, To: netip.AddrPortFrom(a, 80)},
			{DstLocal: true, Target: targetMasquerade, RandomFully: randomFully},
		}
	}
	for _, r := range slices.Insert(kinds, 0, to) {
		rules = append(rules, r.text())
	}
	return rules
}
