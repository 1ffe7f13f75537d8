package iptables

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// kubeProxy finds chains with the names that kube-proxy and Tandem share where
// none of those is that only Tandem makes. Running in this mode takes them over.
func kubeProxy(ctx context.Context) (left dataplane.Leftovers, err error) {
	left.Remove = removeKubeProxy
	err = eachOfKubeProxy(ctx, func(d *Driver, objects int) error {
		left.Found = append(left.Found, fmt.Sprintf("%d chains and rules of iptables (%s)", objects, d.tools.variant))
		return nil
	})
	return left, err
}

func removeKubeProxy(ctx context.Context) error {
	return eachOfKubeProxy(ctx, func(d *Driver, _ int) error {
		return dataplane.New(NewCompiler(Options{Families: d.families}), d).Remove(ctx)
	})
}

// eachOfKubeProxy calls f for each variant in which kube-proxy has left
// something, in the network namespace of the calling thread.
func eachOfKubeProxy(ctx context.Context, f func(d *Driver, objects int) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	installed, err := findTools(ctx)
	if err != nil {
		return err
	}
	here, err := currentNamespace()
	if err != nil {
		return err
	}
	errs := []error{}
	for _, t := range installed {
		d := &Driver{tools: t, families: t.families(), ns: here, book: book{}, watch: unwatched()}
		have, _, err := d.read(ctx)
		if err != nil || len(have) == 0 || ours(have) {
			continue // a variant that this kernel does not have holds nothing
		}
		errs = append(errs, f(d, len(have)))
	}
	return errors.Join(append(errs, here.close())...)
}
