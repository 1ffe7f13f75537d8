// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Name is the mode's name, kube-proxy's for Windows.
const Name config.Mode = "kernelspace"

// Mode is the kernelspace mode.
func Mode() dataplane.Mode {
	return onWindows(dataplane.Mode{Name: Name, System: "windows", Plan: plan})
}

// plan assumes a current Windows and an l2bridge network: the node's are unknown here.
func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := Newest().configured(c)
	return dataplane.PlanOf(NewCompiler(o), host, ports, func(objects map[Key]Value) string { return Script(objects, o.Overlay) })
}

// options are the configured options that this HNS supports.
func options(v Version, n Network, c *config.Config) Options {
	f := v.Features()
	d := describe(n)
	return Options{Overlay: d.overlay, Subnets: d.subnets, DSR: f.DSR, Affinity: f.Affinity, DualStack: f.DualStack}.configured(c)
}

// configured returns the options with the settings of a configuration.
func (o Options) configured(c *config.Config) Options {
	o.ClientDSR, o.Trust = c.Windows.DSR, c.Windows.SourceRanges == config.TrustRanges
	o.Failover = c.Failover == config.FailoverOn || c.Failover == config.FailoverObserve // auto is silent
	o.Probes = Probes{Forward: c.Windows.ForwardHealthCheckVIP}
	if a, err := netip.ParseAddrPort(c.HealthAddress); err == nil {
		o.Probes.Port = a.Port()
	}
	return o
}

// askEvery is the pause between two questions to an HNS that is not ready, or has no
// network yet: a CNI plug-in creates it.
const askEvery = time.Second

// Open opens the data plane of an HNS, which it owns from now on, also after an error. It waits for
// HNS and for the network until ctx ends, or looks once (Settings.Once): without them the error wraps
// dataplane.ErrNotReady, or dataplane.ErrAbsent on a system without HNS.
func Open(ctx context.Context, h HNS, c *config.Config, s Settings) (_ dataplane.Backend, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close())
		}
	}()
	s, v, n, err := find(ctx, h, c, s)
	if err != nil {
		return nil, err
	}
	d, err := NewDriver(h, v, s)
	if err != nil {
		return nil, err
	}
	return &backend{Backend: dataplane.New(NewCompiler(options(v, n, c)), d), driver: d}, nil
}

// find completes the settings, and waits for HNS and for the network.
func find(ctx context.Context, h HNS, c *config.Config, s Settings) (Settings, Version, Network, error) {
	s.Ports = c.Windows.DynamicPorts
	s.Network, s.Root, s.DSR = cmp.Or(c.Windows.NetworkName, s.Network), c.Windows.RootHNSEndpoint, c.Windows.DSR
	if text := c.Windows.SourceVIP; text != "" {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return s, Version{}, Network{}, fmt.Errorf("source VIP: %w", err)
		}
		s.SourceVIP = a
	}
	calls := newCalls(h, s.Log)
	look := await[Network]
	version := calls.version
	if s.Once {
		calls.tooSlow = math.MaxInt64 // only ctx ends the call: after a time-out the next look would run beside it
		version = calls.askVersion
		look = func(_ context.Context, ask func() (Network, error)) (Network, error) { return ask() }
	}
	v, err := version(ctx)
	if is(err, codeModuleNotFound) {
		return s, v, Network{}, fmt.Errorf("HNS %w: %w", dataplane.ErrAbsent, err)
	}
	if err != nil {
		return s, v, Network{}, notReady(fmt.Errorf("HNS: %w", err))
	}
	n, err := look(ctx, func() (Network, error) {
		all, err := calls.networks(ctx)
		if err != nil {
			return Network{}, err
		}
		return FindNetwork(all, s.Network)
	})
	return s, v, n, notReady(err)
}

func notReady(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", dataplane.ErrNotReady, err)
}

// Probe returns nil if there is an HNS that is new enough, and waits for its answer until ctx
// ends. If HNS exists and does not answer, the error wraps dataplane.ErrUndecided: its
// load balancers work, which is no reason to use another mode.
func Probe(ctx context.Context, h HNS, s Settings) error {
	v, err := newCalls(h, s.Log).version(ctx)
	if err == nil {
		return v.usable()
	}
	if is(err, codeModuleNotFound) || notImplemented(err) {
		return fmt.Errorf("HNS: %w", err)
	}
	if s.Instance != nil {
		if _, none := s.Instance(); errors.Is(none, dataplane.ErrAbsent) {
			return fmt.Errorf("HNS: %w", none)
		}
	}
	return fmt.Errorf("HNS: %w; %w", err, dataplane.ErrUndecided)
}

