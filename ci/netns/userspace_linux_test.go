// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/platform"
)

// withoutIPTables starts a command where there is no iptables: in a mount
// namespace of its own, in which what the names lead to is no program.
func withoutIPTables(cmd *exec.Cmd) {
	const hide = `for f in $1; do mount --bind /dev/null "$f" || exit 1; done; shift; exec "$@"`
	cmd.Args = append([]string{"sh", "-c", hide, "sh", strings.Join(iptablesPrograms(), " "), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

// iptablesPrograms are the files behind all names of iptables.
func iptablesPrograms() (files []string) {
	seen := map[string]bool{}
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"", "-nft", "-legacy"} {
			path, err := exec.LookPath(base + variant)
			if err != nil {
				continue
			}
			if real, err := filepath.EvalSymlinks(path); err == nil && !seen[real] {
				seen[real] = true
				files = append(files, real)
			}
		}
	}
	return files
}

func needNFTables(t testing.TB) {
	mode, err := platform.Find(config.NFTables)
	if err == nil {
		err = works(t.Context(), mode)
	}
	if err != nil {
		t.Skip(err)
	}
}

// TestUserspaceWithoutIPTables runs the userspace mode where its rules must be in
// nftables: kill -9 and external changes do not affect users, and switches
// to the nftables mode and back break no connection.
func TestUserspaceWithoutIPTables(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	foreign := "table inet foreign {\n\tchain c {\n\t}\n}\n"
	s.must("nft", foreign)
	before := s.must("nft", "list", "ruleset")
	s.wrap, s.flags = withoutIPTables, []string{"--proxy-mode", string(relay.Mode), "--nodeport-addresses", "localhost,primary"}
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	right := s.must("nft", "list", "ruleset")
	if !strings.Contains(right, "chain KUBE-PORTALS-CONTAINER {") {
		t.Fatalf("the rules are not in nftables:\n%s\n%s", right, s.log.String())
	}
	s.kill()
	s.start()
	if now := s.must("nft", "list", "ruleset"); now != right {
		t.Errorf("a restart changed rules:\n%s\nbefore:\n%s", now, right)
	}
	s.must("nft", "delete table ip tandem-userspace")
	took := s.eventually(5*time.Second, "repaired", func() error {
		return errors.Join(s.reach(clusterIP), s.reach(nodePort))
	})
	t.Logf("a deleted table: repaired after %s", took.Round(time.Millisecond))

	for _, m := range []struct{ from, to config.Mode }{{relay.Mode, config.NFTables}, {config.NFTables, relay.Mode}, {relay.Mode, config.NFTables}} {
		s.switchUnderLoad(m.from, m.to)
		if m.to == config.NFTables {
			s.eventually(time.Minute, "the tables go", func() error { return s.noTable("tandem-userspace") })
		}
	}
	s.kill()
	s.must(s.bin, "cleanup")
	after := s.must("nft", "list", "ruleset")
	for _, family := range []string{"ip", "ip6"} { // of iptables, by which this test looked for what is left
		after = strings.Replace(after, "table "+family+" nat {\n}\n", "", 1)
	}
	if after != before {
		t.Errorf("after cleanup:\n%s\nbefore everything:\n%s", after, before)
	}
}

// noTable is nil once there is no table of a name. nft 1.0.6 reads all rules for
// that, and sometimes aborts when they change during the listing: then it is retried.
func (s *site) noTable(name string) error {
	out, err := s.run("nft", "list", "tables")
	if err == nil && strings.Contains(out, name) {
		err = fmt.Errorf("%w: %s", fs.ErrExist, out)
	}
	return err
}

// What the mode left in nftables goes when there is iptables again, and the
// Services are served all the time after that.
func TestUserspaceFindsIPTablesAgain(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	s.wrap, s.flags = withoutIPTables, []string{"--proxy-mode", string(relay.Mode)}
	s.write("", "10.244.1.2")
	s.start()
	s.kill()
	s.wrap = nil
	s.start()
	s.eventually(time.Minute, "the tables go", func() error { return s.noTable("tandem-userspace") })
	if err := errors.Join(s.answers(clusterIP), s.answers(nodePort)); err != nil {
		t.Error(err)
	}
	if rules := s.rules(); !strings.Contains(rules, "KUBE-PORTALS-HOST") {
		t.Errorf("no rules in iptables:\n%s", rules)
	}
}
