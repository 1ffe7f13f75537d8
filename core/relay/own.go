package relay

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tandem-proxy/tandem/core/model"
)

// errOwn is why an endpoint is not dialled that is a relay of the same server: what
// is sent there comes back, and two such Services would use up all the room there
// is with one connection.
var errOwn = errors.New("the endpoint is a listener of this proxy itself")

// places are where a server's relays listen. They are safe for concurrent use.
type places struct {
	mu sync.RWMutex
	of map[place]*taken
}

type place struct {
	proto model.Proto
	at    netip.AddrPort
}

// taken is a place with its relay. It is worth a word once that somebody is sent
// there.
type taken struct {
	by   *Relay
	said atomic.Bool
}

func (p *places) add(at place, r *Relay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[place]*taken{}
	}
	p.of[at] = &taken{by: r}
}

// remove leaves a place alone that another relay has by now.
func (p *places) remove(at place, r *Relay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.of[at]; t != nil && t.by == r {
		delete(p.of, at)
	}
}

func (p *places) find(at place) *taken {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.of[at]
}

// foreign is errOwn for an endpoint that is a relay of this server.
func (s *Server) foreign(proto model.Proto, endpoint netip.AddrPort) error {
	endpoint = plain(endpoint)
	t := s.places.find(place{proto, endpoint})
	if t == nil {
		return nil
	}
	if !t.said.Swap(true) {
		s.options.Log.Warn("an endpoint is not used", "endpoint", endpoint, "protocol", proto, "error", errOwn)
	}
	return errOwn
}
