package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// What kube-proxy's nftables mode calls its tables, and how their comments
// begin: pkg/proxy/nftables/proxier.go of Kubernetes 1.36.
const (
	kubeProxyTable = "kube-proxy"
	kubeProxyOwner = "rules for kube-proxy"
)

// kubeProxy finds the tables of kube-proxy. Others of that name are nobody's
// that we know, and stay.
func kubeProxy(ctx context.Context) (left dataplane.Leftovers, err error) {
	d, err := open(kubeProxyTable, Options{})
	if err != nil {
		return left, advise(err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	d.owner = kubeProxyOwner
	for _, f := range d.families {
		s, err := d.look(ctx, d.reader, f, nil)
		switch {
		case errors.Is(err, ErrForeign):
		case err != nil:
			return left, advise(err)
		case s.hasTable:
			left.Found = append(left.Found, fmt.Sprintf("nftables table %s %s", familyName(f), kubeProxyTable))
		}
	}
	left.Remove = removeKubeProxy
	return left, nil
}

func removeKubeProxy(ctx context.Context) error {
	d, err := open(kubeProxyTable, Options{})
	if err != nil {
		return advise(err)
	}
	d.owner = kubeProxyOwner
	both := model.Families()
	var failed error
	for _, f := range both {
		d.families = []model.Family{f}
		if err := d.removeTables(ctx); !errors.Is(err, ErrForeign) {
			failed = errors.Join(failed, err)
		}
	}
	return errors.Join(failed, d.Close())
}
