// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
)

// mostEntries is how many entries of a data plane (resolve.EntriesOf) all Services together may have: with that
// many a node needs about a gigabyte, as 100,000 Services of five endpoints, which have 1.7 million, need 410 MB.
const mostEntries = 4 << 20

// mostAgain is how many refused Services are tried again when others have become smaller.
const mostAgain = 16

// budget are the entries of all Services. A namespace may grow while it has no more entries than
// would be left free: one alone gets
// half of all, two get a third each, so that another one always finds room (dynamic thresholds: Choudhury and
// Hahne, 1998).
type budget struct {
	most, used int
	of         map[string]int                   // by namespace
	refused    map[string]map[*service]struct{} // Services for which there was no room, by namespace
	freed      bool                             // entries have become free since refused ones were last tried
}

func newBudget() budget {
	return budget{most: mostEntries, of: map[string]int{}, refused: map[string]map[*service]struct{}{}}
}

// take gives a Service so many entries instead of those that it has, or none where there is no room.
func (b *budget) take(s *service, entries int) (ok bool) {
	namespace := s.name.Namespace
	had := s.entries
	b.used, b.of[namespace] = b.used-had, b.of[namespace]-had
	_, waited := b.refused[namespace][s]
	if ok = entries <= had || b.of[namespace]+entries <= b.most-b.used-entries; ok {
		take(b.refused, namespace, s)
	} else {
		entries = 0
		place(b.refused, namespace, s, struct{}{})
	}
	s.entries = entries
	b.used, b.of[namespace] = b.used+entries, b.of[namespace]+entries
	b.freed = b.freed || entries < had || waited && ok // there may be room for more
	if b.of[namespace] == 0 {
		delete(b.of, namespace)
	}
	return ok
}

// again returns some refused Services to try again, if there may be room: those of the namespace that has the fewest
// entries.
func (b *budget) again() (all []*service) {
	if !b.freed || len(b.refused) == 0 {
		b.freed = false
		return nil
	}
	b.freed = false
	fewest, first := "", true
	for namespace := range b.refused {
		if first || b.of[namespace] < b.of[fewest] {
			fewest, first = namespace, false
		}
	}
	for s := range b.refused[fewest] {
		if all = append(all, s); len(all) == mostAgain {
			break
		}
	}
	return all
}

// afford counts the entries of what a Service comes out as, and takes that away, with a problem, where there is no
// room for them.
func (t *Tracker) afford(s *service, r *resolve.Result) {
	entries := resolve.EntriesOf(r.Ports...)
	if t.budget.take(s, entries) {
		return
	}
	r.Ports = nil
	r.Problems = append(r.Problems, model.Problem{
		Object: "Service " + s.name.String(), Where: s.Object.Where, Why: model.WhyTooLarge,
		Detail: fmt.Sprintf("not served: %d entries, beside %d of its namespace and %d of all Services, limit %d (a namespace gets more while it has no more than are free)",
			entries, t.budget.of[s.name.Namespace], t.budget.used, t.budget.most),
		Fix: "have fewer or smaller Services",
	})
}
