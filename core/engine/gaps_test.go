package engine_test

import (
	"testing"
	"testing/synctest"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/dataplane/memory"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// hiding is a data plane whose endpoints never see a client's address.
type hiding struct{ fronts }

func (h hiding) Port(host *model.Host, p *model.Port, emit func(string, string)) []model.Gap {
	h.fronts.Port(host, p, emit)
	return []model.Gap{{Detail: "no client addresses", Source: true}}
}

func TestAGapOfTheModeIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []model.Problem
		b := start(t, func(o *engine.Options) {
			o.Backend = dataplane.New(hiding{}, memory.New[string](fronts{}.Equal, dataplane.Limits{}))
			o.Hooks.Problem = func(p model.Problem) { said = append(said, p) }
		})
		b.SetService(service("a", "10.96.0.1"))
		b.SetService(service("b", "10.96.0.2"))
		b.SetService(service("c", "10.96.0.3"))
		b.Synced(true)
		synctest.Wait()
		b.SetService(service("c", "10.96.0.4"))
		synctest.Wait()
		if len(said) != 1 || said[0].Object != "data plane" {
			t.Errorf("said: %v", said)
		}
		if n := b.Status().Services[model.Programmed]; n != 3 {
			t.Errorf("%d of 3 Services are Programmed", n)
		}
	})
}
