// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"slices"
	"strings"
)

// filterChecks are about other programs that forward, filter or rewrite packets, and
// about the kernel that does it.
func filterChecks() []check {
	return []check{
		{"kube-proxy", "", kubeProxy},
		{"other-proxies", "", otherProxies},
		{"firewalld", "linux", firewalld},
		{"foreign-chains", "linux", foreignChains},
		{"foreign-jumps", "linux", foreignJumps},
		{"forward-policy", "linux", forwardPolicy},
		{"flow-offload", "linux", flowOffload},
		{"iptables-variants", "linux", variants},
		{"kernel-version", "linux", kernelVersion},
		{"kernel-bugs", "linux", kernelBugs},
		{"modules", "linux", modules},
	}
}

func kubeProxy(f *Facts) Check {
	if f.Processes == nil {
		return Check{}
	}
	pids := append(slices.Clone(f.Processes["kube-proxy"]), f.Processes["kube-proxy.exe"]...)
	return either(ok("no kube-proxy runs here"),
		warn(fmt.Sprintf("kube-proxy runs here as process %s: two proxies answer for the same addresses", strings.Join(pids, ", ")),
			"stop it, and run tandem with --takeover so that its rules are replaced"), len(pids) == 0)
}

// proxies are programs that serve Services, always or when configured to.
func proxies() map[string]string {
	return map[string]string{
		"kube-router": "--run-service-proxy=false", "cilium-agent": "kubeProxyReplacement: false", "antrea-agent": "antreaProxy.proxyAll: false",
		"calico-node": "bpfEnabled: false", "kpng": "stop it", "ovnkube": "stop it", "ovnkube.exe": "stop it",
	}
}

func otherProxies(f *Facts) Check {
	if f.Processes == nil {
		return Check{}
	}
	may := proxies()
	var found, fixes []string
	for name, pids := range f.Processes {
		if fix, known := may[name]; known && len(pids) > 0 {
			found = append(found, name)
			fixes = append(fixes, name+": "+fix)
		}
	}
	slices.Sort(found)
	slices.Sort(fixes)
	return either(ok("no other program that may serve Services runs here"),
		note("these may serve Services, too: "+strings.Join(found, ", ")+"; connections that they have rewritten never reach tandem", strings.Join(fixes, "; ")), len(found) == 0)
}

func firewalld(f *Facts) Check {
	if f.Processes == nil {
		return Check{}
	}
	pids := f.Processes["firewalld"]
	switch {
	case len(pids) == 0:
		return ok("firewalld does not run")
	case f.Mode == "nftables" || f.Mode == "auto":
		return note("firewalld runs: its zones must allow traffic forwarded to pods", "firewall-cmd --zone=trusted --add-source=POD_CIDR")
	}
	return warn("firewalld runs: a reload of it deletes rules of iptables, until the next audit of tandem", "systemctl disable --now firewalld, or use mode nftables")
}

// dstnat is the priority at which nftables' own and iptables' rules rewrite
// destinations.
const dstnat = -100

// foreignChains finds chains of other programs that rewrite destinations before Tandem's can.
func foreignChains(f *Facts) Check {
	if f.BaseChains == nil {
		return Check{}
	}
	var early []string
	for _, c := range f.BaseChains {
		if !c.own() && c.Type == "nat" && (c.Hook == "prerouting" || c.Hook == "output") && c.Priority < dstnat {
			early = append(early, fmt.Sprintf("%s %s %s (%s, priority %d)", c.Family, c.Table, c.Name, c.Hook, c.Priority))
		}
	}
	return either(ok("no other table rewrites destinations before Services are looked up"),
		warn("these chains rewrite destinations before Services are looked up: "+strings.Join(early, ", "), "nft list chain FAMILY TABLE CHAIN; connections to addresses of Services must pass it"), len(early) == 0)
}

func foreignJumps(f *Facts) Check {
	if f.EarlyRules == nil {
		return Check{}
	}
	return either(ok("no iptables rule precedes the rules of Services"),
		warn("iptables rules that accept, rewrite or return packets precede the rules of Services: "+strings.Join(f.EarlyRules, "; "), "move them behind the jump to KUBE-SERVICES, or exclude the addresses of Services"),
		len(f.EarlyRules) == 0)
}

// forwardPolicy: Docker sets the policy of iptables' FORWARD to drop.
func forwardPolicy(f *Facts) Check {
	if f.BaseChains == nil && f.ForwardDrop == nil {
		return Check{}
	}
	drop := slices.Clone(f.ForwardDrop)
	for _, c := range f.BaseChains {
		if c.Hook == "forward" && c.Drop {
			drop = append(drop, c.Family+" "+c.Table+" "+c.Name)
		}
	}
	return either(ok("the FORWARD policy accepts"),
		warn("the policy for forwarded packets is drop in "+strings.Join(drop, ", ")+": connections to endpoints on other nodes need a rule that accepts them", "iptables -P FORWARD ACCEPT, or let the network plugin add its rules"),
		len(drop) == 0)
}

