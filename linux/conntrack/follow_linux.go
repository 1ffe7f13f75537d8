// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

const (
	// maxNew is how many new flows a look takes. Where there are more, they are sampled: the
	// kernel reports for a part of the time, so that its work is bounded, too.
	maxNew    = 256
	enoughNew = maxNew / 4 // in a sample: the next one may be longer

	longestSample = 100 * time.Millisecond // then all are reported again
	leastSample   = time.Millisecond

	eventBuffer = 512 << 10 // holds more than maxNew reports
)

// Follower shows the TCP flows to endpoints that begin, and whether they have an answer. The kernel
// reports each new flow (its first packet, when that has passed all rules), and one is then
// looked up by its addresses: neither walks the table. It is used by one goroutine at a time.
type Follower struct {
	events, asks *netlink.Socket
	table        Table // for the dump of Prior
	batch        netlink.Batch
	unmarked     bool
	joined       bool
	sample       time.Duration // of the time between two looks; 0 is all of it
	spent        time.Duration
}

// Follow opens a Follower of the calling thread's network namespace. It is an error where the
// kernel reports no new flows.
func Follow() (*Follower, error) {
	if err := reports(); err != nil {
		return nil, err
	}
	var sockets [3]*netlink.Socket
	for i := range sockets {
		s, err := netlink.Open()
		if err != nil {
			for _, open := range sockets[:i] {
				err = errors.Join(err, open.Close())
			}
			return nil, fmt.Errorf("conntrack: %w", err)
		}
		sockets[i] = s
	}
	f := &Follower{events: sockets[0], asks: sockets[1], table: Table{dumps: sockets[2], canFilter: true, writeFilter: filter.write}}
	f.events.SetBuffers(0, eventBuffer)
	f.filter()
	return f, nil
}

// reports is an error where the kernel reports no new flows.
func reports() error {
	if on, err := host.Sysctl("net/netfilter/nf_conntrack_events"); err == nil && on == "0" {
		return errors.New("conntrack reports no new connections: sysctl net.netfilter.nf_conntrack_events is 0")
	}
	return nil
}

// SetUnmarked sets whether what redirects flows leaves their DNAT bit unset, as IPVS
// does: otherwise the kernel leaves out all flows without it.
func (f *Follower) SetUnmarked(unmarked bool) {
	if f.unmarked != unmarked {
		f.unmarked = unmarked
		f.filter()
	}
}

// filter leaves out what New would, before it takes room. Without it there is only more to read.
func (f *Follower) filter() { _ = f.events.Filter(program(true, f.unmarked)) }

// Stop ends the reports until the next New.
func (f *Follower) Stop() {
	if f.joined {
		f.joined = f.events.Leave(netlink.GroupNewFlows) != nil
	}
}

// Close closes the Follower.
func (f *Follower) Close() error {
	return errors.Join(f.events.Close(), f.asks.Close(), f.table.dumps.Close())
}

// Spent is the CPU time that all looks have taken.
func (f *Follower) Spent() time.Duration { return f.spent }

// New calls each for the flows that have begun since the last call, and tells whether those
// are all of them.
func (f *Follower) New(ctx context.Context, each func(f suspect.Flow, s suspect.State, since time.Time)) (all bool, err error) {
	defer f.account()()
	if f.sample > 0 {
		if err := f.join(); err != nil {
			return false, err
		}
		sleep.For(ctx, f.sample)
		f.Stop()
	}
	now := time.Now()
	n, lost, err := f.read(func(flow suspect.Flow) { each(flow, suspect.Unknown, now) })
	if err != nil {
		return false, fmt.Errorf("conntrack events: %w", err)
	}
	all = f.joined && !lost
	switch {
	case lost && f.sample == 0:
		f.Stop()
		f.sample = longestSample / 2
	case lost:
		f.sample = max(f.sample/2, leastSample)
	case f.sample > 0 && n < enoughNew:
		if f.sample *= 2; f.sample > longestSample {
			f.sample = 0
		}
	}
	if f.sample == 0 {
		return all, f.join()
	}
	return false, nil
}

// Wait waits until there may be new flows, or ctx ends. It may be called beside the other methods.
func (f *Follower) Wait(ctx context.Context) {
	if f.events.Wait(ctx) != nil && ctx.Err() == nil {
		sleep.For(ctx, longestSample) // then it is looked for
	}
}

func (f *Follower) join() error {
	if f.joined {
		return nil
	}
	if err := f.events.Join(netlink.GroupNewFlows); err != nil {
		return fmt.Errorf("conntrack events: %w", err)
	}
	f.joined = true
	return nil
}

// read empties the queue of reports, and calls each for the first ones. It is lost how many there were when
// that many were not called for, or did not fit into the queue.
func (f *Follower) read(each func(suspect.Flow)) (n int, lost bool, err error) {
	const most = eventBuffer / 256 // a report is larger than that: so many fit into the queue
	all, lost, err := f.events.Reports(most, func(m netlink.Message) {
		if m.Type != msgNew {
			return
		}
		e, err := parseEntry(m.Body)
		if err != nil || !f.endpoint(&e) {
			return
		}
		if n++; n <= maxNew {
			each(e.seen())
		}
	})
	return n, lost || err == nil && !all || n > maxNew, err
}

