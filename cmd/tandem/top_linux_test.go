// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/host"
)

// Connections are counted where the mode counts them; elsewhere one line says so, and those that are open are shown.
func TestTopInModes(t *testing.T) {
	nodePortYAML := strings.NewReplacer("spec:", "spec:\n  type: NodePort", "port: 80,", "port: 80, nodePort: 30080,").Replace(webYAML)
	for mode, counted := range map[string]bool{"userspace": true, "nftables": false, "iptables": true} { // ipvs: linux/ipvs
		t.Run(mode, func(t *testing.T) {
			node := newTestNode(t)
			node.serve("--manifests", folder(t, map[string]string{"web.yaml": nodePortYAML}), "--proxy-mode", mode)
			node.connect("10.96.0.10:80", "192.0.2.1:30080")
			for end := time.Now().Add(time.Minute); ; { // a relay may accept late
				code, out := node.ask("top", "-o", "json", "--interval", "100ms")
				var top question.Top
				if !counted {
					err := json.Unmarshal([]byte(out), &top)
					if want := "connections are not counted in mode " + mode; err != nil || code != exitOK || !strings.HasPrefix(top.NotCounted, want) || !top.Tracked || top.BytesNotCounted == "" {
						t.Errorf("exit code %d, %v: %s", code, err, out)
					}
					topBytes(node)
					return
				}
				if err := json.Unmarshal([]byte(out), &top); err != nil || code != exitOK || time.Now().After(end) {
					t.Fatalf("exit code %d, %v: %s", code, err, out)
				}
				if len(top.Services) == 1 && top.Services[0].Service == "default/web" && top.Services[0].New > 1 {
					for _, f := range top.Services[0].Frontends { // a relay counts by port
						if f.New == 0 {
							t.Errorf("nothing was counted at %s: %s", f.Address, out)
						}
					}
					code, out := node.ask("top", "--endpoints", "--interval", "100ms")
					if want := map[string]int{"iptables": exitOK, "userspace": exitUsage}[mode]; code != want || (code == exitUsage) != strings.Contains(out, "--count-endpoints") {
						t.Errorf("endpoints: exit code %d: %s", code, out)
					}
					return
				}
			}
		})
	}
}

// topBytes asks for the bytes of connections: before the kernel counts them, and then.
func topBytes(t testNode) {
	t.Helper()
	code, out := t.ask("top", "--bytes")
	if code == exitOK || !strings.Contains(out, "sysctl -w net.netfilter.nf_conntrack_acct=1") {
		t.Errorf("bytes are not counted: exit code %d: %s", code, out)
	}
	t.do(func() error {
		if err := (host.Setting{Path: "proc/sys/net/netfilter/nf_conntrack_acct", Want: 1}).Apply("/", slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		c, err := net.Dial("udp", "192.0.2.1:9") // so that there is a connection
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	t.connect("10.96.0.10:80")
	_, out = t.ask("top", "--bytes", "--endpoints", "-o", "json", "--interval", "100ms")
	var top question.Top
	if err := json.Unmarshal([]byte(out), &top); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s := top.Services; len(s) != 1 || s[0].Service != "default/web" || s[0].Traffic == nil || s[0].Traffic.Connections == 0 || s[0].Traffic.Bytes == 0 || len(s[0].Endpoints) == 0 || s[0].Endpoints[0].Traffic.Connections == 0 {
		t.Fatalf("%s", out)
	}
	code, out = t.ask("top", "--endpoints", "--interval", "100ms")
	if code != exitOK || !strings.Contains(out, "OPEN") || !strings.Contains(out, top.Services[0].Endpoints[0].Address) {
		t.Errorf("exit code %d: %s", code, out)
	}
}
