// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/platform"
)

// origin is what a question is asked of: the running tandem, a snapshot, or manifests. All verbs have it decided here.
type origin struct {
	path  string       // --snapshot
	flags *configFlags // with --manifests; nil for verbs that manifests do not answer
	opens bool         // with manifests the data plane of the machine is read

	applied bool // manifests are as people apply them: see manifests.ReadAsApplied

	// cluster, if set, sends the question to the tandem of one cluster node, and nowhere else:
	// the context of the verb leads there.
	cluster *cluster
}

// register adds --snapshot, which excludes some flags of a verb, and, where manifests answer too, the flags of a
// configuration.
func (o *origin) register(c *cobra.Command, excludes ...string) {
	if o.cluster != nil {
		return
	}
	if o.flags != nil {
		o.flags.register(c)
	}
	c.Flags().StringVar(&o.path, "snapshot", "", "read this snapshot instead of asking the running tandem; - for the standard input")
	if o.flags != nil {
		c.MarkFlagsMutuallyExclusive("snapshot", "manifests")
	}
	for _, flag := range excludes {
		c.MarkFlagsMutuallyExclusive("snapshot", flag)
	}
}

// ask puts a question to what its flags name.
func ask[P, A any](cmd *cobra.Command, from *origin, v question.Verb[P, A], parameters P) (a A, err error) {
	d, err := from.document(cmd)
	switch {
	case err != nil:
		return a, err
	case d != nil:
		return v.Answer(cmd.Context(), d, parameters)
	}
	return platform.Ask(cmd.Context(), v, parameters)
}

// document is that of a snapshot or of manifests; nil to ask the running tandem.
func (o *origin) document(cmd *cobra.Command) (*question.Document, error) {
	switch {
	case o.path != "":
		file, err := readSnapshot(cmd, o.path)
		if err != nil {
			return nil, err
		}
		d, _, err := platform.Replay(file)
		return d, err
	case o.cluster == nil && o.flags != nil && cmd.Flags().Changed("manifests"):
		return o.manifests(cmd)
	}
	return nil, nil
}

func readSnapshot(cmd *cobra.Command, path string) (file *snapshot.File, err error) {
	in := cmd.InOrStdin()
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	if file, err = snapshot.Read(in); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, nil
}

// manifests is the document of what those mean on this node.
func (o *origin) manifests(cmd *cobra.Command) (*question.Document, error) {
	needs := []need{needManifests}
	if o.opens {
		needs = append(needs, needMode)
	}
	c, notes, err := o.flags.config(needs...)
	if err != nil {
		return nil, err
	}
	printNotes(cmd, notes)
	return manifestsDocument(cmd, c, o.applied)
}

// manifestsDocument is the document of the manifests that a configuration names; applied, once an API server has assigned
// what they leave to it.
func manifestsDocument(cmd *cobra.Command, c *config.Config, applied bool) (*question.Document, error) {
	read := readFolder
	if applied {
		read = readApplied
	}
	in, err := read(cmd.Context(), c)
	if err != nil {
		return nil, err
	}
	mode, err := platform.Find(c.Mode)
	if err != nil {
		return nil, err
	}
	node := ownNode(in.Nodes, c.NodeName)
	machine := hereWithout(node, c)
	host := resolve.Host(c, node, in.ServiceCIDRs, machine)
	listeners, done := sockets(c)
	defer done()
	services, _ := track.OnceAsking(host, &in.Objects, listeners)
	d := question.Planned(mode, c, &engine.Snapshot{Host: host, Services: services})
	d.Notes = in.assumed
	d.Rejected = append(in.problems, resolve.HostProblems(c, node, in.ServiceCIDRs, machine, resolve.AnyNodePort(in.Services))...)
	for _, s := range services {
		d.Rejected = append(d.Rejected, s.Problems...)
		d.Notes = append(d.Notes, ownAddresses(host, s)...)
	}
	d.Plane.Trace = func(ctx context.Context, ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
		return traceHere(ctx, mode, c, d, ports, p)
	}
	return d, nil
}

