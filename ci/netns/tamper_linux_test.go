// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// tampering is one way to break the data plane of a running tandem, and which command
// names it.
type tampering struct {
	what string
	do   string // a shell script on the node
	undo string // where tandem does not repair it
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
	foe := func(what, table, hook, rule, chain string) tampering {
		do := fmt.Sprintf("nft add table %s; nft 'add chain %s %s { type %s; }'", table, table, chain, hook)
		if rule != "" {
			do += fmt.Sprintf("; nft add rule %s %s %s", table, chain, rule)
		}
		return tampering{what, do, "nft delete table " + table, byTrace, "chain " + table + " " + chain + " of another program"}
	}
	return []tampering{
		foe("another program's chain drops before routing", "inet foe", "filter hook prerouting priority -300", "tcp dport 80 drop", "early"),
		foe("another program's chain rewrites the destination first", "ip foe", "nat hook prerouting priority -150", "tcp dport 80 dnat to 10.244.1.4:8080", "hijack"),
		foe("another program's chain drops forwarded packets by policy", "inet foe", "filter hook forward priority 10; policy drop", "", "gate"),
		foe("another program's chain keeps packets from being tracked", "ip foe", "filter hook prerouting priority -300", "tcp dport 80 notrack", "raw"),
		foe("another program's chain clears marks", "ip foe", "filter hook forward priority -150", "meta mark set 0", "unmark"),
		foe("another program's chain rewrites the source", "ip foe", "nat hook postrouting priority 90", "masquerade", "hide"),
	}
}

// nodeTampering is of the node itself, in every mode: doctor names it.
func nodeTampering() []tampering {
	node := func(what, do, undo, check string) tampering { return tampering{what, do, undo, byDoctor, check} }
	sysctl := func(what, name, value, was, check string) tampering {
		return node(what, "sysctl -qw "+name+"="+value, "sysctl -qw "+name+"="+was, check)
	}
	return []tampering{
		sysctl("packets are not forwarded", "net.ipv4.ip_forward", "0", "1", "forwarding-ipv4"),
		node("strict reverse path filter on several uplinks", "sysctl -qw net.ipv4.conf.all.rp_filter=1; ip link add wan2 type veth peer name wan3; ip link set wan2 up; ip route add default dev wan2 metric 900",
			"sysctl -qw net.ipv4.conf.all.rp_filter=0; ip link del wan2", "rp-filter"),
		sysctl("loopback addresses are routed", "net.ipv4.conf.all.route_localnet", "1", "0", "route-localnet"),
		sysctl("connections are forgotten while they last", "net.netfilter.nf_conntrack_tcp_timeout_established", "60", "86400", "conntrack-timeouts"),
		sysctl("hardly any local ports are left", "net.ipv4.ip_local_port_range", "'60000 60100'", "'32768 60999'", "local-port-range"),
		sysctl("local ports overlap with node ports", "net.ipv4.ip_local_port_range", "'10000 60999'", "'32768 60999'", "local-ports"),
		node("no default route", "ip route show default >$dir/route; ip route del default", "ip route add $(cat $dir/route)", "default-route-ipv4"),
		node("an uplink with a small MTU", "ip link set eth0 mtu 1000", "ip link set eth0 mtu 1500", "mtu"),
		node("a tunnel that is larger than its uplink", "ip link add vx type vxlan id 7 dstport 4789; ip link set vx mtu 1500 up", "ip link del vx", "mtu-overlay"),
		node("kube-proxy runs, too", "cp $(command -v sleep) $dir/kube-proxy; $dir/kube-proxy 300 >/dev/null 2>&1 & echo $! >$dir/pid", "kill $(cat $dir/pid)", "kube-proxy"),
		node("the policy for forwarded packets is drop", "iptables -P FORWARD DROP", "iptables -P FORWARD ACCEPT", "forward-policy"),
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
		nft("a frontend without its source ranges", "nft flush set ip tandem source-ranges", "source-ranges"),
		nft("a hairpin deleted", "nft flush set ip tandem hairpin", "hairpin"),
		nft("a cluster IP does not reject other ports", "nft flush set ip tandem cluster-ips", "cluster-ips"),
		nft("a chain flushed", "nft flush chain ip tandem prerouting", "chain ip prerouting"),
		nft("a rule in front", "nft insert rule ip tandem prerouting ip daddr 10.96.0.10 accept", "chain ip prerouting"),
		nft("a rule at the end", "nft add rule ip tandem postrouting accept", "chain ip postrouting"),
		nft("a rule deleted: no SNAT", "nft delete rule ip tandem postrouting handle "+handle("postrouting", "goto masquerading"), "chain ip postrouting"),
		nft("rules in another order", "h="+handle("prerouting", "vmap @vips #")+"; nft delete rule ip tandem prerouting handle $h; nft insert rule ip tandem prerouting ip daddr . meta l4proto . th dport vmap @vips", "chain ip prerouting"),
		nft("a chain of endpoints edited", "nft insert rule ip tandem pick-2 drop", "chain ip pick-2"),
		nft("a chain of endpoints has lost its rules", "nft flush chain ip tandem pick-2", "chain ip pick-2"),
		nft("SNAT to an address of its own", "nft insert rule ip tandem masquerading snat to 192.0.2.9", "chain ip masquerading"),
		nft("a base chain deleted", "nft 'flush chain ip tandem prerouting; delete chain ip tandem prerouting'", "chain ip prerouting"),
		nft("a base chain drops by policy", "nft 'add chain ip tandem filter-forward { policy drop; }'", "chain ip filter-forward"),
		nft("a base chain at another priority", rehang("priority [^;]*;", "priority 50;"), "chain ip prerouting"),
		nft("a chain smuggled in", "nft 'add chain ip tandem smuggled; add rule ip tandem smuggled accept'", "chain ip smuggled"),
		nft("a base chain smuggled in", "nft 'add chain ip tandem first { type filter hook prerouting priority -200; }; add rule ip tandem first tcp dport 80 drop'", "chain ip first"),
		nft("a set smuggled in", "nft 'add set ip tandem smuggled { type ipv4_addr; }'", "smuggled"),
		nft("the table dormant", "nft add table ip tandem '{ flags dormant; }'", ""),
		nft("the table deleted", "nft delete table ip tandem", "table ip"),
	}
}

