// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

// On a loopback adapter the same is programmed, and a gap states that only this node
// is served.
func TestLoopbackAdapterIsAGap(t *testing.T) {
	act := model.Action{Pool: &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}}}}
	port := &model.Port{Frontends: []model.Frontend{{At: netip.MustParseAddrPort("10.96.0.1:80"), On: [model.Origins]model.Action{act, act, act}}}}
	said := map[bool]int{}
	objects := map[bool]int{}
	for _, loopback := range []bool{false, true} {
		all, gaps := dataplane.Compile(direct.NewCompiler(placement(loopback)), &model.Host{}, []*model.Port{port})
		said[loopback], objects[loopback] = len(model.OwnGaps(gaps[port.ID])), len(all)
	}
	if said[false] != 0 || said[true] != 1 || objects[false] != objects[true] {
		t.Errorf("gaps %v, objects %v", said, objects)
	}
}

func TestMark(t *testing.T) {
	for seconds, ours := range map[uint32]bool{
		lifetime: true, lifetime - 1: true, lifetime - slack + 1: true,
		lifetime + 1: false, lifetime - slack: false, 0: false, 0xffffffff: false, 86400: false,
	} {
		if marked(seconds) != ours {
			t.Errorf("an address that is valid for %d seconds: ours %t", seconds, !ours)
		}
	}
}
