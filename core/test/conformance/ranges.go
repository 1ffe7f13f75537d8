// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
)

// ranges demands that a start whose source cannot say which ServiceCIDRs there are finds those of
// an earlier run in the objects, where a compiler uses them.
func (s Suite[K, V]) ranges(t reporter, what string, host *model.Host, objects map[K]V) {
	without := *host
	without.ServiceCIDRs = nil
	with, _ := dataplane.Compile(s.Compiler, host, nil)
	base, _ := dataplane.Compile(s.Compiler, &without, nil)
	uses := !maps.EqualFunc(with, base, s.Compiler.Equal)
	var found []netip.Prefix
	for k, v := range objects {
		found = append(found, s.Compiler.ServiceCIDRs(k, v)...)
	}
	if !uses && len(found) == 0 {
		return
	}
	if want := model.Canonical(slices.Clone(host.ServiceCIDRs)); !slices.Equal(model.Canonical(found), want) {
		t.Errorf("%s: the objects are for the ranges %v, and show %v", what, want, found)
	}
}
