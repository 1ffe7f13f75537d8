// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// tampering is one way to break the data plane of a running tandem, and which command
// names it.
type tampering struct {
	what string
	do   string // a shell script on the node
	undo string // where tandem does not mend it
	by   string // drift, trace or doctor
	says string // part of its message
}

const (
	byDrift  = "drift"
	byTrace  = "trace"
	byDoctor = "doctor"
)

// rulesOfOthers are rules of other programs that packets traverse in every mode.
func rulesOfOthers() []tampering {
	return []tampering{
		{"another program's chain drops before routing", "nft add table inet foe; nft 'add chain inet foe early { type filter hook prerouting priority -300; }'; nft add rule inet foe early tcp dport 80 drop", "nft delete table inet foe", byTrace, "chain inet foe early of another program"},
		{"another program's chain rewrites the destination first", "nft add table ip foe; nft 'add chain ip foe hijack { type nat hook prerouting priority -150; }'; nft add rule ip foe hijack tcp dport 80 dnat to 10.244.1.4:8080", "nft delete table ip foe", byTrace, "chain ip foe hijack of another program"},
		{"another program's chain drops forwarded packets by policy", "nft add table inet foe; nft 'add chain inet foe gate { type filter hook forward priority 10; policy drop; }'", "nft delete table inet foe", byTrace, "chain inet foe gate of another program"},
		{"packets are not forwarded", "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1", byDoctor, "forwarding-ipv4"},
	}
}

func nftablesTampering() []tampering {
	nft := func(what, script, says string) tampering { return tampering{what, script, "", byDrift, says} }
	handle := func(chain, part string) string {
		return fmt.Sprintf("$(nft -a list chain ip tandem %s | grep %q | head -1 | sed 's/.*# handle //')", chain, part)
	}
	return []tampering{
		nft("a frontend deleted", "nft delete element ip tandem vips '{ 10.96.0.10 . tcp . 80 }'", "10.96.0.10 . tcp . 80"),
		nft("a frontend leads elsewhere", "nft 'delete element ip tandem vips { 10.96.0.10 . tcp . 80 }; add element ip tandem vips { 10.96.0.10 . tcp . 80 : drop }'", "10.96.0.10 . tcp . 80"),
		nft("a frontend smuggled in", "nft add element ip tandem vips '{ 10.96.0.99 . tcp . 80 : drop }'", "10.96.0.99 . tcp . 80"),
		nft("an override for pods deleted", "nft delete element ip tandem vips-pod '{ 203.0.113.10 . tcp . 80 }'", "vips-pod"),
		nft("an endpoint deleted", "nft delete element ip tandem slots '{ 10.96.0.10 . tcp . 80 . 0 }'", "10.96.0.10 . tcp . 80 . 0"),
		nft("an endpoint exchanged", "nft 'delete element ip tandem slots { 10.96.0.10 . tcp . 80 . 1 }; add element ip tandem slots { 10.96.0.10 . tcp . 80 . 1 : 10.244.1.4 . 9 }'", "10.244.1.4 . 9"),
		nft("all endpoints flushed", "nft flush map ip tandem slots", "slots"),
		nft("a node port deleted", "nft delete element ip tandem nodeports '{ tcp . 30080 }'", "nodeports"),
		nft("node ports answer on another address", "nft add element ip tandem nodeport-addresses '{ 192.0.2.77 }'", "192.0.2.77"),
		nft("a source range deleted", "nft flush set ip tandem allowed", "allowed"),
		nft("a source range added", "nft add element ip tandem allowed '{ 203.0.113.10 . tcp . 80 . 0.0.0.0/1 }'", "0.0.0.0/1"),
		nft("a guard deleted", "nft flush set ip tandem guarded", "guarded"),
		nft("a hairpin deleted", "nft flush set ip tandem hairpin", "hairpin"),
		nft("a cluster IP does not refuse other ports", "nft flush set ip tandem cluster-ips", "cluster-ips"),
		nft("a chain flushed", "nft flush chain ip tandem prerouting", "chain ip prerouting"),
		nft("a rule in front", "nft insert rule ip tandem prerouting ip daddr 10.96.0.10 accept", "chain ip prerouting"),
		nft("a rule at the end", "nft add rule ip tandem postrouting accept", "chain ip postrouting"),
		nft("a rule deleted: no SNAT", "nft delete rule ip tandem postrouting handle "+handle("postrouting", "goto masquerading"), "chain ip postrouting"),
		nft("rules in another order", "h="+handle("prerouting", "vmap @vips #")+"; nft delete rule ip tandem prerouting handle $h; nft insert rule ip tandem prerouting ip daddr . meta l4proto . th dport vmap @vips", "chain ip prerouting"),
		nft("a chain of endpoints edited", "nft insert rule ip tandem pick-2 drop", "chain ip pick-2"),
		nft("the table dormant", "nft add table ip tandem '{ flags dormant; }'", ""),
		nft("the table deleted", "nft delete table ip tandem", "table ip"),
	}
}

// first is a shell word: the first name of a chain that starts with a prefix.
func first(prefix string) string {
	return "$(iptables-save -t nat | grep -o '" + prefix + "[A-Z0-9]*' | head -1)"
}