// flowOffload finds what no longer sees the packets of established connections to Services.
// Chains of type nat see first packets only in any case.
func flowOffload(f *Facts) Check {
	var own, others, passed []string
	for _, t := range f.Flowtables {
		if t.Own {
			own = t.Devices
		} else {
			others = append(others, t.String())
		}
	}
	for _, c := range f.BaseChains {
		if !c.own() && c.Type != "nat" && c.Rules > 0 && (c.Hook == "prerouting" || c.Hook == "forward" || c.Hook == "postrouting") {
			passed = append(passed, c.Family+" "+c.Table+" "+c.Name)
		}
	}
	for _, table := range f.LegacyTables {
		if table != "nat" {
			passed = append(passed, "iptables-legacy "+table)
		}
	}
	switch {
	case f.Flowtables == nil:
		return Check{}
	case len(others) > 0 && len(own) > 0:
		return warn("other agents have made flowtables beside that of flow offload: "+strings.Join(others, ", ")+": a connection is in either", "turn off either theirs or --accelerate=flowtable")
	case len(others) > 0 && f.Running != nil && f.Running.Offload:
		return warn("flow offload unavailable beside flowtables of other agents: "+strings.Join(others, ", "), "turn off either theirs or --accelerate=flowtable")
	case len(own) == 0:
		return ok("packets of established connections to Services meet all rules")
	case len(passed) == 0:
		return note("flow offload on "+strings.Join(own, ", ")+": no rules of other programs are bypassed", "")
	}
	return note("flow offload on "+strings.Join(own, ", ")+": only the first packets of connections to Services meet the rules of "+strings.Join(passed, ", "),
		"run without --accelerate=flowtable if they filter, mark or count packets of established connections")
}

func variants(f *Facts) Check {
	if f.LegacyTables == nil && f.NFTTables == nil {
		return Check{}
	}
	return either(ok("one variant of iptables is in use"),
		note("both variants of iptables have tables (legacy: "+strings.Join(f.LegacyTables, " ")+"; nft: "+strings.Join(f.NFTTables, " ")+"): each lists its own rules only, and packets meet both",
			"choose one with update-alternatives --config iptables, and reboot"), len(f.LegacyTables) == 0 || len(f.NFTTables) == 0)
}

func kernelVersion(f *Facts) Check {
	v := version(f.Kernel)
	switch {
	case v == [3]int{}:
		return Check{}
	case before(v, [3]int{4, 18, 0}): // 4.18 is RHEL 8's, with what 4.19 has
		return fail("Linux "+f.Kernel+" is older than 4.19, the oldest that Kubernetes supports (4.18 on RHEL 8)", "upgrade the kernel")
	case before(v, [3]int{5, 10, 0}) && f.Mode == "nftables": // what ci/guest tests; kube-proxy asks for 5.13 (KEP-3866)
		return fail("mode nftables needs Linux 5.10; this is "+f.Kernel, "upgrade the kernel, or choose --proxy-mode=iptables")
	}
	return ok("Linux " + f.Kernel)
}

// bug is a defect of the kernel that users of Services meet.
type bug struct {
	name   string
	fixed  [3]int   // first release with the fix
	stable [][3]int // releases of older series with it
	meets  func(*Facts) bool
	fix    string
}

func hasKind(kind string) func(*Facts) bool {
	return func(f *Facts) bool {
		return slices.ContainsFunc(f.Interfaces, func(i Interface) bool { return i.Kind == kind })
	}
}

// bugs lists the known bugs, each with the report of its discovery.
func bugs() []bug {
	return []bug{
		{ // kubernetes#88986; torvalds/linux ea64d8d6c675
			name: "wrong checksums of VXLAN packets behind SNAT: connections to other nodes hang for 63 s", fixed: [3]int{5, 7, 0},
			stable: [][3]int{{5, 6, 13}, {5, 4, 41}, {4, 19, 123}, {4, 14, 181}}, meets: hasKind("vxlan"),
			fix: "ethtool -K VXLAN_INTERFACE tx-checksum-ip-generic off",
		},
		{ // kubernetes#93297, #81775
			name: "IPVS delays connections by 1 s that reuse a source port", fixed: [3]int{5, 9, 0},
			meets: func(f *Facts) bool { return f.Mode == "ipvs" }, fix: "sysctl -w net.ipv4.vs.conn_reuse_mode=0",
		},
		{ // kubernetes#56903
			name: "two UDP packets at once from one socket: one is lost, DNS answers after 5 s", fixed: [3]int{5, 0, 0},
			meets: func(*Facts) bool { return true }, fix: "options single-request-reopen in resolv.conf of pods, or a DNS cache on each node",
		},
	}
}

// has reports whether a release has a bug.
func (b *bug) has(v [3]int) bool {
	if !before(v, b.fixed) {
		return false
	}
	for _, s := range b.stable {
		if v[0] == s[0] && v[1] == s[1] {
			return v[2] < s[2]
		}
	}
	return true
}

func kernelBugs(f *Facts) Check {
	v := version(f.Kernel)
	if v == [3]int{} {
		return Check{}
	}
	var names, fixes []string
	for _, b := range bugs() {
		if b.has(v) && b.meets(f) {
			names, fixes = append(names, b.name), append(fixes, b.fix)
		}
	}
	fix := "upgrade the kernel, or: " + strings.Join(fixes, "; ")
	switch {
	case len(names) == 0:
		return ok("none of the known bugs of older kernels")
	case v[2] == 0: // distributions number their own fixes: 5.4.0-150-generic, 4.18.0-553.el8
		return note("Linux "+f.Kernel+" has, unless its distribution has backported the fix: "+strings.Join(names, "; "), fix)
	}
	return warn("Linux "+f.Kernel+" has: "+strings.Join(names, "; "), fix)
}

func modules(f *Facts) Check {
	switch m := f.Modules; {
	case m == nil:
		return Check{}
	case len(m.Missing) == 0:
		return ok("all modules that the mode needs are there")
	default:
		return warn("this kernel lacks "+strings.Join(m.Missing, ", "), "install the package with the other modules of this kernel")
	}
}
