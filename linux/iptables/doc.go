// SPDX-License-Identifier: Apache-2.0

// Package iptables programs Services with iptables, in kube-proxy's chains, at a cost
// in proportion to the change.
//
//	nat PREROUTING, OUTPUT
//	  KUBE-SERVICES ─▶ KUBE-IP-10.0.0.0/8 ─▶ … ─▶ KUBE-IP-10.96.0.0/26   by address, as a tree
//	  │                  ├─▶ KUBE-SVC-… (KUBE-SVL-…)                   cluster IPs: choose an endpoint
//	  │                  └─▶ KUBE-FW-… ─▶ KUBE-EXT-… ─▶ KUBE-SVC-…     other addresses: ranges, origins
//	  └ local address? KUBE-NODEPORTS ─▶ KUBE-NP-tcp-30080-30095 ─▶ KUBE-EXT-…
//	nat POSTROUTING
//	  KUBE-POSTROUTING: masquerade packets that KUBE-MARK-MASQ has marked
//	filter INPUT, FORWARD, OUTPUT: packets still addressed to a Service here were not translated
//	  KUBE-PROXY-FIREWALL: drop clients outside of source ranges
//	  KUBE-EXTERNAL-SERVICES, KUBE-SERVICES: reject, or drop, as all of ServiceCIDRs
//
// Names, hashes, comments and marks are kube-proxy's. Different are:
//
//   - Dispatch is a tree (layout.go). A first packet traverses tens of rules, and a
//     change rewrites one small chain, KUBE-SERVICES only with the first or last
//     frontend of a /8 (IPv6: /32).
//   - An endpoint has a KUBE-SEP- chain only if it is a pod of this node, where
//     it may be its own client (hairpin), or with session affinity. Others are one DNAT
//     rule. The legacy variant copies the table for every change, so rules are
//     few and comments fewer: a pool's chain has one, on its first rule, which
//     lists the endpoints.
//   - Frontends without endpoints reject the host's own packets, too; cluster IPs
//     reject ports that they do not have; node ports reject only on the addresses on
//     which they would answer.
//
// Affinity is the kernel's xt_recent, which remembers the last 100 clients of an
// endpoint unless its parameter ip_list_tot says otherwise.
//
// Objects are whole chains if they belong to one port, and single rules of chains
// that ports share (layout.go). The driver keeps the content of shared chains
// (restore.go) and rewrites each chain that changes: one transaction of
// iptables-restore --noflush per table. Reading back parses iptables-save into the
// same objects, whatever the order of options.
//
// kube-proxy's metric of packets that conntrack finds invalid is the counter of the
// rule in KUBE-FORWARD that drops them, read on request.
//
// External changes are detected within a second in the nft variant, where the kernel
// counts transactions, and in the legacy variant if they change the number or size of
// a table's rules, such as a flush. Other changes are found when the table is read
// again: every 30 s (syncPeriod), with 10,000 Services about every two minutes,
// since reading that table takes half a second of CPU time. Linux has no cheaper way
// to detect them.
//
// Chains with Tandem's names are owned: leftovers of kube-proxy are adopted without an
// interruption. Cleanup removes them only if Tandem ran here: it looks for chains that
// kube-proxy never creates.
//
// The files:
//
//	layout.go          chains, their names and owners; the dispatch trees; objects,
//	                   and where a rule belongs in its chain
//	chains.go          the chains that belong to one port, and drops outside of source ranges
//	compile.go         ports to objects (Compiler): base chains, dispatch, rejects
//	restore.go         chains to iptables-restore, and iptables-save to objects
//	driver_linux.go    the kernel (Driver), by the commands of linux/xtables
//	mode*.go           the mode; its plan as text; objects and a packet to an outcome (Sim);
//	                   counters of connections and of dropped packets
package iptables
