// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/suspect"
	"github.com/tandem-proxy/tandem/core/watch"
)

// system is what Tandem uses of an operating system besides modes. thisSystem, in
// platform_{linux,windows,other}.go, returns that of the running one.
type system struct {
	noNode      error // why no proxy runs on this system; nil where one can
	harden      func()
	privileged  func() (lacks string) // missing requirements for programming this network; empty for none
	lock        func() (Held, error)
	dialControl func(context.Context) (net.Conn, error) // to the holder of the lock
	network     func() (network, error)                 // that of the calling thread
	addresses   func() (addresses, error)
	salt        func() (uint64, error)    // of model.Machine; with an error one that the next process will not have
	knownSalt   func() uint64             // the stored one; 0 where none was made yet
	listeners   func() (Listening, error) // nil where they cannot be told
	flows       func() (flowTable, error)
	account     func() (spent func() time.Duration)                                             // see flows.Hooks; nil where the clock has to do
	listFlows   func() flowLister                                                               // nil where they are not listed
	live        func(ctx context.Context, t question.Trace, from string) (question.Live, error) // follows a real packet
	watch       func(dataplane.Mode) (source monitor.Source, notShown []string, err error)      // new connections, as the kernel sees them
	writers     func() (writers, error)                                                         // other writers to the data plane; nil where the system does not report them
	observe     func() (tracked, error)                                                         // TCP flows in the same table
	facts       func(context.Context, *config.Config) *diagnosis.Facts
	parameters  func(*config.Config, *slog.Logger) []error // sets those of the kernel
	usage       func() history.Usage                       // of this process; nil where it is not known
	limitMemory func(*slog.Logger)
	releaseText func() error                             // unmaps the program's pages: those in use come back
	handover    func(*slog.Logger) func() relay.Handover // opens what passes sockets between the modes of a proxy, and to the next process

	modes   func() []dataplane.Mode // a simulation's, or an open proxy's, in the order of auto; nil for Modes
	garbage func(percent int)       // sets how much garbage may be, until collect is called
	collect func()                  // returns the memory of garbage
	dial    watch.Dialer            // connects to the API server; nil is as usual
}

// CheckNode returns why no proxy runs on this system; nil where one can.
func CheckNode() error { return thisSystem().noNode }

// Held is a lock that is held, see Lock.
type Held interface {
	// Listen opens the control socket, for the administrator and the user of this
	// process alone.
	Listen() (net.Listener, error)
	io.Closer
}

// network is where a proxy works: the machine, or one network namespace of it.
type network interface {
	// Do runs f on a thread in the network.
	Do(f func() error) error
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	io.Closer
}

// addresses are those of this machine.
type addresses interface {
	List() ([]model.LocalAddress, error)
	Wait(context.Context) // until Changed may be true, or the context's end
	Changed() bool        // since the last call, as far as is known; cheap
	io.Closer
}

// flowTable is a table of tracked flows, to delete stale ones from.
type flowTable interface {
	flows.Table
	// DeleteThese deletes the stale ones of some flows, without looking for others.
	DeleteThese(ctx context.Context, all []suspect.Flow, stale func(flows.Flow) bool) (deleted int, err error)
	io.Closer
}

// flowLister lists all tracked flows of the calling thread's network, for people.
type flowLister interface {
	Each(context.Context, func(flows.Flow)) error
	// Traffic passes the bytes so far of each, with the destination that its client asked for and the one that answers,
	// and says why there are no bytes.
	Traffic(ctx context.Context, each func(proto model.Proto, dst, from netip.AddrPort, bytes uint64)) (noBytes string, err error)
	io.Closer
}

// writers records which other programs write to the data plane.
type writers interface {
	engine.Writers
	// Own returns a context in which commands are run for this process: they are no other
	// programs.
	Own(ctx context.Context) context.Context
	// Listen receives until ctx ends, and calls told, which must not block, after notices.
	Listen(ctx context.Context, told func()) error
	io.Closer
}

