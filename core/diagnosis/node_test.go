// SPDX-License-Identifier: Apache-2.0

package diagnosis_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// linux is a node on which everything is right.
func linux() *diagnosis.Facts {
	return &diagnosis.Facts{
		System: "linux", Mode: "iptables", Kernel: "6.1.0-18-amd64", IPv6: true,
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/all/disable_ipv6": "0",
			"net/bridge/bridge-nf-call-iptables": "1", "net/bridge/bridge-nf-call-ip6tables": "1",
			"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "2", "net/ipv4/conf/all/route_localnet": "0",
			"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2",
			"net/ipv4/ip_local_port_range": "32768\t60999", "net/ipv4/ip_local_reserved_ports": "", "net/ipv4/neigh/default/gc_thresh3": "1024",
			"net/netfilter/nf_conntrack_tcp_timeout_established": "86400", "fs/inotify/max_user_instances": "128",
			"net/ipv4/vs/conntrack": "1",
		},
		Interfaces: []diagnosis.Interface{{Name: "lo", MTU: 65536}, {Name: "eth0", MTU: 1500, Uplink: true}, {Name: "flannel.1", Kind: "vxlan", MTU: 1450}},
		Routes:     [2]bool{true, true},
		BaseChains: []diagnosis.BaseChain{
			{Family: "inet", Table: "tandem", Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -110},
			{Family: "ip", Table: "nat", Name: "PREROUTING", Type: "nat", Hook: "prerouting", Priority: -100},
			{Family: "inet", Table: "filter", Name: "input", Type: "filter", Hook: "input", Priority: 0, Drop: true},
		},
		Flowtables: []diagnosis.Flowtable{},
		EarlyRules: []string{}, NFTTables: []string{"ip nat"}, ForwardDrop: nil,
		Conntrack:  diagnosis.Conntrack{Count: 10, Max: 1000, Buckets: 1000},
		Neighbours: 5, Files: diagnosis.Usage{Limit: 1 << 20}, SystemFile: diagnosis.Usage{Used: 1000, Limit: 1 << 40},
		Memory: diagnosis.Usage{Used: 50 << 20, Limit: 512 << 20}, Available: diagnosis.Usage{Used: 4 << 30, Limit: 8 << 30},
		Processes: map[string][]string{"systemd": {"1"}}, Listening: []uint16{22, 10250}, NodePorts: [2]int{30000, 32767},
		Modules: &diagnosis.Modules{}, Clock: &diagnosis.Clock{Synchronized: true, Error: time.Millisecond},
		Running: running(),
	}
}

func running() *diagnosis.Running {
	return &diagnosis.Running{Healthy: true, Mode: "iptables", Inputs: map[string]time.Duration{"services": time.Second}, NodePorts: []uint16{30080}}
}

func windows() *diagnosis.Facts {
	return &diagnosis.Facts{
		System: "windows", Mode: "kernelspace", Kernel: "10.0.20348", Services: map[string]string{"hns": "running", "vfpext": "running"},
		Interfaces: []diagnosis.Interface{{Name: "Ethernet", MTU: 1500, Uplink: true}}, Processes: map[string][]string{"lsass.exe": {"4"}},
		Dynamic: [2]int{49152, 65535}, NodePorts: [2]int{30000, 32767}, Clock: &diagnosis.Clock{Synchronized: true},
		Memory: diagnosis.Usage{Used: 1, Limit: 100}, Available: diagnosis.Usage{Used: 50, Limit: 100}, Listening: []uint16{135},
		Running: &diagnosis.Running{Healthy: true, Mode: "kernelspace", Inputs: map[string]time.Duration{"services": time.Second}},
	}
}

// broken is one thing that is wrong, and the check that must say so.
type broken struct {
	id    string
	level diagnosis.Level
	spoil func(*diagnosis.Facts)
}

func sysctl(name, value string) func(*diagnosis.Facts) {
	return func(f *diagnosis.Facts) {
		f.Sysctls = maps.Clone(f.Sysctls)
		if f.Sysctls[name] = value; value == "" {
			delete(f.Sysctls, name)
		}
	}
}

func both(spoil ...func(*diagnosis.Facts)) func(*diagnosis.Facts) {
	return func(f *diagnosis.Facts) {
		for _, s := range spoil {
			s(f)
		}
	}
}

