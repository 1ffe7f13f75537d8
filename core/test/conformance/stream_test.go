// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/test/memory"
	"github.com/tandem-proxy/tandem/core/test/table"
)

// delayed delays every deletion.
type delayed struct{ table.Compiler }

func (delayed) DeleteDelay(table.Key) time.Duration { return time.Minute }

// The stream holds for a data plane whose deletions are delayed.
func TestStreamWithLingering(t *testing.T) {
	s := tableSuite()
	s.Compiler = delayed{}
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) { s.stream(t, NewRand(seed), seed%2 == 1) })
	}
}

// What a restart writes is found, with delayed deletions as without.
func TestRestartFindsWrites(t *testing.T) {
	for name, c := range map[string]dataplane.Compiler[table.Key, table.Value]{"plain": table.Compiler{}, "delayed": delayed{}} {
		s := tableSuite()
		s.Compiler = c
		w := RandomWorld(NewRand(1))
		d := memory.New[table.Key](c.Equal, dataplane.Limits{})
		first, err := s.restart(t.Context(), w, d)
		if err != nil || first == 0 || first != len(d.Objects) {
			t.Fatalf("%s: %d ops made %d objects (%v)", name, first, len(d.Objects), err)
		}
		if ops, err := s.restart(t.Context(), w, d); err != nil || ops != 0 {
			t.Errorf("%s: nothing changed, but %d ops (%v)", name, ops, err)
		}
		for k, v := range d.Objects {
			v.Restricted = !v.Restricted
			d.Objects[k] = v
			break
		}
		if ops, err := s.restart(t.Context(), w, d); err != nil || ops != 1 {
			t.Errorf("%s: one object differs, but %d ops (%v)", name, ops, err)
		}
	}
}
