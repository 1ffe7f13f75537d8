// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// With --takeover what kube-proxy has left in other modes is removed, and not
// before the program's own rules answer; without it, they are only reported. The rules
// of other programs stay.
func TestTakeOver(t *testing.T) {
	s := newSite(t)
	if _, err := exec.LookPath("iptables-nft"); err != nil {
		t.Skipf("kube-proxy's rules are made with iptables: %v", err)
	}
	s.must("sh", "-c", `printf '%s\n' '*nat' ':KUBE-SERVICES - [0:0]' ':KUBE-SVC-XPGD46QRK7WJZT7O - [0:0]' ':OTHERS - [0:0]' \
'-A PREROUTING -j KUBE-SERVICES' '-A POSTROUTING -j OTHERS' \
'-A KUBE-SERVICES -d 10.96.9.9/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O' COMMIT | iptables-nft-restore --noflush`)
	s.must("nft", `add table ip kube-proxy { comment "rules for kube-proxy"; }`)
	s.write("", "10.244.1.2")

	s.flags = []string{"--proxy-mode", "nftables"}
	s.start()
	left := func() (string, error) { // an error may be an nft that aborts as rules change under its hands
		rules, err := s.run("iptables-nft-save", "-t", "nat")
		tables, err2 := s.run("nft", "list", "tables")
		return rules + tables, errors.Join(err, err2)
	}
	s.eventually(10*time.Second, "reported", func() error {
		if said := s.must(s.bin, "status"); !strings.Contains(said, "--takeover") {
			return fmt.Errorf("status: %s", said)
		}
		return nil
	})
	if now, err := left(); err != nil || !strings.Contains(now, "KUBE-SERVICES") || !strings.Contains(now, "table ip kube-proxy") {
		t.Errorf("removed without the setting (%v):\n%s", err, now)
	}
	s.kill()

	s.flags = append(s.flags, "--takeover")
	s.start()
	s.eventually(10*time.Second, "adopted", func() error {
		now, err := left()
		if err != nil || strings.Contains(now, "KUBE-") || strings.Contains(now, "kube-proxy") {
			return fmt.Errorf("%s (%v)", now, err)
		}
		return s.reach(clusterIP)
	})
	if now, err := left(); err != nil || !strings.Contains(now, "-A POSTROUTING -j OTHERS") {
		t.Errorf("rules of other programs (%v):\n%s", err, now)
	}
}
