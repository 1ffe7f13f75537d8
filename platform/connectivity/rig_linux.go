// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// serveTime is how long a proxy may take to start, and to program the made Services.
const serveTime = time.Minute

// Rig is made backends and clients around a proxy. It is used by one goroutine.
type Rig struct {
	site  Site
	net   *netns.Net
	dir   string   // of our own; empty for none
	file  string   // the manifests
	proxy *process // nil for the one that runs here
	enter func(func() error) error
}

// Open makes a rig with a proxy that serves the Services of its site. If it fails
// nothing is left behind.
func Open(ctx context.Context, o Options) (r *Rig, err error) {
	r = &Rig{site: Site{NodeName: "tandem-test", Families: o.Families, FirstPort: 30080}}
	if o.Folder == "" {
		err = r.openOwn(ctx, o)
	} else {
		err = r.openHere(ctx, o)
	}
	if err == nil {
		err = r.served(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// openOwn makes a node with a proxy of its own.
func (r *Rig) openOwn(ctx context.Context, o Options) (err error) {
	r.site.Ranges = [2]netip.Prefix{netip.MustParsePrefix("198.18.0.0/22"), netip.MustParsePrefix("fd00:198:18::/64")}
	for _, f := range o.Families {
		r.site.Node = append(r.site.Node, map[model.Family]netip.Addr{
			model.IPv4: netip.MustParseAddr("192.0.2.1"), model.IPv6: netip.MustParseAddr("2001:db8::1"),
		}[f])
	}
	if r.dir, err = os.MkdirTemp("", "tandem-connectivity-"); err != nil {
		return err
	}
	folder := filepath.Join(r.dir, "manifests")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	if err := r.write(folder, true); err != nil {
		return err
	}
	if err := r.connect(ctx, r.site.plan()); err != nil {
		return err
	}
	r.enter = func(f func() error) error { return r.net.Do(netns.Node, f) }
	store, err := NewStore(r.dir)
	if err != nil {
		return err
	}
	r.proxy = &process{net: r.net, bin: o.Program, args: r.site.command(folder, o.Mode, o.Args), store: store, log: &tail{}}
	return r.proxy.start()
}

// connect makes the network and starts the backends.
func (r *Rig) connect(ctx context.Context, plan netns.Plan) (err error) {
	if r.net, err = netns.New(ctx, plan); err != nil {
		return err
	}
	return r.site.serve(r.net)
}

// write puts the manifests into a folder, as a whole.
func (r *Rig) write(folder string, node bool) (err error) {
	text, err := r.site.Manifests(node)
	if err != nil {
		return err
	}
	path := filepath.Join(folder, Namespace+".json")
	part := filepath.Join(folder, "."+Namespace+".part")
	defer func() {
		if gone := os.Remove(part); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	err = os.Link(part, path) // which replaces nothing
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: another test runs, or one was killed: then remove this file", err)
	}
	if err == nil {
		r.file = path
	}
	return err
}

// served waits until the proxy has programmed all Services.
func (r *Rig) served(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(r.inside(ctx), serveTime)
	defer cancel()
	for {
		missing, err := r.missing(ctx)
		if err == nil && missing == "" {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("not programmed: Service %s", missing)
		}
		if r.proxy != nil {
			if ended := r.proxy.alive(); ended != nil {
				return ended
			}
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			return fmt.Errorf("the proxy does not serve what was made within %s: %w", serveTime, err)
		}
	}
}

// missing is a Service that is not programmed; empty for none.
func (r *Rig) missing(ctx context.Context) (string, error) {
	doc, err := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
	if err != nil {
		return "", err
	}
	for _, v := range services() {
		i := slices.IndexFunc(doc.Services, func(s question.ServiceDetail) bool { return s.Name == v.fullName() })
		if i < 0 || doc.Services[i].State == question.Pending || doc.Services[i].State == model.Failing.String() {
			return v.fullName(), nil
		}
	}
	return "", nil
}

func (v service) fullName() string { return Namespace + "/" + v.name }

// inside is a context for questions to the proxy.
func (r *Rig) inside(ctx context.Context) context.Context {
	if r.enter == nil {
		return ctx
	}
	return platform.Inside(ctx, r.enter)
}

// Close ends the rig, and removes all it has made.
func (r *Rig) Close() error {
	var errs []error
	if r.proxy != nil {
		errs = append(errs, r.proxy.stop(), r.proxy.store.Close())
	} else if r.file != "" && r.dir == "" {
		errs = append(errs, os.Remove(r.file))
	}
	if r.net != nil {
		errs = append(errs, r.net.Close())
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}
