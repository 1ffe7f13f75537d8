// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// Whatever happens, in the end the sink knows what the server knows.
func TestChaos(t *testing.T) {
	for seed, o := range []apitest.Options{
		{}, {NoWatchList: true}, {NoWatchList: true, NoCache: true, Bookmarks: 5 * time.Millisecond}, {Plain: true, Bookmarks: 5 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.limits.silence, w.limits.stale = 300*time.Millisecond, time.Hour
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			w.run()
			for range 400 {
				w.chaos(r)
				time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			}
			w.until("the server's state", func() bool { return servicesOf(w.sink.state()) == w.truth() })
			time.Sleep(50 * time.Millisecond) // it stays so
			if got, want := servicesOf(w.sink.state()), w.truth(); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if n := w.resource("services").Objects; n != len(w.server.Objects("services")) {
				t.Errorf("%d objects are remembered", n)
			}
		})
	}
}

// chaos does something to the server: mostly a change, sometimes a fault.
func (w *world) chaos(r *rand.Rand) {
	name := fmt.Sprintf("s%02d", r.IntN(30))
	switch n := r.IntN(100); {
	case n < 50:
		w.server.Put(service(name, 1+r.Int32N(60000)))
	case n < 80:
		w.server.Delete(service(name, 1))
	case n < 84:
		w.server.Cut("services")
	case n < 88:
		w.server.Tear("services")
	case n < 92:
		w.server.Compact()
	case n < 96:
		w.server.Replay("services", 5)
	case n < 97:
		lift := w.server.Fail(apitest.Rule{Resource: "services", Status: 500, Message: "boom"})
		time.AfterFunc(20*time.Millisecond, lift)
	case n < 98:
		thaw := w.server.Freeze("services")
		time.AfterFunc(100*time.Millisecond, thaw)
	default:
		w.restarted(func() {})
	}
}

// truth returns the Services of the server as record.state does.
func (w *world) truth() string {
	var lines []string
	for _, o := range w.server.Objects("services") {
		s := o.(*corev1.Service)
		lines = append(lines, fmt.Sprintf("service %s/%s %d", s.Namespace, s.Name, s.Spec.Ports[0].Port))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func servicesOf(state string) string {
	lines := strings.Split(state, ", ")
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "service ") }), ", ")
}
