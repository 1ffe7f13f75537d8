// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// Connections are counted where the mode counts them; elsewhere one line says so, and those that are open are shown.
func TestTopInModes(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	nodePortYAML := strings.NewReplacer("spec:", "spec:\n  type: NodePort", "port: 80,", "port: 80, nodePort: 30080,").Replace(webYAML)
	for mode, counted := range map[string]bool{"userspace": true, "nftables": false, "iptables": true} { // ipvs: linux/ipvs
		t.Run(mode, func(t *testing.T) {
			node, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { node.Close() })
			here := func(args ...string) (cmd *exec.Cmd, out *written) {
				t.Helper()
				if err := node.Do(netns.Node, func() (err error) {
					cmd, out, err = program(t.Context(), args...)
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return cmd, out
			}
			running, log := here("run", "--manifests", folder(t, map[string]string{"web.yaml": nodePortYAML}), "--hostname-override", "node-1", "--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16")
			t.Cleanup(func() {
				_ = running.Process.Signal(os.Interrupt)
				_ = running.Wait()
			})
			log.await(t, "services programmed")
			if err := node.Do(netns.Node, func() error { // no answer is needed
				for _, at := range []string{"10.96.0.10:80", "192.0.2.1:30080"} {
					if c, err := net.DialTimeout("tcp", at, time.Second); err == nil {
						_ = c.Close()
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; { // a relay may accept late
				asked, out := here("top", "-o", "json", "--interval", "100ms")
				_ = asked.Wait() // the exit code is checked
				code := asked.ProcessState.ExitCode()
				var top question.Top
				if !counted {
					err := json.Unmarshal([]byte(out.String()), &top)
					if want := "connections are not counted in mode " + mode; err != nil || code != exitOK || !strings.HasPrefix(top.NotCounted, want) || !top.Tracked || top.BytesNotCounted == "" {
						t.Errorf("exit code %d, %v: %s", code, err, out)
					}
					topBytes(t, node, here)
					return
				}
				if err := json.Unmarshal([]byte(out.String()), &top); err != nil || code != exitOK || time.Now().After(end) {
					t.Fatalf("exit code %d, %v: %s", code, err, out)
				}
				if len(top.Services) == 1 && top.Services[0].Service == "default/web" && top.Services[0].New > 1 {
					for _, f := range top.Services[0].Frontends { // a relay counts by port
						if f.New == 0 {
							t.Errorf("nothing was counted at %s: %s", f.Address, out)
						}
					}
					asked, out := here("top", "--endpoints", "--interval", "100ms")
					_ = asked.Wait() // the exit code is checked
					if code, want := asked.ProcessState.ExitCode(), map[string]int{"iptables": exitOK, "userspace": exitUsage}[mode]; code != want || (code == exitUsage) != strings.Contains(out.String(), "--count-endpoints") {
						t.Errorf("endpoints: exit code %d: %s", code, out)
					}
					return
				}
			}
		})
	}
}

// topBytes asks for the bytes of connections: before the kernel counts them, and then.
func topBytes(t *testing.T, node *netns.Net, here func(...string) (*exec.Cmd, *written)) {
	t.Helper()
	asked, out := here("top", "--bytes")
	if err := asked.Wait(); err == nil || !strings.Contains(out.String(), "sysctl -w net.netfilter.nf_conntrack_acct=1") {
		t.Errorf("bytes are not counted: %v: %s", err, out)
	}
	if err := node.Do(netns.Node, func() error {
		if err := (host.Setting{Path: "proc/sys/net/netfilter/nf_conntrack_acct", Want: 1}).Apply("/", slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		c, err := net.Dial("udp", "192.0.2.1:9") // so that there is a connection
		if err == nil {
			_ = c.Close()
		}
		if c, err := net.DialTimeout("tcp", "10.96.0.10:80", time.Second); err == nil { // no answer is needed
			_ = c.Close()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	asked, out = here("top", "--bytes", "--endpoints", "-o", "json", "--interval", "100ms")
	_ = asked.Wait() // what it says is checked
	var top question.Top
	if err := json.Unmarshal([]byte(out.String()), &top); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if s := top.Services; len(s) != 1 || s[0].Service != "default/web" || s[0].Traffic == nil || s[0].Traffic.Connections == 0 || s[0].Traffic.Bytes == 0 || len(s[0].Endpoints) == 0 || s[0].Endpoints[0].Traffic.Connections == 0 {
		t.Fatalf("%s", out)
	}
	asked, out = here("top", "--endpoints", "--interval", "100ms")
	if err := asked.Wait(); err != nil || !strings.Contains(out.String(), "OPEN") || !strings.Contains(out.String(), top.Services[0].Endpoints[0].Address) {
		t.Errorf("%v: %s", err, out)
	}
}
