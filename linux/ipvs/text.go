// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Script renders objects for people and for the system's own tools: what
// iproute2, "ipset restore", "ipvsadm -R" and "iptables-restore --noflush" read,
// one part after the other.
func Script(o Options, objects map[Key]Value) string {
	t := text{marks: fwmarksOf(bitsFor(o.Mark), objects), objects: objects}
	keys := slices.SortedFunc(maps.Keys(objects), compareKeys)
	var b strings.Builder
	part := func(title string, line func(Key, Value) string, kinds ...Kind) {
		fmt.Fprintf(&b, "# %s\n", title)
		for _, k := range keys {
			if slices.Contains(kinds, k.Kind) {
				b.WriteString(line(k, objects[k]))
			}
		}
		b.WriteByte('\n')
	}
	part("ipset restore", t.set, KindSet, KindEntry)
	for _, f := range model.Families() {
		if lines := t.tables(keys, f); lines != nil {
			fmt.Fprintf(&b, "# %s --noflush\n%s\n", xtables.RestoreCommand(f), lines)
		}
	}
	for _, f := range model.Families() {
		of := func(k Key, _ Value) string {
			if k.Family == f {
				return t.link(k)
			}
			return ""
		}
		part(fmt.Sprintf("ip -%d -batch", [...]int{4, 6}[f]), of, KindLink, KindRule, KindRoute, KindAddress)
	}
	t.dests = destinations(keys)
	part("ipvsadm -R", t.server, KindServer)
	return b.String()
}

type text struct {
	marks   *fwmarks
	objects map[Key]Value
	dests   map[Key][]Key
}

func destinations(keys []Key) map[Key][]Key {
	of := map[Key][]Key{}
	for _, k := range keys {
		if k.Kind == KindDest {
			of[k.serverOf()] = append(of[k.serverOf()], k)
		}
	}
	return of
}

func (t text) set(k Key, v Value) string {
	if k.Kind == KindSet {
		return "create " + k.Set.Name(k.Family) + " " + k.Set.definition(k.Family) + "\n"
	}
	line := "add " + k.Set.Name(k.Family) + " " + k.entryText()
	if k.Set.marks() {
		m, _ := t.marks.entry(k, v) // a plan may have more than the kernel can
		line += " skbmark " + m.String()
	}
	return line + "\n"
}

// definition is how ipset writes the type of a set.
func (s SetID) definition(f model.Family) string {
	d := s.kind().String()
	if s.kind() == bitmapPort {
		d += " range 0-65535"
	} else {
		d += fmt.Sprintf(" family %s maxelem %d", [...]string{"inet", "inet6"}[f], maxEntries)
	}
	if s.marks() {
		d += " skbinfo"
	}
	return d
}

func (t text) link(k Key) string {
	switch k.Kind {
	case KindLink:
		return "link add " + Link + " type dummy\n"
	case KindRoute:
		return fmt.Sprintf("route add local %s dev lo table %d\n", k.Dst.Addr(), RouteTable)
	case KindAddress:
		return fmt.Sprintf("address add %s/%d dev %s\n", k.Dst.Addr(), k.Family.Bits(), Link)
	}
	return fmt.Sprintf("rule add priority %d fwmark 0x%x/0x%x table %d\n", RoutePriority, t.marks.service, t.marks.service, RouteTable)
}

// server renders a virtual server and its destinations.
func (t text) server(k Key, v Value) string {
	at := t.at(k)
	line := "-A " + at + " -s " + v.Scheduler
	if v.Timeout > 0 {
		line += fmt.Sprintf(" -p %d", v.Timeout)
	}
	switch {
	case v.Scheduler == "sh" && v.Flags&flagFallback != 0:
		line += " -b sh-fallback"
	case v.Scheduler == "mh" && v.Flags&flagPort != 0:
		line += " -b mh-port"
	}
	for _, d := range t.dests[k] {
		line += "\n-a " + at + " -r " + d.Peer.endpoint().String() + " -m -w 1"
	}
	return line + "\n"
}

// at is how ipvsadm names a virtual server.
func (t text) at(k Key) string {
	if k.Via != ByAddress {
		fwmark, _ := t.marks.of(k)
		at := fmt.Sprintf("-f %d", fwmark)
		if k.Family == model.IPv6 {
			at += " -6"
		}
		return at
	}
	return map[model.Proto]string{model.TCP: "-t", model.UDP: "-u", model.SCTP: "--sctp-service"}[k.Proto] + " " + k.Dst.String()
}

// tables renders the chains of a family as iptables-restore reads them.
func (t text) tables(keys []Key, f model.Family) []byte {
	var ops []ledger.Op[Key, Value]
	for _, k := range keys {
		if k.Kind == KindChain || k.Kind == KindJump {
			ops = append(ops, ledger.Op[Key, Value]{Key: k, New: t.objects[k]})
		}
	}
	return restoreText(f, ops)
}