// version waits for HNS to return its version.
func (c *calls) version(ctx context.Context) (Version, error) {
	return await(ctx, func() (Version, error) { return c.askVersion(ctx) })
}

func (c *calls) askVersion(ctx context.Context) (Version, error) {
	return do(ctx, c, "ask for the version", HNS.Version)
}

// await asks until there is an answer, and returns the last error when ctx ends. It returns at once
// if the system has no HNS.
func await[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	var last error
	for {
		v, err := ask()
		switch {
		case err == nil || is(err, codeModuleNotFound):
			return v, err
		case ctx.Err() == nil:
			last = err
		case errors.Is(err, ctx.Err()) && last != nil: // ctx ended before or during this attempt
			return v, last
		default:
			return v, err
		}
		if !sleep.For(ctx, askEvery) {
			return v, err
		}
	}
}

// interfaceMAC returns the MAC address of the interface that has an IP address, in the
// notation of HNS.
func interfaceMAC(a netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, x := range addrs {
			if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a {
				return strings.ReplaceAll(i.HardwareAddr.String(), ":", "-"), nil
			}
		}
	}
	return "", fmt.Errorf("no interface has %s", a)
}

// Settings are what a driver needs besides HNS itself.
type Settings struct {
	Network   string     // the network's name; empty to find it
	Root      string     // the name of the endpoint that represents the node; empty for none
	SourceVIP netip.Addr // of an overlay; the zero value to find it
	Ports     int        // size of the node's dynamic port range; 0 for defaultPorts
	DSR       bool       // cluster IPs use DSR, which pods' endpoints must be made for
	Journal   string     // the journal of owned load balancers; empty for none
	Log       *slog.Logger

	// Pause is the least time between two replacements of a load balancer, where HNS cannot modify it
	// in place; 0 is none.
	Pause time.Duration
	// Once: Open looks for HNS and its network once, and does not wait for them.
	Once bool

	// Folder creates the journal's folder, and deletes those of the files that an untrusted
	// user owns: the journal decides which load balancers are deleted. Nil creates a folder
	// only.
	Folder func(dir string, files ...string) error
	// MAC returns the MAC address of the interface that has an IP address. Only
	// overlay networks need it.
	MAC func(netip.Addr) (string, error)
	// Instance identifies the process of the HNS service, without a call to it: 0 while the
	// service does not run. Nil disables the check.
	Instance func() (uint32, error)
	// SourceVIPFile is the file in which flannel's start scripts leave the source VIP; empty
	// for none.
	SourceVIPFile string
}

// Evaluate assumes of the virtual switch, as windows/test/hnsemu does: packets without a load
// balancer pass unchanged; load balancers without External serve this node's pods and processes
// only; node ports do not serve the node itself; with DSR endpoints see the client's address.
func (*Compiler) Evaluate(objects map[Key]Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(p oracle.Packet) oracle.Outcome {
		b := balancerFor(objects, host, p)
		if b == nil {
			return oracle.Outcome{Fate: oracle.Pass}
		}
		out := oracle.Outcome{Fate: oracle.Forward}
		for _, t := range b.Endpoints {
			a := t.Addr
			if a.IsUnspecified() {
				a, _ = host.Primary(model.FamilyOf(a))
			}
			k := Key{Kind: KindRemote, Addr: a}
			if _, there := objects[k]; !t.Local && !there && !slices.Contains(host.IPs, a) {
				continue // no endpoint object: HNS cannot reach the address
			}
			hidden := !b.DSR || slices.Contains(host.IPs, p.Src)
			out.Endpoints = append(out.Endpoints, oracle.Target{
				Addr: netip.AddrPortFrom(a, b.Port), SNAT: hidden && !slices.Contains(host.IPs, a),
			})
		}
		slices.SortFunc(out.Endpoints, func(a, b oracle.Target) int { return a.Addr.Compare(b.Addr) })
		return out
	}
}

// balancerFor returns the load balancer of a packet: by destination address, else a node
// port's; nil for none.
func balancerFor(objects map[Key]Value, host *model.Host, p oracle.Packet) *Balancer {
	k := Key{Kind: KindBalancer, Proto: p.Proto, Port: p.Dst.Port(), Addr: p.Dst.Addr()}
	outside := p.Iface == oracle.Uplink
	if b := objects[k].Balancer; b != nil && (b.External || !outside) {
		return b
	}
	k.Addr = model.FamilyOf(p.Dst.Addr()).Unspecified()
	b := objects[k].Balancer
	if b == nil || p.Iface == "" || !slices.Contains(host.IPs, p.Dst.Addr()) || outside && !b.External {
		return nil
	}
	return b
}

