// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Relay serves one address. It is safe for concurrent use.
type Relay struct {
	*shared
	policy   atomic.Pointer[Policy]
	balancer balancer
	quota    share
	proto    model.Proto
	at       netip.AddrPort

	socket        syscall.Conn
	closeSocket   func() error
	listening     func() bool // nil for UDP
	policyChanged func()      // nil for TCP
	remove        func() bool // from the server; false if it was not there any more
	own           *ownListener
}

// Addr returns the address on which the relay listens.
func (r *Relay) Addr() netip.AddrPort { return r.at }

// Listening reports whether the system has the relay's socket listen still: others can
// end that (ss --kill). It is true where the system cannot be asked.
func (r *Relay) Listening() bool { return r.listening == nil || r.listening() }

// keep makes the socket known to those that it may be handed over to.
func (r *Relay) keep(socket syscall.Conn) {
	if r.socket = socket; r.options.Handover != nil {
		r.options.Handover.Keep(r.proto, r.at, socket)
	}
}

// Forget precedes the end of a relay that the next process does not need either
// (Options.Handover).
func (r *Relay) Forget() {
	if r.options.Handover != nil {
		r.options.Handover.Forget(r.proto, r.at, r.socket)
	}
}

// Update changes the policy. TCP connections stay with their endpoints; UDP
// sessions whose endpoint may no longer serve them end, and the next datagrams of
// their clients go elsewhere.
func (r *Relay) Update(p Policy) {
	r.policy.Store(&p)
	if r.policyChanged != nil {
		r.policyChanged()
	}
}

// Close stops listening. TCP connections continue until they end by themselves.
func (r *Relay) Close() error {
	if !r.remove() {
		return nil
	}
	err := r.closeSocket()
	r.listeners.remove(address{r.proto, r.at}, r.own)
	return err
}

// Retire closes the relay after a delay, in which it still accepts clients whose
// packets were redirected before the rules were deleted. It returns at once.
func (r *Relay) Retire(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing { // Server.Close has closed it and may be waiting for work
		return
	}
	r.work.Go(func() {
		sleep.For(r.ctx, after)
		if err := r.Close(); err != nil {
			r.options.Log.Warn("closing a listener failed", "port", r.quota.port, "listener", r.at, "err", err)
		}
	})
}

// answer returns the Answer for a client, with a choice of endpoints if there are
// any.
func (r *Relay) answer(client netip.AddrPort) (from model.Origin, to choice, ok bool) {
	from = r.options.Origin(client.Addr())
	p := r.policy.Load()
	a := p.Answer(from, client.Addr())
	if a.Verdict != model.Balance || len(a.Endpoints) == 0 {
		r.stats.refused.Add(1)
		return from, choice{}, false
	}
	return from, r.balancer.choose(from, client, a, p.SessionAffinity, time.Now()), true
}
