// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/conntrack"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/virtualserver"
)

const (
	// lateNotices is how long notices are waited for after the packet's fate seems known.
	lateNotices = 200 * time.Millisecond
	// mostPath bounds the rules that are shown, but for the one that ends the packet.
	mostPath = 100
)

// eventsSetting is 0 where conntrack sends no events of new flows.
const eventsSetting = "/proc/sys/net/netfilter/nf_conntrack_events"

// followLive implements system.live: it listens to nf_tables' traces and to new flows of
// conntrack, sends a packet or waits for one, and combines the events; in mode ipvs with what IPVS
// has chosen.
func followLive(ctx context.Context, t question.Trace, from string) (_ question.Live, err error) {
	l, err := newLive(t, from)
	if err != nil {
		return question.Live{}, err
	}
	if l.local {
		if l.probe, err = openProbe(l.packet.Proto, l.packet.Dst); err != nil {
			return question.Live{}, err
		}
		defer l.probe.close()
		l.packet.Sport = l.probe.port
	}
	if text, err := os.ReadFile(eventsSetting); err == nil && strings.TrimSpace(string(text)) == "0" {
		return question.Live{}, errors.New("conntrack sends no events: set sysctl net.netfilter.nf_conntrack_events=1")
	}
	if l.ipvs, err = l.followIPVS(ctx); err != nil {
		return question.Live{}, err
	}
	newFlows, err := conntrack.ListenNew()
	if err != nil {
		return question.Live{}, err
	}
	defer func() { err = errors.Join(err, newFlows.Close()) }()
	follower, err := nft.Follow(ctx, l.packet)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, follower.Close()) }()
	case !errors.Is(err, dataplane.ErrAbsent):
		return question.Live{}, err
	}
	return l.run(ctx, newFlows, follower)
}

// live combines the events of one packet.
type live struct {
	trace  question.Trace
	packet nft.Followed
	local  bool // this node sends it
	probe  *probe
	begin  time.Time

	mu     sync.Mutex
	result question.Live
	rules  []string
	more   int // rules beyond mostPath
	flows  []string
	flow   *conntrack.NewFlow // of the packet
	relay  *conntrack.NewFlow // from a relay to an endpoint
	ended  string             // drop or reject, by a rule
	client netip.Addr         // as rules have met it; not valid: unknown
	ipvs   *balanced          // nil in other modes
	known  chan struct{}      // capacity 1: a new event was received
}

// newLive is about the packet of a trace. A client that is not named by its address is
// any.
func newLive(t question.Trace, from string) (*live, error) {
	l := &live{trace: t, local: t.FromHost(), known: make(chan struct{}, 1), result: question.Unseen()}
	var err error
	if l.packet.Dst, err = netip.ParseAddrPort(t.To); err != nil {
		return nil, err
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		if proto.String() == t.Protocol {
			l.packet.Proto = proto
		}
	}
	if l.packet.Proto == model.SCTP && l.local {
		return nil, errors.New("--live sends no SCTP packets")
	}
	l.packet.Local = l.local
	if from != "pod" && from != "outside" && !l.local {
		l.packet.Src, err = netip.ParseAddr(t.From)
	}
	return l, err
}

// run listens until the packet's fate is known, or ctx ends.
func (l *live) run(ctx context.Context, flows *conntrack.NewFlows, follower *nft.Follower) (question.Live, error) {
	listening, stop := context.WithCancel(ctx)
	defer stop()
	var listeners sync.WaitGroup
	var failed [3]error
	listeners.Go(func() { failed[0] = flows.Each(listening, l.flowEvent) })
	if follower != nil {
		listeners.Go(func() { failed[1] = follower.Each(listening, l.ruleEvent) })
	}
	l.begin = time.Now()
	answered := make(chan error, 1)
	if l.probe != nil {
		listeners.Go(func() { answered <- l.probe.send(listening) })
	}
	answer := l.wait(ctx, answered)
	stop()
	listeners.Wait()
	failed[2] = l.balance(context.WithoutCancel(ctx))
	l.conclude(answer)
	return l.result, errors.Join(failed[:]...)
}

// errAnswered means that a probe was answered.
var errAnswered = errors.New("answered")

// wait returns when the packet's fate is known, with the error its sender received: nil for
// nothing yet.
func (l *live) wait(ctx context.Context, answered <-chan error) (answer error) {
	var quiet <-chan time.Time
	for {
		if quiet == nil && (answer != nil && !errors.Is(answer, context.DeadlineExceeded) || l.decided()) {
			quiet = time.After(lateNotices)
		}
		select {
		case <-ctx.Done():
			return answer
		case <-quiet:
			return answer
		case answer = <-answered:
		case <-l.known:
		}
	}
}

