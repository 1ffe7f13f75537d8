// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// mount writes a configuration as the kubelet mounts a ConfigMap: the link
// ..data is switched to a new folder.
func mount(t *testing.T, dir string, version int, fields string) {
	t.Helper()
	folder := fmt.Sprintf("..v%d", version)
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n" + fields
	err := errors.Join(
		os.Mkdir(filepath.Join(dir, folder), 0o700),
		os.WriteFile(filepath.Join(dir, folder, "config.conf"), []byte(text), 0o600),
		os.Symlink(folder, filepath.Join(dir, "..data_tmp")),
		os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")),
	)
	if version == 0 {
		err = errors.Join(err, os.Symlink("..data/config.conf", filepath.Join(dir, "config.conf")))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestConfigurationIsTakenOver runs the program with kube-proxy's configuration
// file and switches the ConfigMap: what can be applied is in effect within a
// second, what cannot is reported, and an invalid file changes nothing.
func TestConfigurationIsTakenOver(t *testing.T) {
	s := newSite(t)
	s.write("", "10.244.1.2")
	conf := t.TempDir()
	mount(t, conf, 0, "")
	s.cmd = exec.Command(s.bin, "--config="+filepath.Join(conf, "config.conf"), "--hostname-override=node-1", "--manifests="+s.dir)
	s.cmd.Stderr = &s.log
	if err := s.net.Do(lab.Node, s.cmd.Start); err != nil {
		t.Fatal(err)
	}
	answers := func() error { return s.reach(nodePort) }
	silent := func() error {
		if s.reach(nodePort) == nil {
			return errors.New("still answered")
		}
		return nil
	}
	told := func(where string) func() error {
		return func() error {
			doc, err := s.status()
			if err == nil && !slices.ContainsFunc(doc.Problems, func(p question.Problem) bool { return strings.HasSuffix(p.Where, where) }) {
				err = fmt.Errorf("problems: %v", doc.Problems)
			}
			return err
		}
	}
	s.eventually(10*time.Second, "the node port answers", answers)

	mount(t, conf, 1, "nodePortAddresses: [198.51.100.0/24]\niptables: {masqueradeBit: 9}\n")
	took := s.eventually(2*time.Second, "the node port is closed", silent)
	s.eventually(2*time.Second, "a required restart is reported", told("config.conf"))
	mount(t, conf, 2, "nodePortAddresses: nonsense\n")
	s.eventually(2*time.Second, "the invalid line is reported", told("config.conf:4"))
	if err := silent(); err != nil {
		t.Errorf("a configuration with a mistake changed something: %v", err)
	}
	mount(t, conf, 3, "")
	back := s.eventually(2*time.Second, "the node port answers again", answers)
	t.Logf("a changed ConfigMap was in effect after %s and %s", took.Round(time.Millisecond), back.Round(time.Millisecond))
	s.eventually(2*time.Second, "nothing is wrong any more", s.inMode("nftables"))

	if _, err := exec.LookPath("iptables-restore"); err != nil {
		t.Skipf("the mode is not changed: %v", err)
	}
	mount(t, conf, 4, "mode: iptables\n")
	s.eventually(10*time.Second, "the mode is changed", s.inMode("iptables"))
	if err := s.answers(nodePort); err != nil {
		t.Errorf("in another mode: %v", err)
	}
	mount(t, conf, 5, "mode: iptables\nnodePortAddresses: [198.51.100.0/24]\n")
	s.eventually(2*time.Second, "the node port is closed in the new mode", silent)
}

// inMode is whether the program serves in a mode, and nothing is wrong.
func (s *site) inMode(mode string) func() error {
	return func() error {
		doc, err := s.status()
		if err == nil && (doc.Mode != mode || len(doc.Problems) > 0) {
			err = fmt.Errorf("mode %s, problems: %v", doc.Mode, doc.Problems)
		}
		return err
	}
}
