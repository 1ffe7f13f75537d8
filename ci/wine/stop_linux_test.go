// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/windows/hnsemu"
)

// TestStopBeforeTheNetwork: a program that waits for a CNI plug-in to make the
// network exits normally and at once when it is stopped.
func TestStopBeforeTheNetwork(t *testing.T) {
	p := open(t)
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
	if took := time.Since(begun); err != nil || took > 20*time.Second {
		t.Errorf("it ended after %v: %v", took, err)
	}
	if log := n.log.String(); !strings.Contains(log, "stopped during start") {
		t.Errorf("log:\n%s", log)
	}
}
