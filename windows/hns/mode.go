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

// plan is for a current Windows and an l2bridge network: what the node has is
// not known here.
func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	o := Newest().asked(c)
	return dataplane.PlanOf(NewCompiler(o), host, ports, func(objects map[Key]Value) string { return Script(objects, o.Overlay) })
}

// options are the configured options that this HNS supports.
func options(v Version, n Network, c *config.Config) Options {
	f := v.Features()
	d := describe(n)
	return Options{Overlay: d.overlay, Subnets: d.subnets, DSR: f.DSR, Affinity: f.Affinity, DualStack: f.DualStack}.asked(c)
}

// asked returns the options with what a configuration asks for.
func (o Options) asked(c *config.Config) Options {
	o.ClientDSR, o.Trust = c.Windows.DSR, c.Windows.SourceRanges == config.TrustRanges
	o.Failover = c.Failover == config.FailoverOn || c.Failover == config.FailoverObserve // auto leaves out what cannot be
	o.Probes = Probes{Forward: c.Windows.ForwardHealthCheckVIP}
	if a, err := netip.ParseAddrPort(c.HealthAddress); err == nil {
		o.Probes.Port = a.Port()
	}
	return o
}

// asking is how long a pause is between two questions to an HNS that is not
// ready yet, or has no network yet: a CNI plug-in makes it when it starts.
const asking = time.Second

// Open opens the data plane of an HNS, which it owns from now on. It waits for
// HNS and for the network until ctx ends, or looks once (Settings): without them the error wraps
// dataplane.ErrNotReady.
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
		calls.tooSlow = math.MaxInt64 // the next look would be beside a call that hangs
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

// Probe reports whether there is an HNS that is new enough, and waits for it until ctx
// ends. An HNS that is there and does not answer is no reason to use another mode
// (dataplane.ErrUndecided): the load balancers in it work.
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

// await asks until there is an answer, and returns the last error when ctx ends.
// A system without HNS gets none later either.
func await[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	var last error
	for {
		v, err := ask()
		switch {
		case err == nil || is(err, codeModuleNotFound):
			return v, err
		case ctx.Err() == nil:
			last = err
		case errors.Is(err, ctx.Err()) && last != nil: // it was not asked, or not for long
			return v, last
		default:
			return v, err
		}
		if !sleep.For(ctx, asking) {
			return v, err
		}
	}
}

// interfaceMAC returns the hardware address of the interface that has an
// address, as HNS writes it.
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
	Ports     int        // of the node's dynamic range; 0 for defaultPorts
	DSR       bool       // cluster IPs use DSR, which pods' endpoints must be made for
	Journal   string     // the journal of owned load balancers; empty for none
	Log       *slog.Logger

	// Pause is the least time between two replacements of a load balancer where HNS cannot modify it
	// in place; 0 is none.
	Pause time.Duration
	// Once means that HNS and its network are looked for once when they are opened, and not
	// waited for.
	Once bool

	// Folder makes the journal's folder, and deletes those of its files that
	// another user has made: the journal decides what is deleted. Nil
	// makes a plain one.
	Folder func(dir string, files ...string) error
	// MAC returns the hardware address of the interface that has an address. Only
	// overlay networks need it.
	MAC func(netip.Addr) (string, error)
	// Instance identifies the process of the HNS service, without a call to it: 0 while the
	// service does not run. Nil disables the check.
	Instance func() (uint32, error)
	// SourceVIPFile is where flannel's start scripts leave the source VIP; empty
	// for nowhere.
	SourceVIPFile string
}

// Evaluate: what the virtual switch does with load
// balancers is assumed as in windows/test/hnsemu: packets without one pass unchanged;
// those without External answer this node's pods and processes only; node ports do
// not answer the node itself; with DSR endpoints see the client.
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
				continue // HNS cannot reach an endpoint that it does not have
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

// balancerFor finds the load balancer of a packet: by its address, else as a node
// port.
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

// patience is how long HNS, and at a start its network, is waited for. The service
// manager restarts the proxy after that.
const patience = time.Minute

// Remove deletes all our objects from an HNS but the endpoints that load balancers of others
// depend on, and closes it. The network of the pods may be gone, or indistinguishable from
// others: load balancers are owned by the journal, endpoints by their names, in any network.
func Remove(ctx context.Context, h HNS, s Settings) error {
	d, err := driverFor(ctx, h, s)
	if err != nil {
		return errors.Join(err, h.Close())
	}
	c, release := d.begin(ctx)
	defer release()
	others, err := c.removeBalancers()
	if err == nil { // which endpoints are part of
		err = c.removeEndpoints(others)
	}
	return errors.Join(err, d.Close())
}

// driverFor returns a driver of an HNS once that answers.
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

// removeBalancers deletes the load balancers that the journal knows, and returns all others.
// Those that HNS does not show are not forgotten: it may show them again.
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
		var k Key // without a frontend, the id names it
		if keys, _ := keysOf(lb); len(keys) > 0 {
			k = keys[0]
		}
		if err := c.remove(k, lb.ID); err != nil {
			failed = append(failed, fmt.Errorf("load balancer %s: %w", lb.ID, err))
		}
	}
	return others, errors.Join(failed...)
}

// removeEndpoints deletes the endpoints with our names. Those that load balancers of others
// depend on are left and logged: kube-proxy takes any endpoint that has an address as its own.
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
