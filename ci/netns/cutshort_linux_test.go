// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os/exec"
	"testing"
	"time"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestSwitchCutShort kills the program at many moments of a switch between modes
// of the kernel. Whatever is then in place serves every new connection; the next
// start, in the mode that is configured, clears the other one away.
func TestSwitchCutShort(t *testing.T) {
	s := newSite(t)
	modes := s.working()
	if len(modes) < 2 || !modes[0].Conntrack || !modes[1].Conntrack {
		t.Skipf("two modes of the kernel are needed, and %d work", len(modes))
	}
	from, to := modes[0], modes[1]
	s.write("", "10.244.1.2", "10.244.1.3")
	s.flags = []string{"--proxy-mode", string(from.Name)}
	s.start()
	traffic := s.traffic()
	for _, delay := range []time.Duration{0, 10, 20, 40, 60, 80, 120, 160, 240} {
		delay *= time.Millisecond
		order := exec.Command(s.bin, "switch", "--to", string(to.Name))
		if err := s.net.Do(lab.Node, order.Start); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		s.kill()
		_ = order.Wait() // fails if the program has ended
		time.Sleep(100 * time.Millisecond)
		if n := traffic.failed.Load(); n > 0 {
			t.Fatalf("killed %s into the switch: %d new connections failed: %v", delay, n, traffic.failure())
		}
		s.start()
		s.eventually(10*time.Second, "the other mode is cleared away", func() error { return s.left(to.Name) })
		if n := traffic.failed.Load(); n > 0 {
			t.Fatalf("killed %s into the switch and started again: %d new connections failed: %v", delay, n, traffic.failure())
		}
	}
	traffic.end()
	t.Logf("%d new connections, none failed", traffic.made.Load())
}
