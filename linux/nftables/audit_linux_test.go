// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// programmed is a backend on a kernel of its own, with everything in place.
func programmed(t *testing.T, ports []*model.Port) dataplane.Backend {
	t.Helper()
	freshNamespace(t)
	b := newBackend(NewCompiler(Options{}), openDriver(t))
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(testHost)
	for _, p := range ports {
		b.Update([]model.Delta{{New: p}})
	}
	mustSync(t, b)
	return b
}

func mustSync(t *testing.T, b dataplane.Backend) dataplane.Work {
	t.Helper()
	work, err := b.Sync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return work
}

// meddle does ops that the backend under test knows nothing of.
func meddle(t *testing.T, ops ...nft.Op) {
	t.Helper()
	for _, err := range openDriver(t).Commit(t.Context(), ops) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// slotOf is the object of a port's first endpoint.
func slotOf(t *testing.T, p *model.Port) (k nft.Key, v nft.Value) {
	t.Helper()
	for k, v := range compile(t, testHost, p) {
		if k.Kind == nft.KindElement && k.Set == setSlots && k.Slot == 0 {
			return k, v
		}
	}
	t.Fatal("a port without an endpoint")
	return k, v
}

// A dump of a set that is written meanwhile misses elements that are there. That
// is not drift; what others do is.
func TestAuditsBesideChangesFindDriftAlone(t *testing.T) {
	const audits = 8
	ports := manyPorts(5000)
	b := programmed(t, ports)
	results := make(chan int)
	go func() {
		defer close(results)
		for range audits {
			drift, err := b.Audit(t.Context())
			if err != nil {
				t.Error(err)
			}
			results <- drift
		}
	}()
	changes := 0
	for i, more := 0, true; more; i = (i + 16) % len(ports) {
		for _, p := range ports[i:min(i+16, len(ports))] {
			b.Update([]model.Delta{{Old: p}})
		}
		mustSync(t, b)
		for _, p := range ports[i:min(i+16, len(ports))] {
			b.Update([]model.Delta{{New: p}})
		}
		if work := mustSync(t, b); work.Corrected != 0 {
			t.Fatalf("%d objects were not as the books said", work.Corrected)
		}
		changes += 2
		select {
		case drift, ok := <-results:
			if more = ok; drift != 0 {
				t.Errorf("an audit found %d objects changed by others", drift)
			}
		default:
		}
	}
	t.Logf("%d audits beside %d transactions", audits, changes)
	k, v := slotOf(t, ports[77])
	meddle(t, nft.Op{Verb: ledger.Delete, Key: k, Old: v})
	if drift, err := b.Audit(t.Context()); drift != 1 || err != nil {
		t.Fatalf("one element is gone: drift %d, %v", drift, err)
	}
	work := mustSync(t, b)
	if work.Ops != 1 {
		t.Errorf("repaired by %+v", work)
	}
	if told := work.Repaired; len(told) != 1 || told[0] != ports[77].ID {
		t.Errorf("repaired ports: %v", told)
	}
}

// Where the books are wrong of an element a change takes place all the same, and
// at once.
func TestBooksAreCorrectedByTheKernel(t *testing.T) {
	ports := manyPorts(20)
	added, removed, changed := ports[17], ports[3], ports[4]
	b := programmed(t, ports[:17])
	there, value := slotOf(t, added)
	value.Port++ // and it leads to somewhere else
	gone, old := slotOf(t, removed)
	also, was := slotOf(t, changed)
	meddle(t,
		nft.Op{Verb: ledger.Create, Key: there, New: value},
		nft.Op{Verb: ledger.Delete, Key: gone, Old: old}, nft.Op{Verb: ledger.Delete, Key: also, Old: was})
	next := ports[19] // the frontend of one with the endpoints of another
	next.ID, next.Frontends[0].At = changed.ID, changed.Frontends[0].At
	b.Update([]model.Delta{{New: added}, {Old: removed}, {Old: changed, New: next}})
	start := time.Now()
	if work := mustSync(t, b); work.Failed != 0 || work.Corrected != 3 {
		t.Errorf("%+v", work)
	}
	t.Logf("repaired in %s", time.Since(start))
	want := append(append([]*model.Port{next}, ports[:3]...), ports[5:18]...)
	for _, diff := range differences(compile(t, testHost, want...), mustObserve(t, openDriver(t))) {
		t.Error(diff)
	}
}

// Rules are not put behind those of a chain that is there against the books.
func TestAChainThatIsThereIsReplaced(t *testing.T) {
	ports := manyPorts(2)
	ports[1].Frontends[0].On = onAll(balance(endpoints("10.244.1.2:8080", "10.244.1.3:8080"), false)) // needs a chain of its own
	b := programmed(t, ports[:1])
	before, want := mustObserve(t, openDriver(t)), compile(t, testHost, ports...)
	var chains []nft.Op
	for k := range want {
		if _, there := before[k]; !there && k.Kind == nft.KindChain {
			chains = append(chains, nft.Op{Verb: ledger.Create, Key: k, New: chainOf(k.Family, nft.NewRule(nft.Drop{}))})
		}
	}
	if len(chains) == 0 {
		t.Fatal("no new chain")
	}
	meddle(t, chains...)
	b.Update([]model.Delta{{New: ports[1]}})
	if work := mustSync(t, b); work.Failed != 0 || work.Corrected != len(chains) {
		t.Errorf("%+v", work)
	}
	for _, diff := range differences(want, mustObserve(t, openDriver(t))) {
		t.Error(diff)
	}
}
