// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
)

// lacking is something that a kernel may not have.
type lacking struct {
	name    string
	there   func(*site) bool // whether this kernel has it, found out without the program
	doctor  string           // the check that names it
	reason  string           // a word of it
	flags   []string
	mode    string // that serves then; empty for any
	extra   string // a manifest
	problem string // a word of what status says; empty for nothing, as no setting names it
}

// command reports whether a command works on the node.
func command(words ...string) func(*site) bool {
	return func(s *site) bool { _, err := s.run(words[0], words[1:]...); return err == nil }
}

func lackings() []lacking {
	return []lacking{
		{
			name: "nf_tables", there: command("nft", "list", "tables"),
			doctor: "mode-nftables", reason: "nf_tables", flags: []string{"--proxy-mode", "auto"}, mode: "iptables",
		},
		{
			name: "ipvs", there: command("ipvsadm", "-Ln"),
			doctor: "mode-ipvs", reason: "IPVS", flags: []string{"--proxy-mode", "ipvs"}, mode: "iptables", problem: "ipvs is unavailable",
		},
		{
			name: "flowtables", there: func(s *site) bool {
				return !command("nft", "list", "tables")(s) || command("nft", "table ip probe { flowtable f { hook ingress priority 0; }; }")(s)
			},
			doctor: "degraded-objects", reason: "no flowtables", flags: []string{"--proxy-mode", "nftables", "--accelerate", "flowtable"}, mode: "nftables", problem: "no flowtables",
		},
		{
			name: "ipv6", there: func(*site) bool { _, err := os.Stat("/proc/sys/net/ipv6"); return err == nil },
			doctor: "ipv6", reason: "IPv6 is off", flags: []string{"--proxy-mode", "auto"}, extra: dualStack, problem: "IPv6 is not served",
		},
	}
}

const dualStack = `---
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  ipFamilyPolicy: PreferDualStack
  clusterIP: 10.96.0.66
  clusterIPs: [10.96.0.66, "fd00:96::66"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, protocol: TCP, port: 80}]
`

// TestLackingKernelIsNamed runs the program on a kernel that lacks something: Services
// are served by what there is, and doctor and the status have the reason.
func TestLackingKernelIsNamed(t *testing.T) {
	for _, l := range lackings() {
		t.Run(l.name, func(t *testing.T) {
			s := newSite(t)
			if l.there(s) {
				t.Skipf("this kernel has %s", l.name)
			}
			s.flags = l.flags
			s.write("", "10.244.1.2")
			if err := os.WriteFile(filepath.Join(s.dir, "extra.yaml"), []byte(l.extra), 0o600); err != nil {
				t.Fatal(err)
			}
			s.start()
			if err := s.answers(clusterIP); err != nil {
				t.Error(err)
			}
			doc, err := s.status()
			if err != nil || l.mode != "" && doc.Mode != l.mode {
				t.Errorf("mode %s, %v", doc.Mode, err)
			}
			if l.problem != "" {
				s.eventually(time.Minute, "the status has the reason", func() error {
					doc, err := s.status()
					named := func(p question.Problem) bool { return strings.Contains(p.Detail, l.problem) }
					all := doc.Problems
					for _, one := range doc.Services {
						all = append(all, one.Problems...)
					}
					if err == nil && !strings.Contains(doc.Fallback, l.problem) && !slices.ContainsFunc(all, named) {
						err = fmt.Errorf("no %q in %q and %+v", l.problem, doc.Fallback, all)
					}
					return err
				})
			}
			said, _ := s.run(s.bin, "doctor") // it fails where a check does
			if i := slices.IndexFunc(strings.Split(said, "\n"), func(line string) bool {
				words := strings.Fields(line)
				return len(words) > 1 && words[1] == l.doctor && strings.Contains(line, l.reason)
			}); i < 0 {
				t.Errorf("doctor's check %s does not name %q:\n%s", l.doctor, l.reason, said)
			} else {
				t.Log(strings.Split(said, "\n")[i])
			}
		})
	}
}