// rehang is a script that makes the chain of frontends anew, with the same rules and part
// of its declaration replaced.
func rehang(old, replacement string) string {
	return fmt.Sprintf("c=$(nft -nn list chain ip tandem prerouting | sed -E '3s/%s/%s/'); printf '%%s\\n' 'flush chain ip tandem prerouting' 'delete chain ip tandem prerouting' \"$c\" | nft -f -", old, replacement)
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
		ipt("the jump duplicated", "iptables -t nat -A PREROUTING "+jump, "PREROUTING"),
		ipt("the jump for new connections only", "iptables -t nat -R PREROUTING 1 -p udp "+jump, "PREROUTING"),
		ipt("the dispatch deleted", "iptables -t nat -D PREROUTING "+jump+"; iptables -t nat -D OUTPUT "+jump+"; iptables -t nat -F KUBE-SERVICES; iptables -t nat -X KUBE-SERVICES", "KUBE-SERVICES"),
		ipt("a rule duplicated", "c="+first("KUBE-SVC-")+"; { echo '*nat'; iptables-save -t nat | grep -m1 -- \"^-A $c \"; echo COMMIT; } | iptables-restore --noflush", "KUBE-SVC-"),
		ipt("another share for an endpoint", "c="+first("KUBE-SVC-")+"; r=$(iptables-save -t nat | grep -m1 -- \"^-A $c .*probability\" | sed \"s/^-A $c //; s/probability [0-9.]*/probability 0.9/; s/--comment [^ ]*/--comment x/\"); n=$(iptables-save -t nat | grep -- \"^-A $c \" | grep -n probability | head -1 | cut -d: -f1); iptables -t nat -R $c $n $r", "KUBE-SVC-"),
		ipt("unbalanced packets are not rejected", "iptables -F KUBE-FORWARD", "KUBE-FORWARD"),
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

func ipvsTampering() []tampering {
	by := func(what, script, says string) tampering { return tampering{what, script, "", byDrift, says} }
	const frontend, server = "-t 10.96.0.10:80", "virtual server tcp 10.96.0.10:80"
	return []tampering{
		by("a virtual server deleted", "ipvsadm -D "+frontend, server),
		by("all virtual servers deleted", "ipvsadm -C", server),
		by("another scheduler", "ipvsadm -E "+frontend+" -s sh", server),
		by("clients stay with their endpoint", "ipvsadm -E "+frontend+" -s wrr -p 300", server),
		by("an endpoint deleted", "ipvsadm -d "+frontend+" -r 10.244.1.2:8080", "destination 10.244.1.2:8080 of "+server),
		by("an endpoint smuggled in", "ipvsadm -a "+frontend+" -r 10.244.1.4:8080 -m", "destination 10.244.1.4:8080 of "+server),
		by("an endpoint without weight", "ipvsadm -e "+frontend+" -r 10.244.1.2:8080 -m -w 0", "destination 10.244.1.2:8080 of "+server),
		by("an endpoint with more weight", "ipvsadm -e "+frontend+" -r 10.244.1.2:8080 -m -w 9", "destination 10.244.1.2:8080 of "+server),
		by("an ipset flushed", "ipset flush KUBE-CLUSTER-IP", "KUBE-CLUSTER-IP"),
		by("an entry of an ipset deleted", "ipset del KUBE-LOAD-BALANCER 203.0.113.10,tcp:80", "entry KUBE-LOAD-BALANCER"),
		by("an entry of an ipset smuggled in", "ipset add KUBE-CLUSTER-IP 10.96.0.99,tcp:80", "entry KUBE-CLUSTER-IP"),
		by("an entry of an ipset with another mark", "ipset del KUBE-CLUSTER-IP 10.96.0.10,tcp:80; ipset add KUBE-CLUSTER-IP 10.96.0.10,tcp:80 skbmark 0x1000/0x3000", "entry KUBE-CLUSTER-IP"),
		by("a source range opened", "ipset add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.10,tcp:80,0.0.0.0/1", "KUBE-LOAD-BALANCER-SOURCE-CIDR"),
		by("an ipset exchanged", "ipset create smuggled hash:ip family inet maxelem 16777216; ipset swap smuggled KUBE-IPVS-IPS; ipset destroy smuggled", "KUBE-IPVS-IPS"),
		by("an address deleted", "ip addr del 10.96.0.10/32 dev kube-ipvs0", "address 10.96.0.10"),
		by("an address smuggled in", "ip addr add 10.96.0.99/32 dev kube-ipvs0", "address 10.96.0.99"),
		by("the device deleted", "ip link del kube-ipvs0", "link kube-ipvs0"),
		by("the routing rule deleted", "ip rule del priority 99", "routing rule"),
		by("a route deleted", "ip route flush table 254514", "local route to 203.0.113.10"),
		by("a chain flushed", "iptables -t mangle -F KUBE-SERVICES", "chain mangle KUBE-SERVICES"),
		by("a rule in front", "iptables -t mangle -I KUBE-SERVICES -d 10.96.0.10 -j RETURN", "chain mangle KUBE-SERVICES"),
		by("the jump deleted", "iptables -t mangle -D PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES", "jump to"),
		by("the jump duplicated", "iptables -t mangle -A PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES", "jump to"),
		by("SNAT taken out", "iptables -t nat -F KUBE-IPVS-POSTROUTING", "KUBE-IPVS-POSTROUTING"),
		{"IPVS does not track connections", "sysctl -qw net.ipv4.vs.conntrack=0", "sysctl -qw net.ipv4.vs.conntrack=1", byDoctor, "ipvs-conntrack"},
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
		ipt("a relay does not listen", "ss -KHtln src 169.254.84.1", "relay"),
		ipt("the relays' address removed", "ip addr del 169.254.84.1/32 dev lo", "169.254.84.1"),
	}
}

// tampered is a mode with what is broken in it.
type tampered struct {
	mode    string
	variant *xtables.Variant // of iptables; nil where there is none to choose
	own     []tampering
}

func (c *tampered) name() string {
	if c.variant == nil {
		return c.mode
	}
	return fmt.Sprint(c.mode, "-", *c.variant)
}

// all is what is done in the mode. The node is the same in all of them: one is enough. In
// a guest, where ipvs is, each takes long.
func (c *tampered) all() []tampering {
	switch c.mode {
	case "ipvs":
		return c.own
	case "nftables":
		return slices.Concat(c.own, rulesOfOthers(), nodeTampering())
	}
	return slices.Concat(c.own, rulesOfOthers())
}

func everyTampering() []tampered {
	legacy, nft := xtables.Legacy, xtables.NFT
	return []tampered{
		{"nftables", nil, nftablesTampering()},
		{"iptables", &legacy, iptablesTampering()},
		{"iptables", &nft, iptablesTampering()},
		{"ipvs", nil, ipvsTampering()},
		{string(relay.Mode), nil, userspaceTampering()},
	}
}

// TestTamperingIsNamed breaks the data plane of a running tandem in every way above, in
// each mode that this machine has: drift, trace or doctor must name each. What a guest is
// needed for is run by ci/guest/run.
func TestTamperingIsNamed(t *testing.T) {
	kinds := map[string]bool{}
	for _, c := range everyTampering() {
		for _, k := range c.all() {
			kinds[k.what] = true
		}
		t.Run(c.name(), func(t *testing.T) {
			if c.variant != nil {
				UseVariant(t, *c.variant)
			}
			s := newSite(t)
			s.works(c.mode)
			s.put(tamperedManifests)
			s.flags = []string{"--proxy-mode", c.mode}
			s.start()
			s.quiet()
			for _, k := range c.all() {
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
	dir := "dir=" + t.TempDir() + "; "
	start := time.Now()
	if out, err := s.run("bash", "-ec", dir+k.do); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var said string
	switch k.by {
	case byDrift:
		said = s.driftSince(t, start)
	case byTrace:
		said, _ = s.run(s.bin, "trace", "10.244.1.10", "default/web:http")
	default:
		said, _ = s.run("bash", "-c", s.bin+" doctor | grep -iE '^(fail|warn|note) +"+k.says+" '")
	}
	if said == "" || !strings.Contains(said, k.says) {
		t.Errorf("%s does not name it (%q): %s", k.by, k.says, said)
	}
	if k.undo != "" {
		if out, err := s.run("bash", "-ec", dir+k.undo); err != nil {
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
	var d question.Drift
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

// TestFirstDriftNamesItsWriter: with the first change by another program after a start its
// name is in drift, log and history.
func TestFirstDriftNamesItsWriter(t *testing.T) {
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
			if s.driftSince(t, start); !slices.Equal(s.firstWriters(t), []string{c.name}) {
				t.Errorf("drift says that %v did it, not %s alone", s.firstWriters(t), c.name)
			}
			if out := s.must(s.bin, "history"); !strings.Contains(out, "  by "+c.name+" ") {
				t.Errorf("the history does not name it: %s", out)
			}
			s.kill() // it writes its log no more
			if want := fmt.Sprintf("by=%q", c.name); !strings.Contains(s.log.String(), want) {
				t.Errorf("the log has no %s", want)
			}
		})
	}
}

// firstWriters are the programs by the oldest drift that is known, each once.
func (s *site) firstWriters(t *testing.T) (names []string) {
	t.Helper()
	var d question.Drift
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
	return slices.Compact(names)
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

// TestLiberalTurnedOff: rules that drop no invalid packets, since connection tracking was
// liberal at the start, are a problem once it no longer is; doctor names the sysctl.
func TestLiberalTurnedOff(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			s := newSite(t)
			s.works(mode)
			const sysctl = "net.netfilter.nf_conntrack_tcp_be_liberal"
			s.must("sysctl", "-qw", sysctl+"=1")
			s.put(tamperedManifests)
			s.flags = []string{"--proxy-mode", mode}
			s.start()
			for _, step := range []struct{ value, level string }{{"", "ok"}, {"0", "warn"}, {"1", "ok"}} {
				if step.value != "" {
					s.must("sysctl", "-qw", sysctl+"="+step.value)
				}
				s.eventually(20*time.Second, "doctor says "+step.level, func() error {
					out, _ := s.run("bash", "-c", s.bin+" doctor | grep -iE '^(ok|note|warn|fail) +degraded-objects '")
					if !strings.HasPrefix(strings.ToLower(out), step.level) || strings.Contains(out, sysctl) != (step.level == "warn") {
						return fmt.Errorf("%s=%s: %s", sysctl, step.value, out)
					}
					return nil
				})
			}
		})
	}
}
