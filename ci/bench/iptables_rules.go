// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// kubeProxyRules is the nat table as kube-proxy 1.37 writes it for a world in
// its iptables mode, without comments on endpoints, as it does above 1,000 of
// them: the whole of KUBE-SERVICES, and the chains of the Services in a range.
// All of them are a full sync, and one is what a change of it takes.
func (w world) kubeProxyRules(from, to, generation int) string {
	var chains, rules strings.Builder
	chains.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n")
	rules.WriteString("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n")
	if from == 0 && generation == 0 {
		rules.WriteString("-I PREROUTING 1 -j KUBE-SERVICES\n-I OUTPUT 1 -j KUBE-SERVICES\n")
	}
	for i := range w.services {
		svc := fmt.Sprintf("KUBE-SVC-%016d", i)
		match := fmt.Sprintf("-m comment --comment \"%s:http cluster IP\" -m %s -p %[2]s -d %s --dport 80", namespace(i)+"/"+name(i), w.lowerProtocol(), w.vip(i).Addr())
		fmt.Fprintf(&rules, "-A KUBE-SERVICES %s -j %s\n", match, svc)
		if i < from || to <= i {
			continue
		}
		fmt.Fprintf(&chains, ":%s - [0:0]\n", svc)
		fmt.Fprintf(&rules, "-A %s %s ! -s 10.128.0.0/9 -j KUBE-MARK-MASQ\n", svc, match)
		for e := range w.endpoints {
			sep, chance := fmt.Sprintf("KUBE-SEP-%016d", i*w.endpoints+e), ""
			if left := w.endpoints - e; left > 1 {
				chance = fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(left))
			}
			fmt.Fprintf(&chains, ":%s - [0:0]\n", sep)
			fmt.Fprintf(&rules, "-A %s %s-j %s\n", svc, chance, sep)
			fmt.Fprintf(&rules, "-A %[1]s -s %[2]s -j KUBE-MARK-MASQ\n-A %[1]s -m %[3]s -p %[3]s -j DNAT --to-destination %[2]s:8080\n",
				sep, w.pod(i, e, generation), w.lowerProtocol())
		}
	}
	return chains.String() + rules.String() + "COMMIT\n"
}
