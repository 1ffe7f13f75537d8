// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

func newStore(t *testing.T) *connectivity.Store {
	t.Helper()
	s, err := connectivity.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestUserspaceRestartUnderLoad ends and starts the userspace mode while clients
// connect: with a service manager that keeps its sockets none of them fails. What the
// process had accepted when it was killed is closed.
func TestUserspaceRestartUnderLoad(t *testing.T) {
	s := newSite(t)
	kept := newStore(t)
	s.flags, s.wrap = []string{"--proxy-mode", string(relay.Mode)}, kept.Hand
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	if n := kept.Size(); n == 0 {
		t.Fatal("no socket was handed over")
	}
	traffic := s.traffic()
	t.Cleanup(traffic.end)
	for range 3 {
		time.Sleep(500 * time.Millisecond)
		traffic.kills.Add(1)
		s.kill()
		time.Sleep(300 * time.Millisecond) // RestartSec
		s.start()
	}
	time.Sleep(500 * time.Millisecond)
	traffic.end()
	t.Logf("%d connections through 3 restarts, %d failed, %d were cut", traffic.made.Load(), traffic.failed.Load(), traffic.cut.Load())
	if n := traffic.cut.Load(); n > 10 {
		t.Errorf("%d connections were cut: more than a process has between accept and answer", n)
	}
	if n := traffic.failed.Load(); n > 0 {
		t.Errorf("%d of %d new connections failed, the last: %v", n, traffic.made.Load(), traffic.last.Load())
	}
	before := kept.Size()
	s.put("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: " + nodeIP.String() + "}]}\n")
	s.eventually(20*time.Second, "unused sockets are closed", func() error {
		if n := kept.Size(); n > 0 {
			return fmt.Errorf("%d of %d are kept", n, before)
		}
		return nil
	})
}
