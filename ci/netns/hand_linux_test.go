// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// hand is a proxy of hand-written rules, one set a step. It shows that the
// folder and the settings reach a proxy, and nothing more.
type hand struct {
	net   *lab.Net
	nft   string
	rules []string
	dir   string
}

func (h *hand) Start(_ context.Context, dir string, host config.Config) error {
	if host.PodBridge != "cbr0" {
		return fmt.Errorf("pods come by %q", host.PodBridge)
	}
	h.dir = dir
	return nil
}

func (h *hand) Changed(ctx context.Context) error {
	if _, err := os.Stat(h.dir + "/web.yaml"); err != nil {
		return err
	}
	rules := h.rules[0]
	h.rules = h.rules[1:]
	return h.net.Do(lab.Node, func() error {
		cmd := exec.CommandContext(ctx, h.nft, "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

func (h *hand) Stop() error { return nil }

// The mark 1 is for masquerading. Everything after 10.96.0.2 is what it is
// for all senders.
const handRules = `
table inet hand
delete table inet hand
table inet hand {
	chain vips {
		ip saddr 192.0.2.100 mark set 1
		ip6 saddr 2001:db8::100 mark set 1
		ip daddr 10.96.0.1 tcp dport 80 dnat ip to numgen random mod SIZE map { ENDPOINTS }
		ip daddr 10.96.0.2 tcp dport 80 dnat ip to jhash ip saddr mod 2 seed 7 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080 }
		ip daddr 10.96.0.5 udp dport 53 dnat ip to 10.244.1.2:53
		ip daddr 10.96.0.6 sctp dport 80 dnat ip to 10.244.1.2:9000
		ip daddr 10.96.0.7 tcp dport 80 dnat ip to 192.0.2.1:9000
		ip6 daddr fd00:10:96::1 tcp dport 80 dnat ip6 to [fd00:10:244:1::2]:8080
	}
	chain no-endpoints {
		ip daddr 10.96.0.3 reject
		ip6 daddr fd00:10:96::3 reject
		ip daddr 10.96.0.4 FATE
	}
	chain pre  { type nat hook prerouting priority -100; jump vips; }
	chain out  { type nat hook output priority -100; jump vips; }
	chain post {
		type nat hook postrouting priority 100
		mark 1 masquerade
		ip saddr 10.244.1.2 ip daddr 10.244.1.2 masquerade
		ip saddr 10.244.2.2 ip daddr 10.244.2.2 masquerade
	}
	chain filter_pre { type filter hook prerouting priority -150; jump no-endpoints; }
	chain filter_out { type filter hook output priority -150; jump no-endpoints; }
}`

func handWritten(t *testing.T) Make {
	t.Helper()
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the test's own rules need the nft command: ", err)
	}
	first := strings.NewReplacer("SIZE", "2", "ENDPOINTS", "0 : 10.244.1.2 . 8080, 1 : 10.244.2.2 . 8080", "FATE", "drop")
	second := strings.NewReplacer("SIZE", "1", "ENDPOINTS", "0 : 10.244.2.2 . 8080", "FATE", "reject")
	return func(net *lab.Net, _ *conformance.Scenario) (Proxy, error) {
		return &hand{net: net, nft: nft, rules: []string{first.Replace(handRules), second.Replace(handRules)}}, nil
	}
}

func parse(t *testing.T, text string) *conformance.Scenario {
	t.Helper()
	s, err := conformance.Parse("hand-written.txtar", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRightTable(t *testing.T) {
	proxy := handWritten(t)
	text, err := os.ReadFile("testdata/hand-written.txtar")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), parse(t, string(text)), t.TempDir(), proxy)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Failures {
		t.Error(f)
	}
	if r.Scenarios != 1 || r.Steps != 2 || r.Packets+len(r.Skipped) < 24 {
		t.Errorf("not everything was done: %s", r)
	}
	t.Log(r)
}

// TestWrongTables changes one row at a time to what does not happen. Each must
// be found, in the row's line.
func TestWrongTables(t *testing.T) {
	proxy := handWritten(t)
	file, err := os.ReadFile("testdata/hand-written.txtar")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(file), "-- packets --\n")
	const pair = "10.244.1.2:8080 10.244.2.2:8080"
	for _, test := range []struct{ row, want string }{
		{"pod tcp 10.96.0.1:80 -> 10.244.1.2:8080", "10.244.2.2:8080 must not be reached"},
		{"pod tcp 10.96.0.1:80 -> " + pair + " 10.244.2.3:8080", "10.244.2.3:8080 never reached in 120 connections"},
		{"pod tcp 10.96.0.1:80 -> " + pair + " snat", "sees 10.244.1.10, want an address of the node"},
		{"outside tcp 10.96.0.1:80 -> " + pair, "sees 192.0.2.1, want the client 192.0.2.100"},
		{"10.244.1.2 tcp 10.96.0.1:80 -> " + pair, "10.244.1.2:8080 sees 192.0.2.1, want the client 10.244.1.2"},
		{"198.51.100.9 tcp 10.96.0.1:80 -> " + pair + " snat", "sees 198.51.100.9, want an address of the node"},
		{"pod tcp 10.96.0.1:80 -> " + pair + " affinity", "affinity not kept"},
		{"pod tcp 10.96.0.2:80 -> " + pair, "never reached"},
		{"pod tcp 10.96.0.1:80 -> reject", "want reject, got an answer by"},
		{"pod tcp 10.96.0.1:80 -> drop", "want drop, got an answer by"},
		{"pod tcp 10.96.0.1:80 -> pass", "want pass, got an answer by"},
		{"pod tcp 10.96.0.3:80 -> drop", "want drop, got refused"},
		{"pod tcp 10.96.0.3:80 -> pass", "want pass, got refused"},
		{"pod udp 10.96.0.3:80 -> " + pair, "got refused"},
		{"pod tcp 10.96.0.4:80 -> reject", "want reject, got timed out"},
		{"host udp 10.96.0.4:80 -> 10.244.1.2:53", "got timed out"},
		{"outside tcp 192.0.2.1:30080 -> drop", "want drop, got refused"},
		{"pod udp 10.96.0.5:53 -> reject", "want reject, got an answer by 10.244.1.2:53"},
		{"pod tcp [fd00:10:96::1]:80 -> [fd00:10:244:1::2]:8080 snat", "sees fd00:10:244:1::10, want an address of the node"},
		{"pod tcp [fd00:10:96::1]:80 -> [fd00:10:244:1::3]:8080", "[fd00:10:244:1::2]:8080 must not be reached"},
		{"host tcp [fd00:10:96::3]:80 -> drop", "want drop, got refused"},
		{"pod sctp 10.96.0.6:80 -> reject", "want reject, got an answer by 10.244.1.2:9000"},
	} {
		t.Run(test.row, func(t *testing.T) {
			t.Parallel()
			// What may answer wrongly is there all the same.
			servers := "-- 1/packets --\npod tcp 10.96.0.1:80 -> 10.244.2.2:8080\npod udp 10.96.0.5:53 -> 10.244.1.2:53\n" +
				"pod tcp [fd00:10:96::1]:80 -> [fd00:10:244:1::2]:8080\npod sctp 10.96.0.6:80 -> 10.244.1.2:9000\n"
			patience := time.Duration(0)
			if strings.Contains(test.want, "timed out") {
				patience = 5 * time.Second
			}
			r, err := runWith(t.Context(), parse(t, head+"-- packets --\n"+test.row+"\n"+servers), t.TempDir(), proxy, patience)
			if err != nil {
				t.Fatal(err)
			}
			for reason := range r.Skipped {
				t.Skip(reason)
			}
			line := fmt.Sprintf("hand-written.txtar:%d: ", strings.Count(head, "\n")+2)
			if len(r.Failures) != 1 || !strings.HasPrefix(r.Failures[0], line) || !strings.Contains(r.Failures[0], test.want) {
				t.Errorf("want one failure, %s...%s, got %q", line, test.want, r.Failures)
			}
		})
	}
}
