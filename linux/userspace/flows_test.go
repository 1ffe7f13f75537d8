// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// With an entry its own flows are stale: those that another mode has made since
// are not.
func TestFlowsOfOthersStay(t *testing.T) {
	front := netip.MustParseAddrPort("10.96.0.10:53")
	k := Key{Kind: kindEntry, Chain: chainContainer, Proto: model.UDP, At: front}
	m := endedFlows(k, 40000, "kube-system")
	for from, want := range map[string]bool{
		"169.254.84.1:40000": true, // the relay
		"169.254.84.1:1":     true, // refused
		"169.254.84.1:1024":  true, // dropped
		"10.244.1.2:53":      false,
		"10.96.0.10:53":      false,
	} {
		f := flows.Flow{Proto: model.UDP, Dst: front, From: netip.MustParseAddrPort(from)}
		if m.Stale(f) != want {
			t.Errorf("a flow to %s: stale %t", from, !want)
		}
	}
}
