// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/netip"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// watched collects the outcome of connections between two reads of the monitor: a monitor.Source.
type watched struct {
	shared *shared

	mu   sync.Mutex
	all  []monitor.Seen // monitor.Read of them at most
	more bool
}

// Watch shows what becomes of clients from now on, to the last caller.
func (s *shared) Watch() monitor.Source {
	w := &watched{shared: s}
	s.watched.Store(w)
	return w
}

// Look implements monitor.Source.
func (w *watched) Look(each func(monitor.Seen)) (more bool, err error) {
	w.mu.Lock()
	all, more := w.all, w.more
	w.all, w.more = nil, false
	w.mu.Unlock()
	for _, one := range all {
		each(one)
	}
	return more, nil
}

// Close implements monitor.Source.
func (w *watched) Close() error {
	w.shared.watched.CompareAndSwap(w, nil)
	return nil
}

// reached notes that a client has an endpoint.
func (s *shared) reached(to *choice) {
	to.connected(time.Now())
	s.saw(to.port, to.client, oracle.Forward, to.endpoint())
}

// saw shows what has become of a client.
func (s *shared) saw(of model.PortID, client netip.AddrPort, fate oracle.Fate, endpoint netip.AddrPort) {
	w := s.watched.Load()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.more = w.more || len(w.all) == monitor.Read; w.more {
		return
	}
	w.all = append(w.all, monitor.Seen{At: time.Now(), Proto: of.Proto, Client: client, Port: of, Fate: fate, Endpoint: endpoint})
}

// rejectedBy is the fate of a client that gets no endpoint: without one it is rejected.
func rejectedBy(v model.Verdict) oracle.Fate {
	if v == model.Drop {
		return oracle.Drop
	}
	return oracle.Reject
}
