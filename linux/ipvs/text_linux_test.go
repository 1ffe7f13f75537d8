// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
)

// The plan is what the system's own tools read: they program it, and what they
// list is what the driver makes.
func TestToolsReadThePlan(t *testing.T) {
	s := newSite(t)
	w := testWorld()
	objects, _ := dataplane.Compile(NewCompiler(Options{}), w.Host, w.Ports())
	dir := t.TempDir()
	for i, part := range strings.Split(Script(Options{}, objects), "# ")[1:] {
		command, text, _ := strings.Cut(part, "\n")
		file := filepath.Join(dir, string(rune('a'+i)))
		if err := os.WriteFile(file, []byte(strings.TrimSpace(text)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(command, "ip -") {
			s.run("sh", "-c", command+" "+file)
			continue
		}
		s.run("sh", "-c", command+" <"+file)
	}
	planned := s.run("ipvsadm", "-Sn") + s.run("sh", "-c", "ipset save | grep ^add | sort")
	s.run("sh", "-c", "ipvsadm -C; for t in mangle nat filter; do iptables -t $t -F; iptables -t $t -X; ip6tables -t $t -F; ip6tables -t $t -X; done; ipset destroy")
	s.open()
	s.SetHost(w.Host)
	s.set(w.Ports()...)
	if made := s.run("ipvsadm", "-Sn") + s.run("sh", "-c", "ipset save | grep ^add | sort"); count(made) != count(planned) {
		t.Errorf("the plan gives\n%s\nthe driver\n%s", planned, made)
	}
}

func count(s string) int { return strings.Count(s, "\n") }
