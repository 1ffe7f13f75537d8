// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/track"
)

// Top states which Services get how many new connections. Its JSON form is stable.
type Top struct {
	At       time.Time    `json:"at"`
	Mode     string       `json:"mode"`
	Services []TopService `json:"services"` // most first
	// NotCounted is why there are none: the mode in use counts no connections.
	NotCounted string `json:"notCounted,omitempty"`
}

// TopService are the new connections of a Service.
type TopService struct {
	Service   string        `json:"service"`
	New       uint64        `json:"new"`                 // since its frontends are there
	PerSecond float64       `json:"perSecond,omitempty"` // between two looks
	Frontends []TopFrontend `json:"frontends"`           // with -o wide, json and yaml
}

// TopFrontend are those of one of its frontends.
type TopFrontend struct {
	Address string `json:"address"`
	Proto   string `json:"protocol"`
	New     uint64 `json:"new"`
}

// NotCounted says why there are no counts of a mode.
func NotCounted(mode string) string {
	return "connections are not counted in mode " + mode + ": modes iptables, ipvs and userspace count them, and mode nftables with --count-connections"
}

// frontendKey is a frontend, or a port, as data planes count it.
type frontendKey struct {
	proto model.Proto
	at    netip.AddrPort
	port  model.PortID
}

// TopCounts adds up what a data plane has counted.
type TopCounts map[frontendKey]uint64

// Add adds a count. Frontends without connections, mostly nearly all, are left out.
func (t TopCounts) Add(c dataplane.Connections) {
	if c.New > 0 {
		t[frontendKey{c.Proto, c.At, c.Port}] += c.New
	}
}

// TopOf gives counts to the Services whose frontends they are of, and that a filter selects.
// Those without connections are left out, and each frontend's own count unless asked for.
func TopOf(mode string, at time.Time, counts TopCounts, services []track.View, only Filter, frontends bool) Top {
	t := Top{At: at, Mode: mode, Services: []TopService{}}
	for _, s := range services {
		row := TopService{New: counts.of(s)}
		if row.New == 0 {
			continue
		}
		if row.Service = s.Object.Name.String(); !only.Match(row.Service, "") {
			continue
		}
		if row.Frontends = []TopFrontend{}; frontends {
			row.Frontends = counts.frontends(s)
		}
		t.Services = append(t.Services, row)
	}
	t.sort()
	return t
}

// of returns the counts of a Service.
func (t TopCounts) of(s track.View) (n uint64) {
	for _, p := range s.Ports {
		n += t.ofPort(p)
		for i := range p.Frontends {
			n += t.at(p, i)
		}
	}
	return n
}

// at is what was counted at a frontend of a port, and ofPort what was at none of its own.
func (t TopCounts) at(p *model.Port, i int) uint64 {
	return t[frontendKey{proto: p.ID.Proto, at: p.Frontends[i].At}]
}

func (t TopCounts) ofPort(p *model.Port) uint64 { return t[frontendKey{proto: p.ID.Proto, port: p.ID}] }

// frontends are the counts of each; none of a port whose frontends are counted together.
func (t TopCounts) frontends(s track.View) (all []TopFrontend) {
	for _, p := range s.Ports {
		if t.ofPort(p) > 0 {
			continue
		}
		for i := range p.Frontends {
			f := frontend(p, &p.Frontends[i])
			all = append(all, TopFrontend{Address: f.Address, Proto: f.Proto, New: t.at(p, i)})
		}
	}
	return all
}

func (t *Top) sort() {
	slices.SortFunc(t.Services, func(a, b TopService) int {
		return cmp.Or(cmp.Compare(b.PerSecond, a.PerSecond), cmp.Compare(b.New, a.New), strings.Compare(a.Service, b.Service))
	})
}

// Since sets the rates since an earlier look: what had no connections then is not in it.
// A count that is less than before began again.
func (t *Top) Since(before Top) {
	seconds := t.At.Sub(before.At).Seconds()
	if seconds <= 0 {
		return
	}
	old := map[string]uint64{}
	for _, s := range before.Services {
		old[s.Service] = s.New
	}
	for i := range t.Services {
		s := &t.Services[i]
		if was := old[s.Service]; was <= s.New {
			s.PerSecond = float64(s.New-was) / seconds
		}
	}
	t.sort()
}