func mode(name string) func(*diagnosis.Facts) {
	return func(f *diagnosis.Facts) { f.Mode, f.Running.Mode = name, name }
}

// The oldest kernel that ci/guest tests mode nftables on is old enough.
func TestOldestKernelOfNFTables(t *testing.T) {
	f := linux()
	mode("nftables")(f)
	f.Kernel = "5.10.0"
	for _, check := range diagnosis.Node(f) {
		if check.ID == "kernel-version" && check.Level != diagnosis.OK {
			t.Errorf("%s: %s", check.Level, check.Found)
		}
	}
}

func brokenLinux() []broken {
	const note, warn, fail = diagnosis.Note, diagnosis.Warn, diagnosis.Fail
	return []broken{
		{"forwarding-ipv4", fail, sysctl("net/ipv4/ip_forward", "0")},
		{"forwarding-ipv6", fail, sysctl("net/ipv6/conf/all/forwarding", "0")},
		{"bridge-netfilter", warn, sysctl("net/bridge/bridge-nf-call-iptables", "0")},
		{"bridge-netfilter", note, sysctl("net/bridge/bridge-nf-call-iptables", "")},
		{"bridge-netfilter-ipv6", warn, sysctl("net/bridge/bridge-nf-call-ip6tables", "0")},
		{"rp-filter", warn, both(sysctl("net/ipv4/conf/all/rp_filter", "1"), func(f *diagnosis.Facts) {
			f.Interfaces = append(f.Interfaces, diagnosis.Interface{Name: "eth1", MTU: 1500, Uplink: true})
		})},
		{"route-localnet", note, sysctl("net/ipv4/conf/all/route_localnet", "1")},
		{"default-route-ipv4", warn, func(f *diagnosis.Facts) { f.Routes[0] = false }},
		{"default-route-ipv6", warn, func(f *diagnosis.Facts) { f.Routes[1] = false }},
		{"ipv6", fail, sysctl("net/ipv6/conf/all/disable_ipv6", "1")},
		{"mtu", warn, func(f *diagnosis.Facts) { f.Interfaces[1].MTU = 1200; f.Interfaces[2].MTU = 1150 }},
		{"mtu-overlay", warn, func(f *diagnosis.Facts) { f.Interfaces[2].MTU = 1500 }},
		{"loopback", fail, func(f *diagnosis.Facts) { f.Interfaces = f.Interfaces[1:] }},
		{"arp-ignore", note, both(mode("ipvs"), sysctl("net/ipv4/conf/all/arp_ignore", "0"))},
		{"ipvs-conntrack", fail, both(mode("ipvs"), sysctl("net/ipv4/vs/conntrack", "0"))},
		{"kube-proxy", warn, func(f *diagnosis.Facts) { f.Processes = map[string][]string{"kube-proxy": {"42"}} }},
		{"other-proxies", note, func(f *diagnosis.Facts) { f.Processes = map[string][]string{"kube-router": {"42"}} }},
		{"firewalld", warn, func(f *diagnosis.Facts) { f.Processes = map[string][]string{"firewalld": {"42"}} }},
		{"foreign-chains", warn, func(f *diagnosis.Facts) {
			f.BaseChains = append(f.BaseChains, diagnosis.BaseChain{Family: "ip", Table: "mesh", Name: "first", Type: "nat", Hook: "output", Priority: -150})
		}},
		{"foreign-jumps", warn, func(f *diagnosis.Facts) { f.EarlyRules = []string{"-A PREROUTING -p tcp -j REDIRECT --to-ports 15001"} }},
		{"forward-policy", warn, func(f *diagnosis.Facts) {
			f.BaseChains = append(f.BaseChains, diagnosis.BaseChain{Family: "ip", Table: "filter", Name: "FORWARD", Type: "filter", Hook: "forward", Drop: true})
		}},
		{"forward-policy", warn, func(f *diagnosis.Facts) { f.ForwardDrop = []string{"IPv4 FORWARD (iptables-legacy)"} }},
		{"flow-offload", note, func(f *diagnosis.Facts) {
			f.Flowtables = append(f.Flowtables, diagnosis.Flowtable{Family: "inet", Table: "tandem-offload", Name: "services", Devices: []string{"eth0"}, Own: true})
		}},
		{"flow-offload", warn, func(f *diagnosis.Facts) {
			f.Running.Offload, f.Flowtables = true, append(f.Flowtables, diagnosis.Flowtable{Family: "inet", Table: "filter", Name: "fast"})
		}},
		{"flow-offload", warn, func(f *diagnosis.Facts) {
			f.Flowtables = append(f.Flowtables, diagnosis.Flowtable{Family: "inet", Table: "filter", Name: "fast"},
				diagnosis.Flowtable{Family: "inet", Table: "tandem-offload", Name: "services", Devices: []string{"eth0"}, Own: true})
		}},
		{"iptables-variants", note, func(f *diagnosis.Facts) { f.LegacyTables = []string{"nat"} }},
		{"kernel-version", fail, func(f *diagnosis.Facts) { f.Kernel = "3.10.0-1160.el7" }},
		{"kernel-version", fail, both(mode("nftables"), func(f *diagnosis.Facts) { f.Kernel = "5.9.16" })},
		{"kernel-bugs", warn, func(f *diagnosis.Facts) { f.Kernel = "5.4.40" }},
		{"kernel-bugs", note, func(f *diagnosis.Facts) { f.Kernel = "4.18.0-553.el8" }},
		{"kernel-bugs", warn, both(mode("ipvs"), func(f *diagnosis.Facts) { f.Kernel = "5.8.18" })},
		{"modules", warn, func(f *diagnosis.Facts) { f.Modules = &diagnosis.Modules{Missing: []string{"ip_vs"}} }},
		{"conntrack", warn, func(f *diagnosis.Facts) { f.Conntrack.Count = 801 }},
		{"conntrack", fail, func(f *diagnosis.Facts) { f.Conntrack.Count = 951 }},
		{"conntrack-buckets", warn, func(f *diagnosis.Facts) { f.Conntrack.Buckets = 100 }},
		{"conntrack-drops", warn, func(f *diagnosis.Facts) { f.Conntrack.Dropped = 1 }},
		{"conntrack-drops", note, func(f *diagnosis.Facts) { f.Conntrack.InsertFailed = 1 }},
		{"conntrack-timeouts", warn, sysctl("net/netfilter/nf_conntrack_tcp_timeout_established", "600")},
		{"neighbour-table", warn, func(f *diagnosis.Facts) { f.Neighbours = 1000 }},
		{"local-ports", warn, sysctl("net/ipv4/ip_local_port_range", "10240 65535")},
		{"local-ports", warn, both(sysctl("net/ipv4/ip_local_port_range", "10240 65535"), sysctl("net/ipv4/ip_local_reserved_ports", "8080,30000-31000"))},
		{"local-port-range", warn, sysctl("net/ipv4/ip_local_port_range", "60000 60999")},
		{"nodeport-listeners", warn, func(f *diagnosis.Facts) { f.Listening = []uint16{30080} }},
		{"nodeport-listeners", note, func(f *diagnosis.Facts) { f.Listening = []uint16{30081} }},
		{"clock", warn, func(f *diagnosis.Facts) { f.Clock = &diagnosis.Clock{} }},
		{"clock", note, func(f *diagnosis.Facts) { f.Clock.Error = 3 * time.Second }},
		{"file-descriptors", warn, both(mode("userspace"), func(f *diagnosis.Facts) { f.Files.Limit = 1024 })},
		{"system-files", warn, func(f *diagnosis.Facts) { f.SystemFile.Limit = 1001 }},
		{"memory-limit", warn, func(f *diagnosis.Facts) { f.Memory.Used = 500 << 20 }},
		{"memory-limit", warn, func(f *diagnosis.Facts) { f.OOMKills = 1 }},
		{"memory-available", warn, func(f *diagnosis.Facts) { f.Available.Used = 100 << 20 }},
		{"inotify", note, sysctl("fs/inotify/max_user_instances", "8")},
		{"degraded-objects", warn, func(f *diagnosis.Facts) { f.Running.Degraded = []string{"load balancer 1"} }},
		{"tandem", note, func(f *diagnosis.Facts) { f.Running = nil }},
		{"tandem", fail, func(f *diagnosis.Facts) { f.Running.Healthy = false }},
		{"api-lag", warn, func(f *diagnosis.Facts) { f.Running.Inputs["services"] = 2 * time.Minute }},
		{"api-lag", fail, func(f *diagnosis.Facts) { f.Running.Unlisted = []string{"services"} }},
		{"services", fail, func(f *diagnosis.Facts) { f.Running.Failing = []string{"ns/web"} }},
		{"services", note, func(f *diagnosis.Facts) { f.Running.Partial = 1 }},
		{"drift", warn, func(f *diagnosis.Facts) { f.Running.Drift = 3 }},
	}
}

