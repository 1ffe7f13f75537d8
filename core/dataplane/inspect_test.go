// SPDX-License-Identifier: Apache-2.0

package dataplane_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/test/memory"
)

// traceable is toy, whose packets are all rejected. Of what others share, only a digest is read.
type traceable struct{ toy }

func (traceable) Evaluate(map[string]string, *model.Host) func(oracle.Packet) oracle.Outcome {
	return func(oracle.Packet) oracle.Outcome { return oracle.Outcome{Fate: oracle.Reject} }
}
func (traceable) Text(k, v string) string { return k + " " + v }
func (traceable) Opaque(k, _ string) bool { return k[0] == '1' }

// interrupted is a driver where something happens between a read and its comparison.
type interrupted struct {
	*memory.Driver[string, string]
	reads int
	then  func(reads int)
}

func (d *interrupted) Observe(ctx context.Context, found func(string, string)) error {
	have := map[string]string{}
	err := d.Driver.Observe(ctx, func(k, v string) { have[k] = v })
	if d.reads++; d.then != nil {
		d.then(d.reads)
	}
	for k, v := range have {
		found(k, v)
	}
	return err
}

// What is unneeded and lingers may be deleted while a trace reads: it was on its way out.
func TestTraceWhileLeftoversAreDeleted(t *testing.T) {
	for name, when := range map[string]int{"during the first read": 1, "during the second": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &interrupted{Driver: memory.New[string](toy{}.Equal, dataplane.Limits{Atomic: true})}
				b := &bench{t: t, Backend: dataplane.New(traceable{}, d), kernel: d.Driver}
				b.start()
				two, one := port("a", "10.96.0.1", "10.0.0.1", "10.0.0.2"), port("a", "10.96.0.1", "10.0.0.1")
				for _, delta := range []model.Delta{{New: two}, {Old: two, New: one}} {
					b.Update([]model.Delta{delta})
					if _, err := b.Sync(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(2 * time.Minute)
				reads := d.reads
				d.then = func(n int) {
					if n-reads == when {
						_, _ = b.Sync(t.Context())
					}
				}
				got, err := b.Trace(t.Context(), []*model.Port{one}, oracle.Packet{})
				if err != nil || len(got.Opaque)+len(got.Differences) > 0 {
					t.Errorf("%+v (%v)", got, err)
				}
				if _, there := d.Objects["1 count 2"]; there {
					t.Error("nothing was deleted meanwhile")
				}
			})
		})
	}
}
