// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// However many Services a namespace has, others find room for theirs; and what is refused is served once there is.
func TestNamespacesShareTheEntries(t *testing.T) {
	tr := New()
	tr.SetHost(&model.Host{Name: "node-1"})
	large := func(namespace string, i, ports int) *model.Service {
		s := serviceOf(fmt.Sprintf("s%03d", i), 0)
		s.Name.Namespace = namespace
		s.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 96 + namespace[0]%8, byte(i >> 8), byte(i)})
		s.Ports = nil
		for p := range ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", p), Proto: model.TCP, Port: uint16(80 + p)})
		}
		return s
	}
	tr.Set(large("evil", 0, 10))
	tr.Flush()
	tr.budget.most = 100 * tr.budget.used
	served := func(namespace string) (n int) {
		for range 100 { // turns
			tr.Flush()
		}
		entries := 0
		for _, s := range tr.Services() {
			entries += tr.services[s.Object.Name].entries
			if s.Object.Name.Namespace != namespace {
				continue
			}
			switch {
			case len(s.Ports) > 0:
				n++
			case len(s.Problems) != 1 || s.Problems[0].Why != model.WhyTooLarge || !strings.Contains(s.Problems[0].Detail, "of its namespace"):
				t.Errorf("%s is not served, with problems %v", s.Object.Name, s.Problems)
			}
		}
		if entries != tr.budget.used || entries > tr.budget.most {
			t.Errorf("%d entries, counted as %d, limit %d", entries, tr.budget.used, tr.budget.most)
		}
		return n
	}
	for i := range 200 {
		tr.Set(large("evil", i, 10))
	}
	if n := served("evil"); n != 50 {
		t.Errorf("a namespace alone has %d of 100 places, want half", n)
	}
	for i := range 20 {
		tr.Set(large("shop", i, 10))
	}
	if n := served("shop"); n != 20 {
		t.Errorf("another one has %d of its 20 Services", n)
	}
	tr.Set(large("shop", 0, 11)) // a change of what is served
	if n := served("shop"); n != 20 {
		t.Errorf("after a change it has %d", n)
	}
	for i := range 100 { // what goes makes room for what waits
		tr.Delete(large("evil", i, 10))
	}
	if n := served("evil"); n < 35 || n > 40 {
		t.Errorf("of 100 Services that are left %d are served", n)
	}
	for i := range 200 {
		tr.Delete(large("evil", i, 10))
	}
	for i := range 20 {
		tr.Delete(large("shop", i, 10))
	}
	if served("shop"); tr.budget.used != 0 || len(tr.budget.of)+len(tr.budget.refused) != 0 {
		t.Errorf("of nothing: %+v", tr.budget)
	}
}

// What a question resumes has its entries, too.
func TestResumedServicesHaveTheirEntries(t *testing.T) {
	tr := routed(t)
	again := Resume(tr.Host(), tr.Services(), &model.Objects{}, nil, tr.now())
	if tr.budget.used == 0 || again.budget.used != tr.budget.used {
		t.Errorf("%d entries, %d when resumed", tr.budget.used, again.budget.used)
	}
}

// Slots count, not endpoints: with maglev two endpoints have 1,021.
func TestSlotsAreEntries(t *testing.T) {
	for name, c := range map[string]struct {
		choice model.Choice
		least  int
	}{"random": {model.Choice{}, 0}, "maglev": {model.Choice{Scheduler: model.Maglev}, model.MaglevSlots}} {
		tr := routed(t)
		second := endpointsOf("a", 5)
		second.Name.Name = "a-2"
		tr.Set(second)
		tr.Flush()
		before := tr.budget.used
		s := serviceOf("a", 0)
		s.Choice = c.choice
		tr.Set(s)
		tr.Flush()
		if more := tr.budget.used - before; more < c.least-2 || c.least == 0 && more != 0 {
			t.Errorf("%s: %d entries more", name, more)
		}
		if entries := resolve.Entries(s, 2); entries < c.least {
			t.Errorf("%s: its turn counts %d", name, entries)
		}
	}
}
