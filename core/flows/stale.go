// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/model"
)

// Stale returns what a batch of changes makes stale, at most one Match for each
// frontend, in an order that equal arguments repeat. It is to be called with
// changes that are in effect: flows that are deleted earlier come back as they
// were. Its work is linear in the changed ports and their endpoints.
//
//	frontend removed                          all flows translated for it
//	frontend added, or served again           all flows but those to its endpoints
//	endpoint gone from a frontend that stays  the flows to that endpoint
//	endpoint only draining, or added          none
//
// kube-proxy leaves the flows of frontends that are removed, and those of node ports whose
// Service has lost all endpoints.
func Stale(host *model.Host, deltas []model.Delta) []Match {
	var x Index
	// Removals go first: a frontend may move from one port to another within a batch,
	// and its new port must win.
	for _, d := range deltas {
		if connectionless(d.ID().Proto) {
			removed(&x, host, d)
		}
	}
	for _, d := range deltas {
		if connectionless(d.ID().Proto) {
			present(&x, host, d)
		}
	}
	return x.Matches()
}

// connectionless reports whether no protocol state will ever end a stale flow of
// this protocol. The package comment states why SCTP is not.
func connectionless(p model.Proto) bool { return p == model.UDP }

// Handshakes returns which TCP connections of a batch of changes wait for an endpoint
// that is gone: only flows without an answer are stale. The SYN that their clients
// send again then reaches an endpoint that is there.
func Handshakes(host *model.Host, deltas []model.Delta) []Match {
	var x Index
	for _, d := range deltas {
		if d.ID().Proto != model.TCP || d.Old == nil || sameEndpoints(d.Old, d.New) {
			continue
		}
		gone := liveEndpoints(d.Old).minus(liveEndpoints(d.New))
		if len(gone) == 0 {
			continue
		}
		for _, f := range d.Old.Frontends {
			x.Add(Match{Namespace: d.Old.ID.Service.Namespace, Proto: model.TCP, Frontend: f.At, Own: nodePortAddresses(host, f.At), Gone: gone})
		}
	}
	if x.Len() == 0 {
		return nil
	}
	for _, d := range deltas { // of several ports that had a frontend within a batch, the one that has it now counts
		if d.New != nil {
			x.keepOnly(d.New)
		}
	}
	return x.Matches()
}

// removed adds the frontends that only the old port has.
func removed(x *Index, host *model.Host, d model.Delta) {
	if d.Old == nil {
		return
	}
	var was Set
	now := model.IndexFrontends(d.New)
	for i := range d.Old.Frontends {
		at := d.Old.Frontends[i].At
		if now.Find(at, i) != nil {
			continue
		}
		if was == nil {
			was = liveEndpoints(d.Old)
		}
		x.Add(Match{Namespace: d.Old.ID.Service.Namespace, Proto: d.Old.ID.Proto, Frontend: at, Own: nodePortAddresses(host, at), Reach: Translated, Gone: was})
	}
}

// present adds the frontends of the new port that have something stale.
func present(x *Index, host *model.Host, d model.Delta) {
	if d.New == nil {
		return
	}
	var is, gone Set
	if !sameEndpoints(d.Old, d.New) {
		is = liveEndpoints(d.New)
		gone = liveEndpoints(d.Old).minus(is)
	}
	before := model.IndexFrontends(d.Old)
	for i := range d.New.Frontends {
		f := &d.New.Frontends[i]
		m := Match{Namespace: d.New.ID.Service.Namespace, Proto: d.New.ID.Proto, Frontend: f.At, Gone: gone}
		if old := before.Find(f.At, i); old == nil || !served(old) && served(f) {
			m.Reach = Everything
		}
		if m.Reach == OnlyGone && len(gone) == 0 {
			continue
		}
		if is == nil {
			is = liveEndpoints(d.New)
		}
		m.Keep, m.Own = is, nodePortAddresses(host, f.At)
		x.Add(m)
	}
}

// served reports whether any sender reaches an endpoint through the frontend.
func served(f *model.Frontend) bool {
	return slices.ContainsFunc(f.On[:], func(a model.Action) bool { return a.Verdict == model.Balance })
}

func sameEndpoints(a, b *model.Port) bool {
	return a != nil && b != nil && slices.Equal(a.Draining, b.Draining) &&
		slices.EqualFunc(a.Pools(), b.Pools(), (*model.Pool).Equal)
}

// nodePortAddresses returns the host's addresses on which a node port answers, as far as they
// are known; nil for other frontends.
func nodePortAddresses(host *model.Host, at netip.AddrPort) []netip.Addr {
	if !at.Addr().IsUnspecified() {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range host.IPs {
		if model.FamilyOf(a) == model.FamilyOf(at.Addr()) && host.NodePorts.Contains(a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
