// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
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

// TestPlantedConfiguration: a user has made the folder, a log and a configuration before the
// first start, by which a service would do as it says with the rights of the system. The log is
// not written to. Neither install nor a service that starts accepts it, and another one is accepted.
func TestPlantedConfiguration(t *testing.T) {
	p := open(t)
	if os.Geteuid() != 0 {
		t.Skip("skipped: it takes root to make files that are another program's")
	}
	s := newService(t, p)
	s.write("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1"))
	config := p.path(`C:\ProgramData\Tandem\config.yaml`)
	own := func(nobody int) {
		t.Helper()
		for _, path := range []string{filepath.Dir(config), config} {
			if err := os.Chown(path, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: kernelspace\n"+
		"metricsBindAddress: 127.0.0.1:42049\nhealthzBindAddress: 127.0.0.1:42056\nhostnameOverride: node-1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--config", configFile, "--manifests", windowsPath(s.manifests)}
	own(65534)
	s.refuses(`icacls "C:\ProgramData\Tandem" /setowner`, append([]string{"install"}, flags...)...)
	own(0)
	s.does("install", flags...)
	planted := p.path(`C:\ProgramData\Tandem\logs\tandem.log`) // whose maker could read it
	if err := errors.Join(os.WriteFile(planted, []byte("planted\n"), 0o666), os.Chown(planted, 65534, 65534)); err != nil {
		t.Fatal(err)
	}

	own(65534)
	_ = s.tandem("start") // how much of its start it survives is a matter of luck
	s.is("STOPPED")
	if log := s.logged(); !strings.Contains(log, `--config: C:\ProgramData\Tandem is owned by`) {
		t.Errorf("log:\n%s", log)
	}
	s.serves("10.96.0.10", "")
	if info, err := os.Stat(planted); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || strings.Contains(s.logged(), "planted") {
		t.Errorf("the log: %v, %v", info, err)
	}
	own(0)
	s.does("start")
	s.serves("10.96.0.10", "10.244.1.2")

	s.does("stop")
	manifest := filepath.Join(s.manifests, "web.yaml")
	if err := os.Chmod(manifest, 0o666); err != nil {
		t.Fatal(err)
	}
	_ = s.tandem("start")
	s.is("STOPPED")
	if log := s.logged(); !strings.Contains(log, "writable by Everyone") || !strings.Contains(log, "web.yaml") {
		t.Errorf("log:\n%s", log)
	}
	s.does("uninstall")
}
