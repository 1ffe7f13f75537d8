package iptables

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// kubeProxy finds chains with the names that kube-proxy and Tandem share where
// none of those is that only Tandem makes. Running in this mode takes them over.
func kubeProxy(ctx context.Context) (left dataplane.Leftovers, err error) {
	left.Remove = func(ctx context.Context) error { return eachOfKubeProxy(ctx, removeAll) }
	err = eachOfKubeProxy(ctx, func(ctx context.Context, d *Driver) error {
		have, _, err := d.read(ctx)
		left.Found = append(left.Found, fmt.Sprintf("%d chains and rules of iptables (%s)", len(have), d.tools.Variant))
		return err
	})
	return left, err
}

// eachOfKubeProxy calls f for each variant in which kube-proxy has left
// something, in the network namespace of the calling thread.
func eachOfKubeProxy(ctx context.Context, f func(context.Context, *Driver) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	installed, err := xtables.FindTools(ctx)
	if err != nil {
		return err
	}
	here, err := host.Here()
	if err != nil {
		return err
	}
	err = eachInUse(ctx, installed, here, func(d *Driver, have map[Key]Value) error {
		if ours(have) {
			return nil
		}
		return f(ctx, d)
	})
	return errors.Join(err, here.Close())
}
