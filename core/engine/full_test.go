package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// filling is a data plane that has room for so much.
type filling struct {
	*memory.Driver[string, string]
	full []string
}

func (f *filling) Full() (what []string) {
	f.Do(func() { what = f.full })
	return what
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
		kernel.Do(func() { kernel.full = []string{"the map"} })
		want := model.Problem{Object: "data plane", Why: model.WhyFull, Detail: "the map"}
		if got := problems(); len(got) != 1 || got[0] != want || len(said) != 1 || said[0] != want {
			t.Errorf("problems %v, said %v, want %v once each", got, said, want)
		}
		kernel.Do(func() { kernel.full = nil })
		if got := problems(); len(got) != 0 || len(said) != 1 {
			t.Errorf("problems %v, said %v when there is room again", got, said)
		}
	})
}
