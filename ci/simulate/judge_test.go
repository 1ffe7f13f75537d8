// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// How many packets are sent: after each write, of which, and at the end.
const (
	probesPerWrite = 16
	probesKept     = 64
	probesAtEnd    = 300
)

// judge checks the data plane after each write. It is safe for concurrent use.
type judge struct {
	run *run
	rng *rand.Rand

	mu      sync.Mutex
	worlds  []*world // since all was right: the first was programmed, the last is wanted
	touched map[model.ServiceName]bool
	shaken  bool // the node has changed or others have written: what must stay is not known
	blind   bool // two data planes are in use
	rising  bool // the first start: what has become right stays right
	probes  []probe
	looks   int
	packets int
}

// probe is a packet, and what became of it when all was right.
type probe struct {
	oracle.Packet
	before, after oracle.Outcome // after: in the second world
	reached       bool           // at the first start: it was right

	owners []model.ServiceName // of the packet in the first known worlds
	known  int
}

func sorted(o oracle.Outcome) oracle.Outcome {
	o.Endpoints = slices.Clone(o.Endpoints)
	slices.SortFunc(o.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
	return o
}

// change applies a change of the cluster, and the judge knows before anybody else.
func (j *judge) change(f func() (touched []model.ServiceName, shaken bool)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	touched, shaken := f()
	for _, n := range touched {
		j.touched[n] = true
	}
	j.shaken = j.shaken || shaken
	j.worlds = append(j.worlds, j.run.cluster.world())
	if len(j.worlds) == 2 && !j.shaken {
		w := j.worlds[1].prepared(j.run.plane)
		for i := range j.probes {
			j.probes[i].after = sorted(w.fresh(j.probes[i].Packet))
		}
	}
}

// shake suspends checks of what must stay until everything is programmed again.
func (j *judge) shake(blind bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.shaken, j.blind = true, j.blind || blind
}

// look is what follows a write.
func (j *judge) look(at func(*model.Host) decide) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.blind || len(j.worlds) == 0 || len(j.probes) == 0 {
		return
	}
	now := at(j.worlds[0].host)
	if j.rising {
		j.rise(now)
		return
	}
	for range min(probesPerWrite, len(j.probes)) {
		j.looks++
		p := &j.probes[j.looks%len(j.probes)]
		j.packets++
		if wrong := j.wrong(p, sorted(now(p.Packet))); wrong != "" {
			j.run.violate("%s: %s", conformance.Show(p.Packet), wrong)
		}
	}
}

// expect has the judge look at the first start: what it forwards as it will in the end
// stays so, whichever processes end meanwhile.
func (j *judge) expect() {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.worlds[0].prepared(j.run.plane)
	for _, p := range w.probes {
		if want := sorted(w.fresh(p)); want.Fate == oracle.Forward && len(j.probes) < probesKept {
			j.probes = append(j.probes, probe{Packet: p, before: want})
		}
	}
	j.rising = true
}

func (j *judge) rise(now decide) {
	for i := range j.probes {
		p := &j.probes[i]
		j.packets++
		d := conformance.Diff(p.before, sorted(now(p.Packet)))
		if p.reached && d != "" {
			j.run.violate("%s: I1: was right, and a start has made it wrong: %s", conformance.Show(p.Packet), d)
		}
		p.reached = d == ""
	}
}

// wrong returns what violates an invariant.
func (j *judge) wrong(p *probe, got oracle.Outcome) string {
	if p.known != len(j.worlds) {
		p.owners, p.known = j.owners(p.Packet), len(j.worlds)
	}
	owners := p.owners
	if !j.shaken && !slices.ContainsFunc(owners, func(n model.ServiceName) bool { return j.touched[n] }) {
		if d := conformance.Diff(p.before, got); d != "" {
			return "I1: no change touches it: " + d
		}
		return ""
	}
	for _, e := range got.Endpoints {
		if !j.had(owners, e.Addr) {
			return fmt.Sprintf("I2: reaches %s, which %v never had", e.Addr, owners)
		}
		if len(j.worlds) == 2 && !j.shaken && !reaches(p.before, e.Addr) && !reaches(p.after, e.Addr) {
			return fmt.Sprintf("I2: reaches %s, which policy leaves out before and after a change", e.Addr)
		}
	}
	if len(j.worlds) == 2 && !j.shaken && p.before.Fate == oracle.Forward && p.after.Fate == oracle.Forward && !j.replaced(p, owners) &&
		(got.Fate != oracle.Forward || len(got.Endpoints) == 0) {
		return fmt.Sprintf("I8: has endpoints before and after a change, and between %d of them (fate %d)", len(got.Endpoints), got.Fate)
	}
	return ""
}