// portable is a system that lacks everything.
func portable() system {
	unsupported := errors.New("unsupported on this system")
	return system{
		harden:      func() {},
		privileged:  func() string { return "" },
		lock:        func() (Held, error) { return noLock{unsupported}, nil },
		dialControl: func(context.Context) (net.Conn, error) { return nil, unsupported },
		network:     func() (network, error) { return &machineNetwork{}, nil },
		addresses:   func() (addresses, error) { return nil, unsupported },
		salt:        func() (uint64, error) { return 0, nil },
		knownSalt:   func() uint64 { return 0 },
		flows:       func() (flowTable, error) { return nil, unsupported },
		observe:     func() (tracked, error) { return nil, unsupported },
		live: func(context.Context, question.Trace, string) (question.Live, error) {
			return question.Live{}, errors.New("--live: HNS reports no single packets; follow them with \"pktmon start --capture\", or \"vfpctrl /get-port-counter\" for the counters of VFP")
		},
		watch: func(m dataplane.Mode) (monitor.Source, []string, error) {
			return nil, nil, fmt.Errorf("connections cannot be monitored in mode %s: HNS reports none; \"pktmon start --capture\" shows packets", m.Name)
		},
		facts:       func(context.Context, *config.Config) *diagnosis.Facts { return &diagnosis.Facts{System: runtime.GOOS} },
		parameters:  func(*config.Config, *slog.Logger) []error { return nil },
		limitMemory: func(*slog.Logger) {},
		releaseText: func() error { return nil },
		handover:    func(*slog.Logger) func() relay.Handover { return noHandover },
		garbage:     setGarbage,
		collect:     new(collector).collect,
	}
}

// asking is a system that is no node: it answers what needs no data plane of its own, from the
// API server, manifests or a snapshot. Nothing is served or removed there.
func asking(name string) system {
	none := fmt.Errorf("no tandem runs on %s: nodes have Linux or Windows; ask theirs with tandem kubectl, or a --snapshot of one", name)
	s := portable()
	s.noNode = none
	s.parameters = func(*config.Config, *slog.Logger) []error { return []error{none} }
	s.lock = func() (Held, error) { return nil, none }
	s.dialControl = func(context.Context) (net.Conn, error) { return nil, none }
	return s
}

// machineNetwork is the network of a system without network namespaces.
type machineNetwork struct{ net.ListenConfig }

func (*machineNetwork) Do(f func() error) error { return f() }
func (*machineNetwork) Close() error            { return nil }

// noLock is held where there is nothing to share and no control socket.
type noLock struct{ unsupported error }

func (l noLock) Listen() (net.Listener, error) { return nil, l.unsupported }
func (noLock) Close() error                    { return nil }

// tracked is the kernel's table of flows as an observer.
type tracked interface {
	observer
	SetUnmarked(bool) // see dataplane.Mode
	Stop()            // until New is called again
	io.Closer
}

// observer shows the TCP flows that are being opened through this node.
type observer interface {
	// New calls each for the flows that have begun since the last call, with their state if it is
	// known, and tells whether those are all of them.
	New(ctx context.Context, each func(f suspect.Flow, s suspect.State, since time.Time)) (all bool, err error)
	// States calls each for flows, by their place, with their state now.
	States(ctx context.Context, flows []suspect.Flow, each func(i int, s suspect.State)) error
	// Prior returns endpoints that have answered a local address not long before the first New, at most so many,
	// and what Waiting does, of one walk.
	Prior(ctx context.Context, local func(netip.Addr) bool, most int) (answered []netip.AddrPort, waiting []suspect.Flow, err error)
	// Waiting returns the flows that wait for an answer, as far as those are known that New has not shown: all,
	// or, of more than so many, one more. It takes the time of a walk over all flows.
	Waiting(ctx context.Context, most int) ([]suspect.Flow, error)
	// Wait waits until there may be new flows, or ctx ends. It may be called beside the others.
	Wait(ctx context.Context)
	// Spent is the CPU time of all this.
	Spent() time.Duration
}

// Harden makes the process load libraries from the system's folder only, never
// from its own or the one it was started from. It is for the first line of a
// program; systems that cannot do it do not need it.
func Harden() { thisSystem().harden() }

// Lock makes the caller the only tandem that writes on this machine, or in the
// network namespace of the calling thread, until it closes the lock or exits.
// On systems without data planes to share it does nothing.
func Lock() (Held, error) { return thisSystem().lock() }

