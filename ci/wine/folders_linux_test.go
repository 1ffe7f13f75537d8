// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hnsemu"
)

// TestPlantedJournal: a user has made the folders and a journal before the first
// start, by which another's load balancer would be deleted. A pod closes the
// folders, and does not trust the journal.
func TestPlantedJournal(t *testing.T) {
	p := open(t)
	if os.Geteuid() != 0 {
		t.Skip("skipped: it takes root to make files that are another program's")
	}
	n := newNode(t, p, hnsemu.WS2025)
	foreign := n.emu.AddBalancer(hns.LoadBalancer{
		HostComputeEndpoints: []string{n.emu.AddPod(n.network, "10.244.1.77")},
		FrontendVIPs:         []string{"10.96.0.99"}, PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 1, ExternalPort: 80}},
	}, true)
	root := p.path(`C:\ProgramData\Tandem`)
	state := filepath.Join(root, "state")
	journal := filepath.Join(state, "hns.journal")
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(journal, []byte("tandem-hns 1\nlb "+foreign+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	for _, path := range []string{root, state, journal} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}

	n.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1"))
	n.start()
	n.serves("10.96.0.10", "10.244.1.2")
	n.serves("10.96.0.99", "10.244.1.77")
	n.stop(func(p *os.Process) error { return p.Signal(os.Interrupt) }) // what it serves is written down a moment later
	for _, path := range []string{root, state, journal} {               // access rights are not checked: Wine keeps no access lists
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o002 != 0 {
			t.Errorf("%s may be written by others: %v", path, info.Mode())
		}
	}
	if text, err := os.ReadFile(journal); err != nil || strings.Contains(string(text), foreign) || !strings.Contains(string(text), "lb ") {
		t.Errorf("the journal (%v):\n%s", err, text)
	}
	if log := n.log.String(); !strings.Contains(log, "deleted untrusted journal") || !strings.Contains(log, "hns.journal") {
		t.Error("no message about the deleted file")
	}
	n.sound()
}