func iptablesTampering() []tampering {
	ipt := func(what, script, says string) tampering { return tampering{what, script, "", byDrift, says} }
	jump := "-m comment --comment 'kubernetes service portals' -j KUBE-SERVICES"
	return []tampering{
		ipt("the jump deleted", "iptables -t nat -D PREROUTING "+jump, "PREROUTING"),
		ipt("the jump for the node itself deleted", "iptables -t nat -D OUTPUT "+jump, "OUTPUT"),
		ipt("the jump to SNAT deleted", "iptables -t nat -D POSTROUTING -m comment --comment 'kubernetes postrouting rules' -j KUBE-POSTROUTING", "POSTROUTING"),
		ipt("the dispatch flushed", "iptables -t nat -F KUBE-SERVICES", "KUBE-SERVICES"),
		ipt("a rule in front", "iptables -t nat -I KUBE-SERVICES -d 10.96.0.10/32 -j RETURN", "KUBE-SERVICES"),
		ipt("an endpoint leads elsewhere", "c="+first("KUBE-SEP-")+"; iptables -t nat -F $c; iptables -t nat -A $c -p tcp -j DNAT --to-destination 10.244.1.4:9", "KUBE-SEP-"),
		ipt("a Service flushed", "iptables -t nat -F "+first("KUBE-SVC-"), "KUBE-SVC-"),
		ipt("an endpoint never chosen", "iptables -t nat -D "+first("KUBE-SVC-")+" 2", "KUBE-SVC-"),
		ipt("rules in another order", "c="+first("KUBE-SVC-")+"; r=$(iptables-save -t nat | grep -- \"^-A $c .*DNAT\" | sed \"s/^-A $c //\"); iptables -t nat -D $c 3; iptables -t nat -I $c 1 $r", "KUBE-SVC-"),
		ipt("SNAT without its mark", "iptables -t nat -F KUBE-MARK-MASQ", "KUBE-MARK-MASQ"),
		ipt("SNAT taken out", "iptables -t nat -D KUBE-POSTROUTING 3", "KUBE-POSTROUTING"),
		ipt("the firewall of a load balancer flushed", "iptables -F KUBE-PROXY-FIREWALL", "KUBE-PROXY-FIREWALL"),
		ipt("a source range opened", "iptables -t nat -I "+first("KUBE-FW-")+" -j "+first("KUBE-EXT-"), "KUBE-FW-"),
		ipt("the whole table flushed", "iptables -t nat -F", "KUBE-"),
		ipt("the filter table flushed", "iptables -F", "KUBE-"),
		{"another program's rule before tandem's", "iptables -t nat -I PREROUTING -p tcp --dport 80 -j ACCEPT", "iptables -t nat -D PREROUTING -p tcp --dport 80 -j ACCEPT", byTrace, "comes before tandem's"},
	}
}

func userspaceTampering() []tampering {
	ipt := func(what, script, says string) tampering { return tampering{what, script, "", byDrift, says} }
	return []tampering{
		ipt("the jump deleted", "iptables -t nat -D PREROUTING -m comment --comment 'Kubernetes Services, by relays of tandem' -j KUBE-PORTALS-IN", "PREROUTING"),
		ipt("all frontends flushed", "iptables -t nat -F KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-CONTAINER"),
		ipt("a frontend deleted", "iptables -t nat -D KUBE-PORTALS-HOST 1", "KUBE-PORTALS-HOST"),
		ipt("a frontend leads elsewhere", "iptables -t nat -R KUBE-PORTALS-CONTAINER 1 -d 10.96.0.10/32 -p tcp -m comment --comment default/web:http -m tcp --dport 80 -j DNAT --to-destination 169.254.84.1:9", "10.96.0.10:80"),
		ipt("a rule smuggled in", "iptables -t nat -I KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -j RETURN", "KUBE-PORTALS-CONTAINER"),
		ipt("a source range opened", "iptables -t nat -F KUBE-PORTALS-GUARD", "KUBE-PORTALS-GUARD"),
		ipt("the way in edited", "iptables -t nat -D KUBE-PORTALS-IN 2", "KUBE-PORTALS-IN"),
		ipt("the relays' address removed", "ip addr del 169.254.84.1/32 dev lo", "169.254.84.1"),
	}
}

// TestTamperingIsNamed breaks the data plane of a running tandem in every way above, in
// each mode that this machine has: drift, trace or doctor must name each.
func TestTamperingIsNamed(t *testing.T) {
	kinds := map[string]bool{}
	for _, c := range []struct {
		mode    string
		variant string
		all     []tampering
	}{
		{"nftables", "", nftablesTampering()},
		{"iptables", "legacy", iptablesTampering()},
		{"iptables", "nft", iptablesTampering()},
		{string(relay.Mode), "", userspaceTampering()},
	} {
		for _, k := range append(c.all, rulesOfOthers()...) {
			kinds[c.mode+" "+k.what] = true
		}
		t.Run(strings.TrimSuffix(c.mode+"-"+c.variant, "-"), func(t *testing.T) {
			if c.variant != "" {
				i := map[string]int{"legacy": 0, "nft": 1}[c.variant]
				UseVariant(t, [...]xtables.Variant{xtables.Legacy, xtables.NFT}[i])
			}
			s := newSite(t)
			s.put(tamperedManifests)
			s.flags = []string{"--proxy-mode", c.mode}
			s.start()
			s.quiet()
			for _, k := range append(c.all, rulesOfOthers()...) {
				t.Run(k.what, func(t *testing.T) { s.tamper(t, k) })
			}
		})
	}
	t.Logf("%d kinds of tampering", len(kinds))
	if len(kinds) < 40 {
		t.Errorf("only %d kinds of tampering", len(kinds))
	}
}

