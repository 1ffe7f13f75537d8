// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// notes is a log that may be read.
type notes struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all.Write(b)
}

// lines are those in which all words are.
func (n *notes) lines(words ...string) (found []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
next:
	for line := range strings.Lines(n.all.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		found = append(found, line)
	}
	return found
}

func (n *notes) log() *slog.Logger { return slog.New(slog.NewTextHandler(n, nil)) }

// Relays that are each other's endpoints refuse, with one connection for each
// client and a word for each relay.
func TestRelaysDoNotGoInCircles(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) {
		said := &notes{}
		s := start(t, Options{Log: said.log()})
		a, b := listen(t, s, model.TCP, Policy{}), listen(t, s, model.TCP, Policy{})
		a.Update(balance(b.Addr()))
		b.Update(balance(netip.AddrPortFrom(netip.AddrFrom16(a.Addr().Addr().As16()), a.Addr().Port()))) // as IPv6 has it
		for range 3 {
			for _, r := range []*Relay{a, b} {
				if got, err := who(t, r.Addr()); got != "" || err == nil {
					t.Errorf("%q, %v", got, err)
				}
			}
		}
		if st := s.Stats(); st.Accepted > 6 || st.Failed != st.Accepted {
			t.Errorf("%+v", st)
		}
		for _, r := range []*Relay{a, b} {
			if all := said.lines("WARN", r.Addr().String()); len(all) != 1 {
				t.Errorf("of %s is said: %q", r.Addr(), all)
			}
		}
	})
}

// Behind an endpoint that is a relay the next one is tried, and what was a relay is
// an endpoint like others.
func TestOwnEndpointsAreSkipped(t *testing.T) {
	eachWay(t, func(t *testing.T, start starter) {
		s := start(t, Options{})
		good := named(t)
		own := listen(t, s, model.TCP, balance(good.at))
		r := listen(t, s, model.TCP, balance(own.Addr(), good.at))
		for range 4 {
			if got, err := who(t, r.Addr()); got != good.at.String() {
				t.Errorf("%q, %v", got, err)
			}
		}
		if st := s.Stats(); st.Accepted != 4 || st.Retried != 2 {
			t.Errorf("%+v", st)
		}
		if err := own.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.checkLoop(model.TCP, own.Addr()); err != nil {
			t.Errorf("no listener there any more: %v", err)
		}
		if err := s.checkLoop(model.UDP, r.Addr()); err != nil {
			t.Errorf("no UDP listener there: %v", err)
		}
	})
}

// Datagrams go to no relay, wherever else they may go.
func TestDatagramsDoNotGoInCircles(t *testing.T) {
	needUDP(t)
	said := &notes{}
	s := newServer(t, Options{Log: said.log()})
	good, _ := names(t)
	a, b := listen(t, s, model.UDP, Policy{}), listen(t, s, model.UDP, Policy{})
	a.Update(balance(b.Addr()))
	b.Update(balance(a.Addr(), good))
	for range 4 {
		c := newAsker(t, b.Addr())
		if at := c.must(t); at != good {
			t.Errorf("%s answers", at)
		}
	}
	c := newAsker(t, a.Addr())
	if at, _, err := c.ask("hello", 100*time.Millisecond); err == nil {
		t.Errorf("%s answers", at)
	}
	if st := s.Stats(); st.Sessions != 4 || st.Dropped != 1 {
		t.Errorf("%+v", st)
	}
	if all := said.lines("WARN"); len(all) != 2 {
		t.Errorf("it is said: %q", all)
	}
}
