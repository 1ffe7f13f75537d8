// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Clients of all manners, changes of the policy and relays that come and go, all
// at once: every served client is served correctly, and nothing is left.
func TestStorm(t *testing.T) { eachWay(t, storm) }

func storm(t *testing.T, start starter) {
	needUDP(t)
	s := start(t, Options{UDPIdle: 20 * time.Millisecond})
	endpoints := []netip.AddrPort{named(t).at, named(t).at, echo(t).at, closedPort(t)}
	u1, _ := names(t)
	u2, _ := names(t)
	tcp := listen(t, s, model.TCP, balance(endpoints...))
	udp := listen(t, s, model.UDP, balance(u1, u2))
	end := time.Now().Add(300 * time.Millisecond)
	var all sync.WaitGroup
	repeat := func(n int, f func(*rand.Rand)) {
		for i := range n {
			all.Go(func() {
				for rng := rand.New(rand.NewPCG(uint64(i), 7)); time.Now().Before(end); {
					f(rng)
				}
			})
		}
	}
	repeat(4, func(rng *rand.Rand) { rude(tcp.Addr(), rng) })
	repeat(2, func(*rand.Rand) {
		c, err := net.Dial("udp", udp.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(10 * time.Millisecond))
		c.Write([]byte("x"))
		c.Read(make([]byte, 100))
	})
	repeat(1, func(rng *rand.Rand) {
		p := balance(endpoints[rng.IntN(4):]...)
		p.SessionAffinity = time.Duration(rng.IntN(2)) * time.Minute
		tcp.Update(p)
		udp.Update(balance([]netip.AddrPort{u1, u2}[rng.IntN(2):]...))
		time.Sleep(time.Millisecond)
	})
	repeat(1, func(rng *rand.Rand) {
		r, err := s.Listen([]model.Proto{model.TCP, model.UDP}[rng.IntN(2)], anyPort, balance(endpoints...))
		if err != nil {
			t.Error(err)
			return
		}
		rude(r.Addr(), rng)
		r.Close()
	})
	all.Wait()
}

// rude connects and leaves in some way.
func rude(at netip.AddrPort, rng *rand.Rand) {
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(100 * time.Millisecond))
	switch rng.IntN(4) {
	case 0:
		c.(*net.TCPConn).SetLinger(0)
	case 1:
		c.Write(make([]byte, rng.IntN(1<<18)))
	case 2:
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	}
}
