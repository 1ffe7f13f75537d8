// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// Load while modes are switched. A kernel in user mode is slower: there
// it is as much as it can.
const (
	longLived = 1000
	enough    = 200                  // new connections in a switch; long-lived ones, where all take longer than
	patience  = 5 * time.Second      // this
	newEvery  = 5 * time.Millisecond // 200 new connections a second
	atOnce    = 32
)

// calls are the ways in: from a pod, from the node itself and from outside.
var calls = []lab.Call{
	{From: "10.244.1.10", Proto: model.TCP, To: clusterIP, Timeout: 5 * time.Second},
	{From: lab.Node, Proto: model.TCP, To: clusterIP, Timeout: 5 * time.Second},
	{From: lab.Outside, Proto: model.TCP, To: nodePort, Timeout: 5 * time.Second},
}

// TestSwitchModes performs every ordered pair of switches between the modes that
// work here, under new and long-lived connections: none of either may fail. The two
// orders of a pair are one test.
func TestSwitchModes(t *testing.T) {
	modes := newSite(t).working()
	if len(modes) < 2 {
		t.Skipf("only %d mode works here", len(modes))
	}
	for i, from := range modes {
		for _, to := range modes[i+1:] {
			t.Run(fmt.Sprintf("%s,%s", from.Name, to.Name), func(t *testing.T) {
				s := newSite(t)
				s.write("", "10.244.1.2", "10.244.1.3")
				s.flags = []string{"--proxy-mode", string(from.Name), "--nodeport-addresses", "localhost,primary"}
				s.start()
				s.switchUnderLoad(from.Name, to.Name)
				s.switchUnderLoad(to.Name, from.Name)
			})
		}
	}
}

// working returns the modes of this system that can be opened on the node.
func (s *site) working() (modes []dataplane.Mode) {
	for _, m := range platform.Local() {
		err := s.net.Do(lab.Node, func() error { return platform.Probe(s.t.Context(), m) })
		if err != nil {
			s.t.Logf("mode %s is left out: %v", m.Name, err)
			continue
		}
		modes = append(modes, m)
	}
	return modes
}

// switchTo switches without looking at anything.
func (s *site) switchTo(m dataplane.Mode) {
	s.t.Helper()
	if doc, err := s.status(); err != nil || doc.Mode != string(m.Name) {
		s.must(s.bin, "switch", "--to", string(m.Name))
	}
}

// switchUnderLoad switches from one mode to another under load and checks everything.
func (s *site) switchUnderLoad(from, to config.Mode) {
	s.t.Helper()
	conns := s.longLived()
	defer hangUp(conns)
	traffic := s.traffic()
	defer traffic.end()
	begin := time.Now()
	out := s.must(s.bin, "switch", "--to", string(to))
	took := time.Since(begin)
	time.Sleep(100 * time.Millisecond)

	what := fmt.Sprintf("%s to %s", from, to)
	s.eventually(time.Minute, what+": the new mode has relays for node ports on loopback addresses while the old one drains", func() error {
		return s.call(lab.Call{From: lab.Node, Proto: model.TCP, To: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), nodePort.Port()), Timeout: 10 * time.Second})
	})
	broken, example := stillThere(conns)
	if broken > 0 {
		s.t.Errorf("%s: %d of %d long-lived connections broke, one of them: %v", what, broken, len(conns), example)
	}
	hangUp(conns) // relays drain until then
	if doc, err := s.status(); err != nil || doc.Mode != string(to) || !doc.Healthy {
		s.t.Errorf("%s: the status is %s, healthy %t, %v", what, doc.Mode, doc.Healthy, err)
	}
	s.eventually(time.Minute, string(from)+" goes when its connections have ended", func() error { return s.left(from) })
	s.eventually(time.Minute, "enough new connections", func() error {
		if n := traffic.made.Load(); n < enough {
			return fmt.Errorf("%d of %d", n, enough)
		}
		return nil
	})
	traffic.end()
	made, failed := traffic.made.Load(), traffic.failed.Load()
	if failed > 0 {
		s.t.Errorf("%s: %d of %d new connections failed, the last: %s", what, failed, made, traffic.failure())
	}
	s.t.Logf("%s: %s (%s); %d of %d new connections failed, %d of %d long-lived ones broke", what, took.Round(time.Millisecond),
		strings.SplitN(out, "\n", 2)[0], failed, made, broken, len(conns))
}

