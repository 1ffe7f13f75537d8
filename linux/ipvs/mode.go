// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// Mode is the IPVS mode. Probe and Open are in mode_linux.go; elsewhere they fail with an error
// that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: Name, System: "linux", Conntrack: true, Unmarked: true, OnRequest: true, Fallback: "iptables",
		Probe: probe, Open: openBackend, OpenLeft: openLeft, Plan: plan,
	}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := optionsOf(c)
	return dataplane.PlanOf(NewCompiler(o), host, ports, func(objects map[Key]Value) string { return Script(o, objects) })
}

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
	part("ipset restore", t.set, KindSet, kindEntry)
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
		part(fmt.Sprintf("ip -%d -batch", [...]int{4, 6}[f]), of, kindLink, kindRule, kindRoute, kindAddress)
	}
	t.dests = destinations(keys, objects)
	part("ipvsadm -R", t.server, kindServer)
	return b.String()
}

type text struct {
	marks   *fwmarks
	objects map[Key]Value
	dests   map[Key][]virtualserver.Destination // by virtual server
}

func destinations(keys []Key, objects map[Key]Value) map[Key][]virtualserver.Destination {
	of := map[Key][]virtualserver.Destination{}
	for _, k := range keys {
		if k.Kind == kindDest {
			of[k.serverOf()] = append(of[k.serverOf()], virtualserver.Destination{Addr: k.Peer.endpoint(), Weight: int(objects[k].Weight)})
		}
	}
	return of
}

func (t text) set(k Key, v Value) string {
	if k.Kind == KindSet {
		return definition(k).Text()
	}
	e := entryOf(k)
	if k.Set.marks() {
		m, _ := t.marks.entry(k, v) // a plan may have more than the kernel can
		e.Mark, e.MarkMask = m.Value, m.Mask
	}
	return definition(k).AddText(e)
}

func (t text) link(k Key) string {
	switch k.Kind {
	case kindLink:
		return "link add " + Link + " type dummy\n"
	case kindRoute:
		return fmt.Sprintf("route add local %s dev lo table %d\n", k.Dst.Addr(), routeTable)
	case kindAddress:
		return fmt.Sprintf("address add %s/%d dev %s\n", k.Dst.Addr(), k.Family.Bits(), Link)
	}
	return fmt.Sprintf("rule add priority %d fwmark 0x%x/0x%x table %d\n", routePriority, t.marks.service, t.marks.service, routeTable)
}

func (t text) server(k Key, v Value) string {
	id, _ := t.marks.id(k)
	return virtualserver.Text(id, v.Server, t.dests[k]...)
}

// tables renders the chains of a family as iptables-restore reads them.
func (t text) tables(keys []Key, f model.Family) []byte {
	var ops []ledger.Op[Key, Value]
	for _, k := range keys {
		if k.Kind == KindChain || k.Kind == kindJump {
			ops = append(ops, ledger.Op[Key, Value]{Key: k, New: t.objects[k]})
		}
	}
	return restoreText(f, ops)
}
