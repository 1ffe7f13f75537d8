// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestStopBeforeTheNetwork: a program that waits for a CNI plug-in to make the
// network exits normally and at once when it is stopped.
func TestStopBeforeTheNetwork(t *testing.T) {
	p := open(t)
	// A program that has exited is killed by Wine where its threads do not end within half a second (process_sigkill
	// in Wine's server/process.c), as on a busy machine: then its exit code is not known, and it is tried again.
	const attempts = 5
	for attempt := 1; ; attempt++ {
		err := stopBeforeTheNetwork(t, p)
		if err == nil {
			return
		}
		if attempt == attempts || err.Error() != "signal: killed" {
			t.Fatal(err)
		}
		t.Logf("attempt %d: Wine has killed it", attempt)
	}
}

// stopBeforeTheNetwork returns how the program ended.
func stopBeforeTheNetwork(t *testing.T, p *prefix) error {
	n := newNode(t, p, hnsemu.WS2025)
	n.emu.RemoveNetwork(n.network)
	n.start()
	eventually(t, "it looks for the network", func() bool { return n.emu.Calls("HcnEnumerateNetworks") > 0 })
	begun := time.Now()
	if err := n.proxy.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := n.proxy.Wait()
	n.proxy = nil
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it ended after %v", took)
	}
	if log := n.log.String(); !strings.Contains(log, "stopped during start") {
		t.Errorf("log:\n%s", log)
	}
	return err
}

// TestStopWhileABalancerIsMade: a program that is stopped while HNS makes a load balancer waits
// for it, and the journal names it.
func TestStopWhileABalancerIsMade(t *testing.T) {
	p := open(t)
	n := newNode(t, p, hnsemu.WS2025)
	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1"))
	making, stopped := make(chan struct{}), make(chan struct{})
	n.emu.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Name == "HcnCreateLoadBalancer" {
			close(making) // once: no second one begins
			<-stopped
			time.Sleep(500 * time.Millisecond) // Wine tells the program meanwhile
		}
		return 0
	})
	n.start()
	<-making
	n.stop(func(p *os.Process) error {
		defer close(stopped)
		return p.Signal(os.Interrupt)
	})
	n.serves("10.96.0.10", "10.244.1.2")
	text, err := os.ReadFile(p.path(`C:\ProgramData\Tandem\state\hns.journal`))
	for _, lb := range n.emu.Balancers() {
		if !strings.Contains(string(text), "lb "+lb.ID+"\n") {
			t.Errorf("%s is not in the journal (%v):\n%s", lb.ID, err, text)
		}
	}
	n.sound()
}