// traceHere follows a packet through the data plane that this machine has in a mode, beside what a document has programmed.
func traceHere(ctx context.Context, mode dataplane.Mode, c *config.Config, d *question.Document, ports []*model.Port, p oracle.Packet) (t dataplane.Trace, err error) {
	b, err := mode.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return t, fmt.Errorf("mode %s: %w", mode.Name, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	host := *d.Host
	host.Salt = platform.Salt()
	b.SetHost(&host)
	for _, port := range d.Ports() {
		b.Update([]model.Delta{{New: port}})
	}
	return b.Trace(ctx, ports, p)
}

// needManifests is what plan needs: it reads no API server.
func needManifests(c *config.Config) []config.Finding {
	if c.Manifests != "" {
		return nil
	}
	return []config.Finding{{Name: "--manifests", Text: "required: a folder or file of manifests, or - for the standard input"}}
}

// needMode is what trace needs with --manifests: which data plane to read.
func needMode(c *config.Config) []config.Finding {
	if c.Mode != config.Auto {
		return nil
	}
	return []config.Finding{{Name: "--proxy-mode", Text: "required with --manifests: the mode whose data plane is read"}}
}

// hereWithout is this machine where manifests have no Node object that would say more, and
// where no name says that another is meant. Where its addresses cannot be read it has none.
func hereWithout(node *model.Node, c *config.Config) (m model.Machine) {
	if node == nil && c.NodeIsHost {
		m.Addresses, _ = platform.LocalAddresses()
	}
	return m
}

// sockets tells what listens on this machine, where it is the node and can tell.
func sockets(c *config.Config) (ask track.Ask, done func()) {
	if c.NodeIsHost {
		if l, err := platform.Listeners(); err == nil {
			return l.At, func() { l.Close() }
		}
	}
	return nil, func() {}
}

// ownAddresses are notes on external IPs that are the node's own addresses and that a Service has.
func ownAddresses(host *model.Host, s *track.View) (notes []string) {
	for _, place := range resolve.AsksOwn(host, s.Object) {
		if slices.ContainsFunc(s.Ports, func(p *model.Port) bool {
			return p.ID.Proto == place.Proto && slices.ContainsFunc(p.Frontends, func(f model.Frontend) bool {
				return f.Kind == model.KindExternalIP && f.At == place.At
			})
		}) {
			notes = append(notes, fmt.Sprintf("Service %s: external IP %s (%s) is an address of this node; it is served while no process of the node listens there, and other nodes leave it to this one",
				s.Object.Name, place.At, place.Proto))
		}
	}
	return notes
}

func ownNode(nodes []*model.Node, name string) *model.Node {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// inputs are the objects of a folder of manifests or an API server at one moment.
type inputs struct {
	model.Objects
	problems []model.Problem // of inputs that are not among them
	assumed  []string        // in the place of what an API server will assign
	machine  model.Machine   // this one
}

// readInputs reads the source that a configuration names, once, and the addresses of
// this machine.
func readInputs(ctx context.Context, c *config.Config) (in inputs, err error) {
	if c.Manifests == "" {
		in, err = listServer(ctx, c)
	} else {
		in, err = readFolder(ctx, c)
	}
	if err != nil {
		return in, err
	}
	in.machine.Addresses, err = platform.LocalAddresses()
	return in, err
}

func readFolder(ctx context.Context, c *config.Config) (inputs, error) {
	found, err := manifests.Read(ctx, c.Manifests, c.NodePortRange)
	if err != nil {
		return inputs{}, err
	}
	return inputs{Objects: found.Objects, problems: manifests.Models(found.Problems)}, nil
}

// readApplied reads manifests as people apply them, and gives them what an API server would.
func readApplied(ctx context.Context, c *config.Config) (inputs, error) {
	found, err := manifests.ReadAsApplied(ctx, c.Manifests, c.NodePortRange)
	if err != nil {
		return inputs{}, err
	}
	in := inputs{Objects: found.Objects, problems: manifests.Models(found.Problems)}
	in.assumed = question.Assign(&in.Objects, found.Unassigned, c.NodePortRange)
	return in, nil
}

// listServer watches the API server until everything was delivered, this machine's
// Node included.
func listServer(ctx context.Context, c *config.Config) (inputs, error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	g := &collector{node: c.NodeName, objects: map[model.Key]model.Object{}, complete: stop}
	hooks := watch.Hooks{Connected: func(all []netip.AddrPort) { g.change(func() { g.servers = all }) }}
	source, err := watch.Open(c, slog.New(slog.DiscardHandler), hooks)
	if err != nil {
		return inputs{}, err
	}
	if err := source.Run(following, g); err != nil {
		return inputs{}, err
	}
	if err := ctx.Err(); err != nil {
		return inputs{}, fmt.Errorf("reading %s failed: %s: %w", c.Source(), g.missing(source), err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	in := inputs{problems: g.problems, machine: model.Machine{APIServers: g.servers}}
	for _, o := range g.objects {
		in.Add(o)
	}
	return in, nil
}

// missing describes the inputs that were not delivered, and why, as far as known.
func (g *collector) missing(source *watch.Source) string {
	var why []string
	for _, r := range source.Resources() {
		if r.Err != "" {
			why = append(why, r.Name+": "+r.Err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.problems {
		why = append(why, p.String())
	}
	if len(why) == 0 && !g.hasNode() {
		why = append(why, "there is no Node "+g.node)
	}
	if len(why) == 0 {
		why = append(why, "timeout")
	}
	return strings.Join(why, "; ")
}

// collector keeps the delivered objects (model.Sink) and calls complete after the last one.
type collector struct {
	mu       sync.Mutex
	node     string // this machine's
	objects  map[model.Key]model.Object
	servers  []netip.AddrPort
	problems []model.Problem
	synced   bool
	complete func()
}

// change makes a change, and checks whether that was all.
func (g *collector) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	if g.synced && g.hasNode() {
		g.complete()
	}
}

func (g *collector) hasNode() bool { return g.objects[(&model.Node{Name: g.node}).Key()] != nil }

func (g *collector) Set(o model.Object) { g.change(func() { g.objects[o.Key()] = o }) }

func (g *collector) Delete(o model.Object) { g.change(func() { delete(g.objects, o.Key()) }) }

func (g *collector) Problems(ps []model.Problem) { g.change(func() { g.problems = ps }) }

func (g *collector) Unread(model.Unread) {}

func (g *collector) Synced(bool) { g.change(func() { g.synced = true }) }