// decided reports whether the events suffice.
func (l *live) decided() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended != "" || l.relay != nil || l.flow != nil && !l.relayed()
}

// relayed reports whether the flow of the packet ends at a relay of this node: in the
// userspace mode, or for a node port on a loopback address.
func (l *live) relayed() bool {
	if l.packet.Dst.Addr().IsLoopback() {
		return !l.flow.Translated() && l.trace.Outcome == oracle.Forward.String()
	}
	return l.trace.Mode == string(relay.Mode) && l.flow.Translated()
}

func (l *live) notify() {
	select {
	case l.known <- struct{}{}:
	default:
	}
}

// flowEvent receives a new flow.
func (l *live) flowEvent(f conntrack.NewFlow) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p := l.packet; {
	case f.Proto != p.Proto:
		return false
	case l.flow == nil && f.Dst == p.Dst && (!p.Src.IsValid() || p.Src == f.Src.Addr()) && (p.Sport == 0 || p.Sport == f.Src.Port()):
		l.flow = &f
		l.flows = append(l.flows, fmt.Sprintf("conntrack: %s -> %s sent to %s, which sees %s", f.Src, f.Dst, f.To, f.Sees))
	case l.flow != nil && l.relay == nil && l.relayed() && l.endpoint(f.Dst.String()):
		l.relay = &f
		l.flows = append(l.flows, fmt.Sprintf("relay: %s -> %s", f.Src, f.Dst))
	default:
		return false
	}
	l.notify()
	return false
}

func (l *live) endpoint(at string) bool {
	return slices.ContainsFunc(l.trace.Endpoints, func(t oracle.Target) bool { return t.Addr.String() == at })
}

// ruleEvent receives a rule that the packet passed.
func (l *live) ruleEvent(s nft.Step) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.client = s.Client
	if len(l.rules) < mostPath || s.Final() {
		l.rules = append(l.rules, "nftables: "+s.String())
	} else {
		l.more++
	}
	if s.Final() {
		l.ended = s.Verdict
		l.notify()
	}
	return s.Final()
}

// conclude returns the packet's outcome. l is not used after it.
func (l *live) conclude(answer error) {
	r := &l.result
	if l.more > 0 {
		l.rules = slices.Insert(l.rules, mostPath, fmt.Sprintf("nftables: and %s", printable.Count(l.more, "more rule")))
	}
	r.Client, r.Path = l.trace.From, slices.Concat(l.rules, l.flows)
	if at := len(l.rules); l.ended != "" && at > 0 { // by a rule that it met behind IPVS
		r.Path = slices.Insert(r.Path, at-1, l.ipvs.steps()...)
	} else {
		r.Path = slices.Insert(r.Path, at, l.ipvs.steps()...)
	}
	r.TookMS = float64(time.Since(l.begin).Microseconds()) / 1000
	if l.client.IsValid() {
		r.Client = l.client.String()
	}
	if l.flow != nil {
		r.Client = l.flow.Src.Addr().String()
	}
	switch {
	case l.ended != "":
		r.Outcome = l.ended
		if l.ended == oracle.Drop.String() && errors.Is(answer, unix.ECONNREFUSED) {
			r.Outcome = oracle.Reject.String()
		}
	case l.flow == nil && l.ipvs.alone():
		r.Client = l.ipvs.chosen.Client.Addr().String()
		l.reached(l.ipvs.chosen.To, l.ipvs.chosen.Client.Addr())
	case l.relay != nil:
		l.reached(l.relay.To, l.relay.Sees.Addr())
	case l.flow != nil && !l.flow.Translated() && !l.relayed():
		r.Outcome = oracle.Pass.String() // whatever its destination answered
	case l.flow != nil && !l.relayed():
		l.reached(l.flow.To, l.flow.Sees.Addr())
	case errors.Is(answer, unix.ECONNREFUSED), errors.Is(answer, unix.ECONNRESET):
		r.Outcome = oracle.Reject.String()
	case l.flow != nil: // a relay accepted it, and has contacted no endpoint
		r.Outcome = oracle.Drop.String()
	case l.probe != nil && !errors.Is(answer, errAnswered):
		r.Outcome = oracle.Drop.String() // it was sent, and no flow began
	}
	r.Compare(l.trace.Explanation)
}