func (*Compiler) Text(_ Key, v Value) string { return v.String() }

func (*Compiler) Opaque(Key, Value) bool { return false }

// patience bounds the waits for HNS and, at the start, for its network. The service manager
// restarts the proxy after that.
const patience = time.Minute

// Remove deletes all owned objects from an HNS, except endpoints that other programs' load
// balancers use, and closes it. It does so in all networks: that of the pods may no longer
// exist. The journal tells owned load balancers, the name owned endpoints.
func Remove(ctx context.Context, h HNS, s Settings) error {
	d, err := driverFor(ctx, h, s)
	if err != nil {
		return errors.Join(err, h.Close())
	}
	c, release := d.begin(ctx)
	defer release()
	others, err := c.removeBalancers()
	if err == nil { // else load balancers may still use the endpoints
		err = c.removeEndpoints(others)
	}
	return errors.Join(err, d.Close())
}

// driverFor waits for HNS, at most for patience, and returns a driver of it.
func driverFor(ctx context.Context, h HNS, s Settings) (*Driver, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, err := newCalls(h, s.Log).version(ctx)
	if is(err, codeModuleNotFound) {
		return nil, fmt.Errorf("HNS %w: %w", dataplane.ErrAbsent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("HNS: %w", err)
	}
	return NewDriver(h, v, s)
}

// removeBalancers deletes the owned load balancers, and returns all others. Owned ones that
// HNS does not list stay in the journal: it may list them again.
func (c *commit) removeBalancers() (others []LoadBalancer, err error) {
	doubts := c.journal.doubtful()
	all, err := c.balancers(c.ctx)
	if err != nil {
		return nil, fmt.Errorf("HNS: %w", err)
	}
	c.written(c.journal.own(doubts, all))
	var failed []error
	for _, lb := range all {
		if err := c.ctx.Err(); err != nil {
			return nil, errors.Join(append(failed, err)...)
		}
		if !c.journal.owns(lb.ID) {
			others = append(others, lb)
			continue
		}
		var k Key // zero if it has no frontend
		if keys, _ := keysOf(lb); len(keys) > 0 {
			k = keys[0]
		}
		if err := c.remove(k, lb.ID); err != nil {
			failed = append(failed, fmt.Errorf("load balancer %s: %w", lb.ID, err))
		}
	}
	return others, errors.Join(failed...)
}

// removeEndpoints deletes the owned endpoints. Those that other programs' load balancers use are
// kept and logged: kube-proxy adopts any endpoint with an address that it needs.
func (c *commit) removeEndpoints(others []LoadBalancer) error {
	used := map[string]bool{} // ids, and addresses
	for _, lb := range others {
		for _, id := range lb.HostComputeEndpoints {
			used[id] = true
		}
		for _, a := range vipsOf(lb) {
			used[a.String()] = true
		}
		used[lb.SourceVIP] = true
	}
	networks, err := c.calls.networks(c.ctx)
	if err != nil {
		return fmt.Errorf("HNS: %w", err)
	}
	var failed []error
	var left []string
	for _, n := range networks {
		all, err := c.endpoints(c.ctx, n.ID, nil)
		if err != nil && !notFound(err) {
			failed = append(failed, fmt.Errorf("network %s: %w", n.Name, err))
		}
		for _, e := range all {
			if _, own := ownedKey(e); !own && !isSource(e) {
				continue
			}
			if err := c.ctx.Err(); err != nil {
				return errors.Join(append(failed, err)...)
			}
			if used[e.ID] || slices.ContainsFunc(addresses(e), func(a netip.Addr) bool { return used[a.String()] }) {
				left = append(left, e.Name)
				continue
			}
			if err := c.deleteEndpoint(e.ID); err != nil {
				failed = append(failed, fmt.Errorf("endpoint %s: %w", e.Name, err))
			}
		}
	}
	if n := len(left); n > 0 {
		c.settings.Log.Warn("endpoints left that load balancers of other programs use; run cleanup again when these are gone", "count", n, "endpoints", left[:min(n, maxNamed)])
	}
	return errors.Join(failed...)
}