// endpoint reports whether an entry is a TCP connection to an endpoint.
func (f *Follower) endpoint(e *entry) bool {
	return e.flow.Proto == model.TCP && e.flow.Translated() && (f.unmarked || e.status&dstNAT != 0)
}

// seen returns the flow of an entry.
func (e *entry) seen() suspect.Flow {
	return suspect.Flow{ID: e.number(), Zone: e.origZone, Client: e.client, Frontend: e.flow.Dst, Endpoint: e.flow.From}
}

// States calls each for flows, by their place, with their state now.
func (f *Follower) States(ctx context.Context, flows []suspect.Flow, each func(i int, s suspect.State)) error {
	if len(flows) == 0 {
		return nil
	}
	defer f.account()()
	return lookUp(ctx, f.asks, &f.batch, flows, func(i int, e *entry) {
		switch {
		case e == nil:
			each(i, suspect.Gone)
		case e.flow.Answered:
			each(i, suspect.Answered)
		default:
			each(i, suspect.Waiting)
		}
	})
}

// Prior returns endpoints that have answered connections of this node itself, as far as conntrack
// still has them, for two minutes after their end, and what Waiting does. It dumps the table.
func (f *Follower) Prior(ctx context.Context, local func(netip.Addr) bool, most int) (answered []netip.AddrPort, waiting []suspect.Flow, err error) {
	defer f.account()()
	seen := map[netip.AddrPort]bool{}
	err = f.dump(ctx, filter{both: true}, func(e *entry) {
		waiting = f.appendWaiting(waiting, e, most)
		if e.flow.Proto == model.TCP && e.flow.Answered && len(seen) < most && local(e.client.Addr()) && !local(e.flow.From.Addr()) {
			seen[e.flow.From] = true
		}
	})
	return slices.Collect(maps.Keys(seen)), waiting, err
}

// Waiting returns the flows that wait for an answer, and of more than so many one more. It dumps the table; New comes
// before it, so that no flow escapes both.
func (f *Follower) Waiting(ctx context.Context, most int) (all []suspect.Flow, err error) {
	defer f.account()()
	err = f.dump(ctx, filter{both: true, unanswered: true}, func(e *entry) { all = f.appendWaiting(all, e, most) })
	return all, err
}

func (f *Follower) appendWaiting(all []suspect.Flow, e *entry, most int) []suspect.Flow {
	if f.endpoint(e) && !e.flow.Answered && len(all) <= most {
		all = append(all, e.seen())
	}
	return all
}

// dump calls each for the entries that pass a filter, and perhaps others. One that a change of the
// table has interrupted lacks some.
func (f *Follower) dump(ctx context.Context, which filter, each func(*entry)) error {
	err := f.table.dump(ctx, which, each)
	switch {
	case errors.Is(err, errNoFilter):
		f.table.canFilter = false
		return f.dump(ctx, which, each)
	case errors.Is(err, netlink.ErrInterrupted):
		return nil
	}
	return err
}

// account adds the CPU time until its result is called to what was spent.
func (f *Follower) account() (end func()) {
	spent := Account()
	return func() { f.spent += spent() }
}

// Account counts the CPU time of the calling goroutine until its result is called, once, which keeps its thread until
// then: the kernel works in this thread's time (flows.Hooks).
func Account() (spent func() time.Duration) {
	runtime.LockOSThread()
	before := threadTime()
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		return threadTime() - before
	}
}

func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// lookUp looks flows up, and calls each for them by their place, with their entries, which are valid
// during the call: nil where a flow has none any more.
func lookUp(ctx context.Context, s *netlink.Socket, b *netlink.Batch, flows []suspect.Flow, each func(i int, e *entry)) error {
	const together = 64 // their answers fit into the socket's queue
	for first := 0; first < len(flows); first += together {
		some := flows[first:min(first+together, len(flows))]
		for _, f := range some {
			w := b.Begin(msgGet, 0, netlink.FamilyOf(model.FamilyOf(f.Client.Addr())))
			writeFlow(w, f)
			w.End()
		}
		err := s.Ask(ctx, b, func(i int, m netlink.Message) {
			e, err := parseEntry(m.Body)
			if err != nil || e.number() != some[i].ID { // another flow has its addresses now
				each(first+i, nil)
				return
			}
			each(first+i, &e)
		}, func(i int, err error) {
			if errors.Is(err, unix.ENOENT) {
				each(first+i, nil)
			}
		})
		if err != nil {
			return fmt.Errorf("conntrack: look up flows: %w", err)
		}
	}
	return nil
}

// NewFlow is a flow whose first packet has passed all rules.
type NewFlow struct {
	Proto    model.Proto
	Src, Dst netip.AddrPort // as its client sent it
	To, Sees netip.AddrPort // the endpoint it was sent to, and the client as that sees it
}