// reaches reports whether an endpoint is one of an outcome.
func reaches(o oracle.Outcome, at netip.AddrPort) bool {
	return slices.ContainsFunc(o.Endpoints, func(e oracle.Target) bool { return e.Addr == at })
}

// replaced reports whether the mode cannot go from one world to the other without a gap.
// HNS has one load balancer for a frontend and changes nothing of it in place but its
// endpoints (windows/hns, beyondEndpoints): another port of the endpoints, SNAT, affinity or
// destination is a deletion and a creation, and nothing serves between the two. The frontend
// may also go from one Service to another.
func (j *judge) replaced(p *probe, owners []model.ServiceName) bool {
	if j.run.job.mode != onWindows {
		return false
	}
	was, is := p.before.Endpoints[0], p.after.Endpoints[0] // of a load balancer all are alike
	if was.Addr.Port() != is.Addr.Port() || was.SNAT != is.SNAT {
		return true
	}
	type flags struct{ affinity, destination bool }
	seen := map[flags]bool{}
	for _, n := range owners {
		for _, w := range j.worlds[:2] {
			s := w.services[n]
			if s == nil {
				return true
			}
			seen[flags{s.SessionAffinity > 0, s.PreserveDestination}] = true
		}
	}
	return len(seen) > 1
}

// owners are the Services that have had a packet's address or node port.
func (j *judge) owners(p oracle.Packet) (all []model.ServiceName) {
	at := p.Dst.Addr()
	own := at.IsLoopback() || slices.ContainsFunc(j.worlds, func(w *world) bool { return slices.Contains(w.host.IPs, at) })
	for _, w := range j.worlds {
		for name, s := range w.services {
			mine := slices.Contains(s.ClusterIPs, at) || slices.Contains(s.ExternalIPs, at) || slices.Contains(s.LoadBalancerIPs, at) ||
				own && slices.ContainsFunc(s.Ports, func(x model.ServicePort) bool { return x.NodePort == p.Dst.Port() })
			if mine && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// had reports whether one of some Services has had an endpoint.
func (j *judge) had(owners []model.ServiceName, at netip.AddrPort) bool {
	for _, w := range j.worlds {
		for name, s := range w.slices {
			if slices.Contains(owners, model.ServiceName{Namespace: name.Namespace, Name: s.Service}) &&
				slices.ContainsFunc(s.Endpoints, func(e model.SliceEndpoint) bool { return e.Addr == at.Addr() }) &&
				slices.ContainsFunc(s.Ports, func(p model.SlicePort) bool { return p.Port == at.Port() }) {
				return true
			}
		}
	}
	return false
}

// rest lets the judge start from the last world if all is right: the more precisely it
// knows what is programmed, the more it demands.
func (j *judge) rest() {
	j.mu.Lock()
	one, blind := len(j.worlds) == 1, j.blind
	j.mu.Unlock()
	if !one && !blind {
		j.right()
	}
}

// settled reports whether the judge starts from the last world.
func (j *judge) settled() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.worlds) == 1 && !j.shaken && !j.blind && !j.rising
}

// right reports in what the data plane differs from what a fresh start would program
// for the last world; empty is in nothing, and then that is where the next changes
// start from, if the process knows that world. It need not: where a change is undone before the process
// has heard of it, all is right, and will be otherwise for a moment.
func (j *judge) right() (differs string) {
	j.mu.Lock()
	w := j.worlds[len(j.worlds)-1]
	j.mu.Unlock()
	w.prepared(j.run.plane)
	now, all := j.run.plane.now(w.host), w.probes
	j.rng.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	var kept []probe
	for _, p := range all[:min(len(all), probesAtEnd)] {
		want := sorted(w.fresh(p))
		if d := conformance.Diff(want, sorted(now(p))); d != "" {
			return conformance.Show(p) + ": " + d
		}
		if len(kept) < probesKept {
			kept = append(kept, probe{Packet: p, before: want})
		}
	}
	known := j.run.knows(w)
	j.mu.Lock()
	defer j.mu.Unlock()
	if known && w == j.worlds[len(j.worlds)-1] {
		j.worlds, j.probes, j.touched = []*world{w}, kept, map[model.ServiceName]bool{}
		j.shaken, j.blind, j.rising = false, false, false
	}
	return ""
}
