// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestCleanup: what the program has left goes also when the network of the pods
// has gone before.
func TestCleanup(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2025)
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))
	n.start()
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	n.remembers()
	n.stop((*os.Process).Kill)
	n.emu.RemoveNetwork(n.network)
	c := p.command(n.exe, "cleanup")
	c.Env = append(c.Env, "HNSEMU_ADDR="+n.addr)
	out, err := finish(c)
	if err != nil || !strings.Contains(string(out), "kernelspace: nothing of tandem is left") {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	if left := n.emu.Balancers(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	n.sound()
}

// remembers waits until the journal has a load balancer: it is written down a moment
// after it serves.
func (n *node) remembers() {
	n.Helper()
	journal := n.prefix.path(`C:\ProgramData\Tandem\state\hns.journal`)
	for range 250 {
		if text, err := os.ReadFile(journal); err == nil && strings.Contains(string(text), "\nlb ") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	n.Fatal("the journal has no load balancer")
}
