package iptables

import (
	"context"
	"errors"
	"runtime"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// openBackend opens the variant that the host uses, and writes nothing. Where
// IPv6 cannot be had, IPv4 is served alone, and ports of IPv6 are Gaps. Rules of
// both variants are refused by Probe; here they may be what is to be removed.
func openBackend(c *config.Config) (dataplane.Backend, error) {
	runtime.LockOSThread() // commands belong to the namespace of this thread
	defer runtime.UnlockOSThread()
	ctx := context.Background()
	installed, err := findTools(ctx)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(ctx, installed)
	switch {
	case errors.Is(err, errMixed):
		chosen = installed
	case err != nil:
		return nil, err
	}
	best, err := first(ctx, chosen, (*candidate).read)
	if err != nil {
		return nil, err
	}
	o := options(c)
	o.Families, o.NoRandomFully = best.families, best.noRandomFully
	d, err := open(best.tools, best.families, c.SyncPeriod)
	if err != nil {
		return nil, err
	}
	compiler := NewCompiler(o)
	return &backend{dataplane.New(compiler, d), compiler, d, installed}, nil
}

// backend knows when our names are somebody else's.
type backend struct {
	dataplane.Backend
	compiler  *Compiler
	driver    *Driver
	installed []tools
}

// Remove implements dataplane.Backend, for both variants. Most chains have the
// names that kube-proxy gives them: where there are none of those that only
// Tandem makes, they are kube-proxy's, and stay.
func (b *backend) Remove(ctx context.Context) error {
	var errs []error
	for _, t := range b.installed {
		d := &Driver{tools: t, families: t.families(), ns: b.driver.ns, book: book{}, watch: unwatched()}
		have, _, err := d.read(ctx)
		switch {
		case err != nil && t.variant == b.driver.tools.variant:
			errs = append(errs, err)
		case err == nil && ours(have):
			errs = append(errs, dataplane.New(b.compiler, d).Remove(ctx))
		}
	}
	return errors.Join(errs...)
}

// Rules implements dataplane.RuleCounter.
func (b *backend) Rules(tell func(table string, f model.Family, total, written int)) {
	b.driver.Rules(tell)
}

// ours reports whether Tandem has programmed objects.
func ours(objects map[Key]Value) bool {
	for k := range objects {
		if k.Chain == chainClosed {
			return true
		}
		for _, t := range trees {
			if strings.HasPrefix(k.Chain, t.beginning) {
				return true
			}
		}
	}
	return false
}