// Translated reports whether rules gave it another destination.
func (f NewFlow) Translated() bool { return f.To != f.Dst }

// NewFlows receives notices of new flows, in the network namespace of the thread that opens it.
type NewFlows struct{ *netlink.Listener }

// ListenNew opens it. It receives flows from then on.
func ListenNew() (*NewFlows, error) {
	l, err := netlink.Listen(netlink.GroupNewFlows)
	if err != nil {
		return nil, fmt.Errorf("conntrack events: %w", err)
	}
	return &NewFlows{l}, nil
}

// Each calls handle for new flows until ctx ends, or handle returns done.
func (n *NewFlows) Each(ctx context.Context, handle func(NewFlow) (done bool)) error {
	return n.Listener.Each(ctx, func(m netlink.Message) bool {
		flow, ok := newFlow(m)
		return ok && handle(flow)
	})
}

// newFlow reads a notice.
func newFlow(m netlink.Message) (f NewFlow, ok bool) {
	if m.Type != msgNew {
		return f, false
	}
	var orig, reply tuple
	var okOrig, okReply bool
	for kind, value := range m.Attrs() {
		switch kind {
		case ctaTupleOrig:
			orig, okOrig = parseTuple(value)
		case ctaTupleReply:
			reply, okReply = parseTuple(value)
		}
	}
	return NewFlow{Proto: orig.proto, Src: orig.src, Dst: orig.dst, To: reply.src, Sees: reply.dst}, okOrig && okReply
}

// Beginnings reads the flows that begin, of all protocols, some at a time. Those that nothing has redirected are left out.
type Beginnings struct{ events *netlink.Socket }

// OpenBeginnings opens it in the network namespace of the calling thread. Unmarked is that of Follower.SetUnmarked.
func OpenBeginnings(unmarked bool) (*Beginnings, error) {
	if err := reports(); err != nil {
		return nil, err
	}
	s, err := netlink.Open()
	if err != nil {
		return nil, fmt.Errorf("conntrack events: %w", err)
	}
	s.SetBuffers(0, eventBuffer)
	_ = s.Filter(program(false, unmarked)) // without it there is only more to read
	if err := s.Join(netlink.GroupNewFlows); err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack events: %w", err), s.Close())
	}
	return &Beginnings{s}, nil
}

// Close ends the reports.
func (b *Beginnings) Close() error { return b.events.Close() }

// Look calls each for the flows that have begun since the last call, so many at most: the others wait. Lost are those that did not
// fit into the queue.
func (b *Beginnings) Look(most int, each func(NewFlow)) (lost bool, err error) {
	_, lost, err = b.events.Reports(most, func(m netlink.Message) {
		if flow, ok := newFlow(m); ok && flow.Translated() {
			each(flow)
		}
	})
	if err != nil {
		return lost, fmt.Errorf("conntrack events: %w", err)
	}
	return lost, nil
}

// program is classic BPF that passes the reports of new flows that are TCP, or any, and, unless unmarked,
// redirected. Netfilter's attributes begin behind two headers; SKF_AD_NLATTR and SKF_AD_NLATTR_NEST
// replace A, where a search begins, by the place of attribute X, 0 if there is none.
func program(onlyTCP, unmarked bool) []unix.SockFilter {
	const (
		load      = unix.BPF_LD | unix.BPF_IMM
		find      = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		attr      = 0xfffff000 + 12 // SKF_AD_OFF + SKF_AD_NLATTR
		nest      = 0xfffff000 + 16 // SKF_AD_OFF + SKF_AD_NLATTR_NEST
		begin     = netlink.HeaderLen + netlink.FamilyLen
		attrValue = 4 // behind the attribute's own header
		all       = 0xffffffff
	)
	var p []unix.SockFilter
	add := func(code uint16, k uint32, jump ...uint8) {
		f := unix.SockFilter{Code: code, K: k}
		if len(jump) == 2 {
			f.Jt, f.Jf = jump[0], jump[1]
		}
		p = append(p, f)
	}
	drop := func() { add(unix.BPF_RET|unix.BPF_K, 0) }
	search := func(how, kind uint32) {
		add(unix.BPF_LDX|unix.BPF_IMM, kind)
		add(find, how)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, 0, 0, 1)
		drop()
	}
	if onlyTCP {
		add(load, begin)
		search(attr, ctaTupleOrig)
		search(nest, ctaTupleProto)
		search(nest, ctaProtoNum)
		add(unix.BPF_MISC|unix.BPF_TAX, 0)
		add(unix.BPF_LD|unix.BPF_B|unix.BPF_IND, attrValue)
		add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, unix.IPPROTO_TCP, 1, 0)
		drop()
	}
	if !unmarked {
		add(load, begin)
		search(attr, ctaStatus)
		add(unix.BPF_MISC|unix.BPF_TAX, 0)
		add(unix.BPF_LD|unix.BPF_W|unix.BPF_IND, attrValue)
		add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, dstNAT, 1, 0)
		drop()
	}
	add(unix.BPF_RET|unix.BPF_K, all)
	return p
}