// quiet checks that nothing is reported without tampering.
func (s *site) quiet() {
	s.t.Helper()
	if out, err := s.run(s.bin, "drift"); err != nil {
		s.t.Fatalf("drift before anything was done: %v: %s", err, out)
	}
	if out, err := s.run(s.bin, "trace", "10.244.1.10", "default/web:http"); err != nil || strings.Contains(out, "! ") {
		s.t.Fatalf("trace before anything was done: %v: %s", err, out)
	}
}

// tamper breaks one object and expects its name; then everything must work again.
func (s *site) tamper(t *testing.T, k tampering) {
	start := time.Now()
	if out, err := s.run("bash", "-ec", k.do); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var said string
	switch k.by {
	case byDrift:
		said = s.driftSince(t, start)
	case byTrace:
		said, _ = s.run(s.bin, "trace", "10.244.1.10", "default/web:http")
	default:
		said, _ = s.run("bash", "-c", s.bin+" doctor | grep -iE '^(fail|warn|note)'")
	}
	if said == "" || !strings.Contains(said, k.says) {
		t.Errorf("%s does not name it (%q): %s", k.by, k.says, said)
	}
	if k.undo != "" {
		if out, err := s.run("bash", "-ec", k.undo); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s.t = t
	s.eventually(20*time.Second, "well again", func() error {
		if out, err := s.run(s.bin, "drift"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		out, err := s.run(s.bin, "trace", "10.244.1.10", "default/web:http")
		if err != nil || strings.Contains(out, "! ") {
			return fmt.Errorf("trace: %w: %s", err, out)
		}
		return nil
	})
}

// driftSince has tandem look, and lists what was found after a time, by that look or a
// little earlier by tandem itself.
func (s *site) driftSince(t *testing.T, start time.Time) string {
	t.Helper()
	out, err := s.run(s.bin, "drift", "-o", "json")
	var d status.Drift
	text, _, _ := strings.Cut(out, "\ntandem: ")
	if bad := json.Unmarshal([]byte(text), &d); bad != nil {
		t.Fatalf("drift: %v, %v: %s", err, bad, out)
	}
	var b strings.Builder
	for _, x := range append(d.Now, d.Before...) {
		if x.FoundAt.After(start) {
			fmt.Fprintf(&b, "%s %s: %s, not %s\n", x.State, x.Object, x.Found, x.Wanted)
		}
	}
	return b.String()
}

// TestFirstDriftNamesWhoDidIt: with the first change by another program after a start its
// name is in drift, log and history.
func TestFirstDriftNamesWhoDidIt(t *testing.T) {
	for _, c := range []struct{ mode, do, name string }{
		{"nftables", "nft flush map ip tandem slots", "nft"},
		{"iptables", "exec iptables-nft -t nat -F KUBE-SERVICES", "iptables-nft"},
		{string(relay.Mode), "exec iptables-nft -t nat -F KUBE-PORTALS-CONTAINER", "iptables-nft"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			if c.mode != "nftables" {
				UseVariant(t, xtables.NFT)
			}
			s := newSite(t)
			s.put(tamperedManifests)
			s.flags = []string{"--proxy-mode", c.mode}
			s.start()
			start := time.Now()
			s.must("bash", "-ec", c.do)
			if s.driftSince(t, start); !slices.Contains(s.firstWriters(t), c.name) {
				t.Errorf("drift says that %v did it, not %s", s.firstWriters(t), c.name)
			}
			if out := s.must(s.bin, "history"); !strings.Contains(out, "by "+c.name) {
				t.Errorf("the history does not name it: %s", out)
			}
			s.kill() // it writes its log no more
			if want := fmt.Sprintf("by=%q", c.name); !strings.Contains(s.log.String(), want) {
				t.Errorf("the log has no %s", want)
			}
		})
	}
}

// firstWriters are the programs by the oldest drift that is known.
func (s *site) firstWriters(t *testing.T) (names []string) {
	t.Helper()
	var d status.Drift
	if err := json.Unmarshal([]byte(s.must(s.bin, "drift", "-o", "json")), &d); err != nil {
		t.Fatal(err)
	}
	all := append(d.Now, d.Before...)
	if len(all) == 0 {
		t.Fatal("no drift is known")
	}
	for _, w := range all[len(all)-1].By {
		names = append(names, w.Name)
	}
	return names
}

const tamperedManifests = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: http, port: 80, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.2], nodeName: node-1}
- {addresses: [10.244.2.2], nodeName: node-2}
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
`
