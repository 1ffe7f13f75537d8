// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// mapFull is what a data plane without room says.
var mapFull = model.Problem{Object: "data plane", Why: model.WhyFull, Detail: "the map"}

// filling is a data plane that has room for so much.
type filling struct {
	*memory.Driver[string, string]
	full []model.Problem
}

func (f *filling) Problems() (what []model.Problem) {
	f.Do(func() { what = f.full })
	return what
}

// dressed is a backend with something of its own, as those of some modes are.
type dressed struct{ dataplane.Backend }

// What was full in one data plane is nothing of the next, and the other way round.
func TestASwitchForgetsWhatWasFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &filling{Driver: newKernel(), full: []model.Problem{mapFull}}
		b := start(t, func(o *engine.Options) { o.Backend = dressed{dataplane.New(fronts{}, kernel)} })
		b.Synced(true)
		sleep(2 * time.Hour)
		problems := func() int {
			s, err := b.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(s.Problems)
		}
		if n := problems(); n != 1 {
			t.Errorf("%d problems at first", n)
		}
		_, plain := second()
		old, err := b.Switch(t.Context(), engine.DataPlane{Backend: dressed{plain}})
		if err != nil {
			t.Fatal(err)
		}
		if n := problems(); n != 0 {
			t.Errorf("%d problems after a switch to one that has room", n)
		}
		if _, err := b.Switch(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		if n := problems(); n != 1 {
			t.Errorf("%d problems after a switch back", n)
		}
	})
}

func TestWhatIsFullIsSaidOnceAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kernel := &filling{Driver: newKernel()}
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(fronts{}, kernel)
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		b.Synced(true)
		problems := func() []model.Problem {
			sleep(2*time.Hour + time.Minute) // two audits
			s, err := b.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Problems
		}
		if got := problems(); len(got) != 0 {
			t.Errorf("problems at first: %v", got)
		}
		kernel.Do(func() { kernel.full = []model.Problem{mapFull} })
		want := mapFull
		if got := problems(); len(got) != 1 || got[0] != want || len(said) != 1 || said[0] != want {
			t.Errorf("problems %v, said %v, want %v once each", got, said, want)
		}
		kernel.Do(func() { kernel.full = nil })
		if got := problems(); len(got) != 0 || len(said) != 1 {
			t.Errorf("problems %v, said %v when there is room again", got, said)
		}
	})
}

// Full Services are reported within a second, and once for as long as that lasts.
func TestAFullServiceIsReportedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := model.Problem{Object: "Service shop/web", Why: model.WhyConnectionLimit, Detail: "port http tcp"}
		kernel := &filling{Driver: newKernel(), full: []model.Problem{limited}}
		var reported []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(fronts{}, kernel)
			o.Hooks.Problem = func(p model.Problem) { reported = append(reported, p) }
		})
		b.Synced(true)
		for range 5 {
			sleep(time.Second)
			if len(reported) != 1 || reported[0] != limited {
				t.Fatalf("reported %v, want %v once", reported, limited)
			}
		}
	})
}
