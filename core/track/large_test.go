package track_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/track"
)

// Whoever may create Services may create one with as many ports as fit an object
// of the API. The others' changes wait for it, so that its cost must not grow with
// the square of that.
func TestAServiceOfManyPorts(t *testing.T) {
	const n, limit = 20_000, 5 * time.Second // it is some 100 ms
	numbers := make([]uint16, n)
	for i := range numbers {
		numbers[i] = uint16(i + 1)
	}
	big := func(ports ...uint16) func(*track.Tracker) {
		s := service("big", "10.96.0.1", ports...)
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00::1"))
		return func(tr *track.Tracker) { tr.SetService(s) }
	}
	tr := track.New()
	tr.SetHost(host("z"))
	for _, step := range []struct {
		what   string
		do     func(*track.Tracker)
		deltas int
	}{
		{"made", big(numbers...), 2 * n},
		{"an endpoint", func(tr *track.Tracker) { tr.SetSlice(slice("big-1", "big", 7, "10.0.0.1")) }, 1},
		{"without its first port", big(numbers[1:]...), 2},
		{"gone", func(tr *track.Tracker) { tr.DeleteService(name("big")) }, 2 * (n - 1)},
	} {
		start := time.Now()
		step.do(tr)
		if got := len(tr.Flush()); got != step.deltas {
			t.Errorf("%s: %d changes, want %d", step.what, got, step.deltas)
		}
		if got := len(tr.NewProblems()); got > 20 {
			t.Errorf("%s: %d problems are told", step.what, got)
		}
		if took := time.Since(start); took > limit {
			t.Errorf("%s: took %s", step.what, took)
		}
	}
}