// Prepare sets what a configuration asks of the system besides Services, and
// settings that stay when the process ends: only they need more privileges than
// CAP_NET_ADMIN, and what `--init-only` does. What cannot be set is logged with
// what to do, and returned where the system has such a parameter: in a container it
// often is right already, and a proxy serves without it.
func Prepare(c *config.Config, log *slog.Logger) error { return thisSystem().set(c, log) }

func (s system) set(c *config.Config, log *slog.Logger) error {
	var failed []error
	for _, err := range s.parameters(c, log) {
		log.Warn("setting system parameter failed", "err", err)
		if !errors.Is(err, fs.ErrNotExist) { // of connection tracking that is not loaded yet
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Listeners tells which processes of this machine listen. It is an error where the system cannot
// tell. Close it after use.
func Listeners() (Listening, error) {
	open := thisSystem().listeners
	if open == nil {
		return nil, errors.New("listening processes unknown on this system")
	}
	return open()
}

// LocalAddresses returns the addresses of this machine, read once.
func LocalAddresses() ([]model.LocalAddress, error) {
	a, err := thisSystem().addresses()
	if err != nil {
		return nil, err
	}
	defer a.Close()
	return a.List()
}

// Salt returns that of this machine (model.Machine), as a tandem that runs here has it; 0 where
// there is none.
func Salt() uint64 { return thisSystem().knownSalt() }

// machine holds the facts of this machine; core/resolve interprets them
// for Services.
type machine struct {
	log       *slog.Logger
	addresses addresses // nil where they cannot be opened
	unread    bool      // the last attempt to read them failed

	mu    sync.Mutex
	facts model.Machine
}

// Listening tells on which of some places of this machine processes listen. It is used by one goroutine
// at a time.
type Listening interface {
	At(places []model.Listener) ([]model.Listener, error)
	Close() error
}

// openMachine reads the addresses of this machine for the first time, as far as
// they could be opened.
func openMachine(a addresses, err error, log *slog.Logger) *machine {
	m := &machine{log: log}
	if err == nil {
		m.addresses = a
		_, err = m.readAddresses()
	}
	if err != nil {
		log.Warn("reading this machine's addresses failed; only the Node object's addresses are protected from Services", "err", err)
	}
	return m
}

// now returns the current facts. It is safe for concurrent use.
func (m *machine) now() model.Machine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts
}

// local reports whether an address is this machine's. It is safe for concurrent use.
func (m *machine) local(a netip.Addr) bool {
	return slices.ContainsFunc(m.now().Addresses, func(l model.LocalAddress) bool { return l.Prefix.Addr() == a })
}

// readAddresses reports whether they are others than before. After an error they
// are as before.
func (m *machine) readAddresses() (changed bool, err error) {
	all, err := m.addresses.List()
	if m.unread = err != nil; m.unread {
		return false, err
	}
	seen := make(map[model.LocalAddress]bool, len(all))
	all = slices.DeleteFunc(all, func(a model.LocalAddress) bool {
		again := seen[a]
		seen[a] = true
		return again
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = !slices.Equal(all, m.facts.Addresses)
	m.facts.Addresses = all
	return changed, nil
}

// setAPIServers reports whether these are others than before. It is safe for
// concurrent use.
func (m *machine) setAPIServers(all []netip.AddrPort) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = !slices.Equal(all, m.facts.APIServers)
	m.facts.APIServers = all
	return changed
}

// addressesEvery is the least time between two readings of the addresses.
const addressesEvery = 500 * time.Millisecond

// follow reads the addresses when they may have changed, or could not be read,
// and calls changed when they have, until ctx ends.
func (m *machine) follow(ctx context.Context, changed func()) {
	if m.addresses == nil {
		return
	}
	for sleep.For(ctx, addressesEvery) {
		again := m.unread
		if !again {
			if m.addresses.Wait(ctx); ctx.Err() != nil {
				return
			}
			if !m.addresses.Changed() {
				continue
			}
		}
		differ, err := m.readAddresses()
		if err != nil && !again {
			m.log.Warn("reading this machine's addresses failed; retrying", "err", err)
		}
		if differ {
			changed()
		}
	}
}