func brokenWindows() []broken {
	return []broken{
		{"windows-version", diagnosis.Fail, func(f *diagnosis.Facts) { f.Kernel = "10.0.14393" }},
		{"windows-version", diagnosis.Note, func(f *diagnosis.Facts) { f.Kernel = "10.0.17763" }},
		{"hns-service", diagnosis.Fail, func(f *diagnosis.Facts) { f.Services["hns"] = "stopped" }},
		{"vfp-service", diagnosis.Fail, func(f *diagnosis.Facts) { delete(f.Services, "vfpext") }},
		{"dynamic-ports", diagnosis.Warn, func(f *diagnosis.Facts) { f.Dynamic = [2]int{1025, 65535} }},
		{"kube-proxy", diagnosis.Warn, func(f *diagnosis.Facts) { f.Processes["kube-proxy.exe"] = []string{"77"} }},
	}
}

// A node on which all is right has no finding; each thing that is wrong is found by
// its check, and by no other.
func TestNode(t *testing.T) {
	for name, c := range map[string]struct {
		facts  func() *diagnosis.Facts
		broken []broken
		least  int
	}{"linux": {linux, brokenLinux(), 39}, "windows": {windows, brokenWindows(), 14}} {
		checks := diagnosis.Node(c.facts())
		seen := map[string]bool{}
		for _, check := range checks {
			if check.Level != diagnosis.OK {
				t.Errorf("%s: all is right, and %s says %s: %s", name, check.ID, check.Level, check.Found)
			}
			if seen[check.ID] || check.ID == "" || check.Found == "" {
				t.Errorf("%s: %+v: incomplete, or twice", name, check)
			}
			seen[check.ID] = true
		}
		if len(checks) < c.least {
			t.Errorf("%s: %d checks", name, len(checks))
		}
		tested := map[string]bool{"arp-ignore": true} // says nothing but in its mode
		for _, b := range c.broken {
			tested[b.id] = true
			f := c.facts()
			b.spoil(f)
			found := false
			for _, check := range diagnosis.Node(f) {
				if check.Level == diagnosis.OK {
					continue
				}
				found = found || check.ID == b.id && check.Level == b.level
				if check.ID != b.id && b.id+check.ID != "kernel-versionkernel-bugs" { // the oldest have both
					t.Errorf("%s: %s should report, but %s reports %s", name, b.id, check.ID, check.Found)
				}
				if check.Fix == "" && check.Level != diagnosis.Note {
					t.Errorf("%s: %s says %q and not what to do", name, check.ID, check.Found)
				}
			}
			if !found {
				t.Errorf("%s: %s does not say %s", name, b.id, b.level)
			}
		}
		for id := range seen {
			if name == "linux" && !tested[id] {
				t.Errorf("%s is not tested on a broken node", id)
			}
		}
	}
}

