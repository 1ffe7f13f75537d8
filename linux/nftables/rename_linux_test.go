// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// earlierNames are what layout 2 called the objects that have other names since.
var earlierNames = strings.NewReplacer("source-ranges", "guarded", "reject-chain", "refuse", comment, nft.Owner+" (layout 2)")

// An upgrade from a version with other names of sets and chains leaves none of them, and between
// any two of its transactions no client outside of a Service's source ranges reaches an endpoint.
func TestUpgradeFromEarlierNames(t *testing.T) {
	freshNamespace(t)
	ports := append(restrictedPorts(1, "10.0.0.0/8"), testPorts()...)
	want := compile(t, testHost, ports...)
	runNFT(t, earlierNames.Replace(table.Script(want)), "-f", "-")
	if before := runNFT(t, "", "list", "ruleset"); !strings.Contains(before, "set guarded") || !strings.Contains(before, "goto refuse") {
		t.Fatalf("not what layout 2 had:\n%s", before)
	}
	d := openDriver(t)
	now := mustObserve(t, d) // what the kernel has; of a chain it tells a digest only
	for k, v := range now {
		if w, same := want[k]; same && w.Equal(v) {
			now[k] = w
		}
	}
	outside := oracle.Packet{Iface: oracle.Uplink, Proto: model.TCP, Src: netip.MustParseAddr("198.51.100.7"), Dst: ports[0].Frontends[0].At}
	for _, op := range planned(now, want) {
		mustCommit(t, d, []nft.Op{op})
		switch {
		case op.Key.Kind == nft.KindTable && op.Verb == ledger.Replace:
			now = map[nft.Key]nft.Value{op.Key: op.New} // with all that is in it
		case op.Verb == ledger.Delete:
			delete(now, op.Key)
		default:
			now[op.Key] = op.New
		}
		if got := nft.NewSim(now, testHost).Decide(outside); len(got.Endpoints) > 0 {
			t.Fatalf("after %s %s a client outside of the source ranges reaches %v", op.Verb, op.Key, got.Endpoints)
		}
	}
	for _, diff := range differences(want, mustObserve(t, d)) {
		t.Error(diff)
	}
	if after := runNFT(t, "", "list", "ruleset"); strings.Contains(after, "guarded") || strings.Contains(after, "refuse") {
		t.Errorf("earlier names are left:\n%s", after)
	}
}
