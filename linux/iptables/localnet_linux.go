package iptables

import (
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// routeLocalnet lets packets for 127.0.0.0/8 be routed, so that node ports can
// answer on 127.0.0.1. It is open only behind the rule that drops those of
// others: that comes first and goes last. Then it is again what it was before,
// which the rule itself remembers (openBefore).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// localnetSwitch keeps routeLocalnet and the rule together.
type localnetSwitch struct {
	ours bool // we have opened it
	past bool // it was open before that
}

// adopt learns from a rule that is there.
func (l *localnetSwitch) adopt(b book) {
	if v := b.rules(martiansKey()); v.Len() > 0 {
		l.ours, l.past = true, strings.Contains(v.String(), openBefore)
	}
}

// before prepares a transaction, and returns what is to be written.
func (l *localnetSwitch) before(ops []op) ([]op, error) {
	i := slices.IndexFunc(ops, func(o op) bool { return isMartians(o.Key) })
	switch {
	case i < 0:
		return ops, nil
	case ops[i].Verb != ledger.Delete:
		if err := host.MaySetSysctl(routeLocalnet, "1"); err != nil {
			return ops, err // else the rules are written, and said not to be
		}
		return l.remember(ops, i)
	case l.past:
		return ops, nil
	}
	return ops, host.EnsureSysctl(routeLocalnet, "0")
}

// remember notes on a new rule that routeLocalnet was open before.
func (l *localnetSwitch) remember(ops []op, i int) ([]op, error) {
	now, err := host.Sysctl(routeLocalnet)
	if err != nil || ops[i].Verb != ledger.Create {
		return ops, err
	}
	if !l.ours {
		l.past = now != "0"
	}
	if !l.past {
		return ops, nil
	}
	r := martians()
	r.Comment += openBefore
	ops = slices.Clone(ops)
	ops[i].New = xtables.List(r)
	return ops, nil
}

// after follows a transaction.
func (l *localnetSwitch) after(ops []op) error {
	i := slices.IndexFunc(ops, func(o op) bool { return isMartians(o.Key) })
	switch {
	case i < 0:
		return nil
	case ops[i].Verb == ledger.Delete:
		*l = localnetSwitch{}
		return nil
	}
	l.ours = true
	return host.EnsureSysctl(routeLocalnet, "1")
}

func martiansKey() Key {
	id := filter(model.IPv4, xtables.Input)
	return Key{id, line(id, martians())}
}

func isMartians(k Key) bool { return k.Chain == xtables.Input && k == martiansKey() }
