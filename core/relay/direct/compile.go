// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// Compiler turns ports into listeners (dataplane.Compiler).
type Compiler struct {
	dataplane.SimpleCompiler[Key, Value]
	placement Placement
}

var _ dataplane.Compiler[Key, Value] = (*Compiler)(nil)

// NewCompiler returns a compiler whose relays listen where p places them.
func NewCompiler(p Placement) *Compiler { return &Compiler{placement: p} }

func (c *Compiler) Base(host *model.Host, emit func(Key, Value)) {
	emit(Key{Kind: kindHost}, Value{Host: host})
}

// The gaps of this mode.
const (
	noSCTP   = "relays support TCP and UDP only"
	noSource = "endpoints see an address of this machine, not the client's"
	noIface  = "pods cannot be detected by interface"
	noReject = "clients to be rejected are accepted and reset"
	noDrop   = "clients to be dropped are rejected or reset"
)

func (c *Compiler) Port(host *model.Host, port *model.Port, emit func(Key, Value)) (gaps []model.Gap) {
	switch {
	case !c.placed(host, port):
		return nil
	case port.ID.Proto == model.SCTP:
		return []model.Gap{{Missing: true, Detail: noSCTP}}
	}
	if note := c.placement.Note(); note != "" {
		gaps = append(gaps, model.Gap{Detail: note})
	}
	if why := relay.Unscheduled(port.Scheduler); why != "" {
		gaps = append(gaps, model.Gap{Detail: why})
	}
	gaps = append(gaps, model.Gap{Detail: noSource, Source: true})
	shared := map[*model.Pool]relay.Answer{}
	seen := map[Key]bool{} // frontends of several kinds may have one address
	for i := range port.Frontends {
		f := &port.Frontends[i]
		at, why := c.placement.Addresses(host, port.ID.Proto, f)
		if len(at) == 0 && why == "" {
			continue
		}
		if why != "" {
			gaps = append(gaps, model.Gap{Frontend: f.At, Missing: len(at) == 0, Detail: why})
		}
		gaps = append(gaps, c.missing(host, f)...)
		for _, a := range at {
			assigned := Key{Kind: kindAddress, At: netip.AddrPortFrom(a.Addr(), 0)}
			if c.placement.NeedsAddresses() && f.Kind != model.KindNodePort && !slices.Contains(host.IPs, a.Addr()) && !seen[assigned] {
				seen[assigned] = true
				emit(assigned, Value{})
			}
			k := Key{Kind: kindListener, Proto: port.ID.Proto, At: a, Frontend: f.At}
			if c.serves(f) && !seen[k] {
				seen[k] = true
				emit(k, Value{Policy: policy(port, f, shared)})
			}
		}
	}
	return gaps
}

// placed reports whether a port has a frontend that listeners are for, or should be.
func (c *Compiler) placed(host *model.Host, port *model.Port) bool {
	for i := range port.Frontends {
		if at, why := c.placement.Addresses(host, port.ID.Proto, &port.Frontends[i]); len(at) > 0 || why != "" {
			return true
		}
	}
	return false
}

// serves reports whether any origin that reaches the listeners has endpoints.
func (c *Compiler) serves(f *model.Frontend) bool {
	for o, a := range f.On {
		if a.Verdict == model.Balance && c.placement.Reached(model.Origin(o)) {
			return true
		}
	}
	return false
}

// missing returns what listeners cannot do for a frontend.
func (c *Compiler) missing(host *model.Host, f *model.Frontend) (gaps []model.Gap) {
	gap := func(detail string) { gaps = append(gaps, model.Gap{Frontend: f.At, Detail: detail}) }
	rejects, drops := false, f.Restricted
	for o, a := range f.On {
		if c.placement.Reached(model.Origin(o)) {
			rejects = rejects || a.Verdict == model.Reject
			drops = drops || a.Verdict == model.Drop
		}
	}
	if drops {
		gap(noDrop)
	}
	if rejects && c.serves(f) {
		gap(noReject)
	}
	byIface := host.Pods.Interface != "" || host.Pods.Prefix != ""
	if pod, other := f.On[model.FromPod], f.On[model.FromOutside]; byIface && (pod.Verdict != other.Verdict || !pod.Pool.Equal(other.Pool)) {
		gap(noIface)
	}
	return gaps
}

// policy is that of a frontend's listeners. Frontends share the parts derived from a pool.
func policy(port *model.Port, f *model.Frontend, shared map[*model.Pool]relay.Answer) *relay.Policy {
	p := &relay.Policy{
		Port: port.ID, Restricted: f.Restricted, Allow: f.Allow, SessionAffinity: port.SessionAffinity, Draining: port.Draining,
	}
	for from, a := range f.On {
		p.On[from] = relay.Answer{Verdict: a.Verdict}
		if a.Pool == nil {
			continue
		}
		answer, ok := shared[a.Pool]
		if !ok {
			answer = relay.Balance(a.Pool, port.Scheduler)
			shared[a.Pool] = answer
		}
		p.On[from] = answer
	}
	return p
}

func (c *Compiler) Rank(k Key) int { return int(k.Kind) }

func (c *Compiler) Equal(a, b Value) bool { return a.equal(b) }
