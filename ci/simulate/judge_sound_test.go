// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// spoil changes the outcome of packets; nil changes nothing.
type spoil func(right decide) decide

// blunder is a data plane whose packets go wrong.
type blunder struct {
	plane
	between, end spoil // after writes; when all is looked at
}

func (b *blunder) watch(f looker) {
	b.plane.watch(func(at func(*model.Host) decide) {
		f(func(h *model.Host) decide { return b.between.of(at(h)) })
	})
}

func (b *blunder) now(h *model.Host) decide { return b.end.of(b.plane.now(h)) }

func (s spoil) of(right decide) decide {
	if s == nil {
		return right
	}
	return s(right)
}

// Violations are found: of packets between two writes, and of a state that never
// becomes right.
func TestViolationsAreFound(t *testing.T) {
	nowhere := func(decide) decide {
		return func(oracle.Packet) oracle.Outcome { return oracle.Outcome{Fate: oracle.Drop} }
	}
	stolen := func(right decide) decide {
		return func(p oracle.Packet) oracle.Outcome {
			o := right(p)
			for i := range o.Endpoints {
				o.Endpoints[i].Addr = apiServer
			}
			return o
		}
	}
	for name, c := range map[string]struct {
		blunder blunder
		kind    string
		want    string
	}{
		"lost between two writes":         {blunder{between: nowhere}, "none", "I1: no change touches it"},
		"misled between two writes":       {blunder{between: stolen}, "F26", "I2: reaches 192.0.2.200:6443"},
		"lost apart from its own changes": {blunder{between: nowhere}, "F05", "I8: has endpoints before and after"},
		"wrong in the end":                {blunder{end: nowhere}, "none", "I4: start: not right after"},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) { // most have it at once
				j := job{"nftables", c.kind, seed}
				res := playOn(t, j, j.plan(), false, func(p plane) plane {
					b := c.blunder
					b.plane = p
					return &b
				})
				if strings.Contains(strings.Join(res.violations, "\n"), c.want) {
					return
				}
			}
			t.Errorf("no violation %s", c.want)
		})
	}
}

// What an API server has undone before the proxy has heard of it may be in effect for a
// moment, when the proxy does hear of it: no change touches that any more, and it is no
// violation. Here a restored server lists slices before the Service that they make serve is
// replaced.
func TestUndoneBeforeItIsHeardOf(t *testing.T) {
	for range 5 { // not each order of goroutines shows it
		j := job{"kernelspace", "F29+F07", 90001}
		if res := play(t, j, j.plan(), false); len(res.violations) > 0 {
			t.Fatal(strings.Join(res.violations, "\n"))
		}
	}
}