// Local ports may overlap with node ports where the kernel uses none of these, and a fix keeps what is reserved.
func TestReservedLocalPorts(t *testing.T) {
	for reserved, fix := range map[string]string{
		"30000-32767": "", "8080,20000-32767,40000\n": "",
		"": "=30000-32767", "8080": "=8080,30000-32767", "30000-30100,32767\n": "=30000-30100,32767,30000-32767", "x": "=x,30000-32767",
	} {
		f := linux()
		both(sysctl("net/ipv4/ip_local_port_range", "10240 65535"), sysctl("net/ipv4/ip_local_reserved_ports", reserved))(f)
		checks := diagnosis.Node(f)
		i := slices.IndexFunc(checks, func(c diagnosis.Check) bool { return c.ID == "local-ports" })
		if i < 0 || (checks[i].Level == diagnosis.OK) != (fix == "") || !strings.HasSuffix(checks[i].Fix, fix) {
			t.Errorf("%q: %+v", reserved, checks[max(i, 0)])
		}
	}
}

// What operators ask for most has a check, each with an id of its own and a fix line (TestNode).
func TestChecksThatMustBeThere(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range diagnosis.Node(linux()) {
		seen[c.ID] = true
	}
	for _, id := range []string{"conntrack", "conntrack-drops", "rp-filter", "other-proxies", "kube-proxy", "foreign-jumps", "foreign-chains", "mtu", "mtu-overlay", "kernel-bugs", "clock", "api-lag", "degraded-objects", "drift"} {
		if !seen[id] {
			t.Errorf("no check %s", id)
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d checks", len(seen))
	}
	t.Logf("%d checks of a Linux node, besides those of modes, leftovers and listeners", len(seen))
}

// Where nothing can be read nothing is claimed.
func TestNothingKnown(t *testing.T) {
	for _, system := range []string{"linux", "windows", "plan9"} {
		for _, c := range diagnosis.Node(&diagnosis.Facts{System: system}) {
			if c.Level != diagnosis.Note {
				t.Errorf("%s: %s says %s: %s", system, c.ID, c.Level, c.Found)
			}
		}
	}
}

// Stable releases of older series have some of the fixes.
func TestKernelBugs(t *testing.T) {
	for release, bad := range map[string]bool{"5.4.40": true, "5.4.41-generic": false, "5.6.13": false, "5.6.12": true, "5.5.19": true, "5.7.0-rc1": false, "6.18.44": false} {
		f := linux()
		f.Kernel = release
		for _, c := range diagnosis.Node(f) {
			if c.ID == "kernel-bugs" && (c.Level == diagnosis.Warn) != bad {
				t.Errorf("%s: %s", release, c.Found)
			}
			if c.ID == "kernel-bugs" && bad && !strings.Contains(c.Fix, "ethtool") {
				t.Errorf("%s: %s", release, c.Fix)
			}
		}
	}
}

// The check of flow offload names the chains that it goes past, and no others.
func TestFlowOffloadNamesChains(t *testing.T) {
	f := linux()
	f.Flowtables = append(f.Flowtables, diagnosis.Flowtable{Family: "inet", Table: "tandem-offload", Name: "services", Devices: []string{"eth0", "pod0"}, Own: true})
	f.LegacyTables, f.NFTTables = []string{"mangle", "nat"}, nil
	f.BaseChains = append(f.BaseChains,
		diagnosis.BaseChain{Family: "inet", Table: "policy", Name: "forward", Type: "filter", Hook: "forward", Rules: 3},
		diagnosis.BaseChain{Family: "ip", Table: "qos", Name: "marks", Type: "filter", Hook: "prerouting", Rules: 1},
		diagnosis.BaseChain{Family: "ip", Table: "empty", Name: "forward", Type: "filter", Hook: "forward"},
		diagnosis.BaseChain{Family: "ip", Table: "masquerade", Name: "all", Type: "nat", Hook: "postrouting", Rules: 1},
		diagnosis.BaseChain{Family: "inet", Table: "tandem-offload", Name: "forward", Type: "filter", Hook: "forward", Rules: 1})
	for _, c := range diagnosis.Node(f) {
		want := "flow offload on eth0, pod0: only the first packets of connections to Services meet the rules of inet policy forward, ip qos marks, iptables-legacy mangle"
		if c.ID == "flow-offload" && c.Found != want {
			t.Errorf("%s\nwant %s", c.Found, want)
		}
	}
}

func TestWorst(t *testing.T) {
	for _, c := range []struct {
		levels []diagnosis.Level
		want   diagnosis.Level
	}{
		{nil, diagnosis.OK},
		{[]diagnosis.Level{diagnosis.OK, diagnosis.Note}, diagnosis.Note},
		{[]diagnosis.Level{diagnosis.Warn, diagnosis.Fail, diagnosis.OK}, diagnosis.Fail},
		{[]diagnosis.Level{diagnosis.Warn, diagnosis.Note}, diagnosis.Warn},
	} {
		var checks []diagnosis.Check
		for _, l := range c.levels {
			checks = append(checks, diagnosis.Check{Level: l})
		}
		if got := diagnosis.Worst(checks); got != c.want {
			t.Errorf("%q: %s, want %s", c.levels, got, c.want)
		}
	}
}