// reached is the outcome of a packet that came to an endpoint.
func (l *live) reached(at netip.AddrPort, sees netip.Addr) {
	r := &l.result
	r.Outcome, r.Endpoint, r.Sees = oracle.Forward.String(), at.String(), sees.String()
	r.SNAT = r.Sees != r.Client
}

// probe is a socket that sends one packet.
type probe struct {
	fd    int
	port  uint16 // its own
	to    unix.Sockaddr
	proto model.Proto
}

// openProbe opens a probe with a port of its own.
func openProbe(proto model.Proto, to netip.AddrPort) (p *probe, err error) {
	kind := unix.SOCK_STREAM
	if proto == model.UDP {
		kind = unix.SOCK_DGRAM
	}
	domain, own := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{})
	p = &probe{proto: proto, to: &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}}
	if to.Addr().Is4() {
		domain, own, p.to = unix.AF_INET, &unix.SockaddrInet4{}, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	if p.fd, err = unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	err = unix.Bind(p.fd, own)
	if err == nil {
		own, err = unix.Getsockname(p.fd)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bind: %w", err), unix.Close(p.fd))
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		p.port = uint16(a.Port)
	case *unix.SockaddrInet6:
		p.port = uint16(a.Port)
	}
	return p, nil
}

// close ends the connection with a reset, if there is one.
func (p *probe) close() {
	_ = unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // of TCP
	_ = unix.Close(p.fd)
}

// send sends a SYN, or a datagram without content, and waits for the sender's error:
// errAnswered, an error of the socket, or that of ctx. A service need not answer such a datagram.
func (p *probe) send(ctx context.Context) error {
	if err := unix.Connect(p.fd, p.to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	events := int16(unix.POLLOUT)
	if p.proto == model.UDP {
		events = unix.POLLIN
		if _, err := unix.Write(p.fd, nil); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: events}}, 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n == 0 {
			continue
		}
		if code, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			return unix.Errno(code)
		}
		return errAnswered
	}
	return ctx.Err()
}

// balanced is what IPVS has done with a packet. No rule shows its choice, and without
// net.ipv4.vs.conntrack, or where a later rule drops the packet, conntrack does not either; its own
// table has an entry from the first packet on. Its counters would be those of all clients.
type balanced struct {
	before    map[netip.AddrPort]struct{} // clients that had such a connection before
	chosen    *virtualserver.Connection
	untracked bool // conntrack gets nothing of IPVS's connections
}

// mostBefore bounds the clients that are remembered.
const mostBefore = 1 << 16

// followIPVS begins to follow a packet; nil where the mode is another.
func (l *live) followIPVS(ctx context.Context) (*balanced, error) {
	if l.trace.Mode != string(ipvs.Name) {
		return nil, nil
	}
	tracked, err := host.Sysctl("net/ipv4/vs/conntrack")
	b := &balanced{before: map[netip.AddrPort]struct{}{}, untracked: err == nil && tracked == "0"}
	return b, virtualserver.Connections(ctx, func(c virtualserver.Connection) {
		if l.sameWay(c) && len(b.before) < mostBefore {
			b.before[c.Client] = struct{}{}
		}
	})
}

// sameWay reports whether a connection is one of those that may be the packet's.
func (l *live) sameWay(c virtualserver.Connection) bool {
	p := l.packet
	return c.Proto == p.Proto && c.Dst == p.Dst && (!p.Src.IsValid() || p.Src == c.Client.Addr()) && (p.Sport == 0 || p.Sport == c.Client.Port())
}

// balance looks for the packet's connection.
func (l *live) balance(ctx context.Context) error {
	if l.ipvs == nil {
		return nil
	}
	return virtualserver.Connections(ctx, func(c virtualserver.Connection) {
		_, old := l.ipvs.before[c.Client]
		if l.sameWay(c) && l.ipvs.chosen == nil && (l.flow != nil && l.flow.Src == c.Client || l.flow == nil && !old) {
			l.ipvs.chosen = &c
		}
	})
}

// steps are the objects that the packet met in IPVS.
func (b *balanced) steps() []string {
	if b == nil || b.chosen == nil {
		return nil
	}
	c := b.chosen
	all := []string{fmt.Sprintf("ipvs: %s -> %s sent to %s (%s)", c.Client, c.Dst, c.To, c.State)}
	if b.untracked {
		all = append(all, "ipvs: not tracked, and with no SNAT: sysctl net.ipv4.vs.conntrack is 0")
	}
	return all
}

// alone reports whether only IPVS knows the packet's connection.
func (b *balanced) alone() bool { return b != nil && b.chosen != nil && b.untracked }
