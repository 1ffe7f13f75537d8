// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// Where pods cannot be recognised from others, FromPod has FromOutside's action: no
// backend has to ask.
func TestUnknownPodsAreOutside(t *testing.T) {
	seen := 0
	for seed := range uint64(300) {
		w := conformance.RandomWorld(conformance.NewRand(seed))
		for _, p := range w.Ports() {
			if w.Host.Pods.Known(p.ID.Family) {
				continue
			}
			for _, f := range p.Frontends {
				pod, out := f.On[model.FromPod], f.On[model.FromOutside]
				if pod.Verdict != out.Verdict || pod.SNAT != out.SNAT || pod.Why != out.Why || !pod.Pool.Equal(out.Pool) {
					t.Fatalf("seed %d: %s, %s: %+v and %+v", seed, p.ID, f.At, pod, out)
				}
				seen++
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d fronts were judged", seen)
	}
}