// left returns an error when something of a mode is on the node.
func (s *site) left(name config.Mode) error {
	return s.net.Do(lab.Node, func() error {
		mode, err := platform.Find(name)
		if err != nil {
			return err
		}
		c := config.Default()
		b, err := mode.Open(s.t.Context(), &c, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		err = b.Adopt(s.t.Context())
		if n := b.Health().Objects; n > 0 {
			err = errors.Join(err, fmt.Errorf("%d objects of mode %s are left", n, name))
		}
		return errors.Join(err, b.Close())
	})
}

// longLived opens connections of all kinds and has each answered once.
func (s *site) longLived() (conns []net.Conn) {
	s.t.Helper()
	begin := time.Now()
	for i := range longLived {
		if i >= enough && time.Since(begin) > patience {
			break
		}
		conn, err := s.net.Connect(calls[i%len(calls)])
		if err == nil {
			err = answers(conn)
		}
		if err != nil {
			s.t.Fatalf("long-lived connection %d: %v", i, err)
		}
		conns = append(conns, conn)
	}
	return conns
}

func hangUp(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

func stillThere(conns []net.Conn) (broken int, example error) {
	for _, c := range conns {
		if err := answers(c); err != nil {
			broken, example = broken+1, err
		}
	}
	return broken, example
}

func answers(conn net.Conn) error {
	a, err := lab.Ask(conn, 2*time.Second)
	if err == nil && a.Outcome != lab.Answered {
		err = fmt.Errorf("%s from %s to %s", a.Outcome, conn.LocalAddr(), conn.RemoteAddr())
	}
	return err
}

// traffic makes new connections until it ends.
type traffic struct {
	made, failed atomic.Int64
	kills, cut   atomic.Int64 // ends of the process, noted before; connections that it was relaying then
	last         atomic.Value // a string
	standstill   atomic.Int64 // the longest time that this process did not run, in ns
	stop         context.CancelFunc
	running      sync.WaitGroup
}

// traffic makes connections to some addresses in turn, or to those of all ways in.
func (s *site) traffic(to ...lab.Call) *traffic {
	if len(to) == 0 {
		to = calls
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &traffic{stop: cancel}
	t.running.Go(func() { t.watch(ctx) })
	tick := time.NewTicker(newEvery)
	slots := make(chan struct{}, atOnce)
	t.running.Go(func() {
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			slots <- struct{}{}
			t.running.Go(func() {
				defer func() { <-slots }()
				kills := t.kills.Load()
				a, err := s.net.Dial(to[i%len(to)])
				if err == nil && a.Outcome != lab.Answered {
					err = fmt.Errorf("from %s to %s: %s", to[i%len(to)].From, to[i%len(to)].To, a.Outcome)
				}
				t.made.Add(1)
				switch {
				case err != nil && kills != t.kills.Load():
					t.cut.Add(1)
				case err != nil:
					t.failed.Add(1)
					t.last.Store(err.Error())
				}
			})
		}
	})
	return t
}

// watch measures standstills: a connection that lasts longer than its limit may have
// waited for a processor.
func (t *traffic) watch(ctx context.Context) {
	const each = 20 * time.Millisecond
	for ctx.Err() == nil {
		begin := time.Now()
		time.Sleep(each)
		t.standstill.Store(max(t.standstill.Load(), int64(time.Since(begin)-each)))
	}
}

// failure is the last one.
func (t *traffic) failure() string {
	return fmt.Sprintf("%v (this process stood still for up to %s)", t.last.Load(), time.Duration(t.standstill.Load()).Round(time.Millisecond))
}

func (t *traffic) end() {
	t.stop()
	t.running.Wait()
}
