// Package iptables programs Services with iptables, in the chains that everyone
// knows from kube-proxy, at a cost that follows the change.
//
//	nat PREROUTING, OUTPUT
//	  KUBE-SERVICES ─▶ KUBE-IP-10.0.0.0/8 ─▶ … ─▶ KUBE-IP-10.96.0.0/26   by address, as a tree
//	  │                  ├─▶ KUBE-SVC-… (KUBE-SVL-…)                   cluster IPs: choose an endpoint
//	  │                  └─▶ KUBE-FW-… ─▶ KUBE-EXT-… ─▶ KUBE-SVC-…     other addresses: ranges, origins
//	  └ local address? KUBE-NODEPORTS ─▶ KUBE-NP-tcp-30080-30095 ─▶ KUBE-EXT-…
//	nat POSTROUTING
//	  KUBE-POSTROUTING: masquerade what KUBE-MARK-MASQ has marked
//	filter INPUT, FORWARD, OUTPUT: what is still for a Service's address now is not served
//	  KUBE-PROXY-FIREWALL: drop clients outside of source ranges
//	  KUBE-EXTERNAL-SERVICES, KUBE-SERVICES: refuse, or drop, as all of ServiceCIDRs
//
// Names, hashes, comments and marks are kube-proxy's. Different are:
//
//   - Dispatch is a tree (tree.go). A first packet meets tens of rules, and a
//     change rewrites one small chain, never KUBE-SERVICES.
//   - An endpoint has a KUBE-SEP- chain only if it is on this node, where it may
//     be its own client (hairpin), or if it keeps clients (affinity). Another is
//     one rule, with DNAT. The legacy variant copies the table for every change,
//     so each rule counts, and each comment twice: a pool's chain has one, on its
//     first rule, which lists the endpoints. Where that rule has the cluster IP,
//     too, the one that leads there has no comment.
//   - Addresses of Services refuse the host itself, too, where nobody serves
//     them; cluster IPs refuse ports that they do not have; node ports refuse
//     only on the addresses on which they would answer.
//
// Affinity is the kernel's xt_recent, which remembers the last 100 clients of an
// endpoint unless its parameter ip_list_tot says otherwise.
//
// Objects are whole chains where a port has one for itself, and single rules
// where many contribute to a chain (key.go). The driver knows what is in those
// (book.go), and writes each chain that changes anew: one transaction of
// iptables-restore --noflush for each table. Reading back parses iptables-save
// into the same objects, whatever the spelling.
//
// kube-proxy's counts of packets are those of two rules: in KUBE-FORWARD, which
// drops what conntrack calls invalid, and in KUBE-POSTROUTING, where connections
// to node ports on localhost come by. They are read when somebody asks.
//
// What others do to the rules is noticed within a second in the nft variant, where
// the kernel counts transactions, and in the legacy variant wherever it changes
// how many rules a table has or their size, such as a flush. An edit that leaves
// both alone is found when the table is read the next time: every 30 s
// (syncPeriod), with 10,000 Services every two minutes or so, since to read that
// table takes half a second of processor time. Linux has no cheaper way to ask.
//
// Chains that have our names are ours: what kube-proxy has left is taken over
// without a gap. Cleanup removes them only where Tandem was at work: it looks
// for chains that kube-proxy never makes.
//
// The parts:
//
//	rule.go, parse.go          a rule, as text and back
//	key.go, name.go            objects; the names of chains, and whose they are
//	tree.go, base.go           dispatch; what is always there
//	compile.go, front.go,      ports to objects (Compiler): dispatch and refusal;
//	  chains.go                chains of a port
//	text.go, book.go           objects to scripts (Script); chains written anew
//	observe.go                 iptables-save to objects
//	sim.go                     text and a packet to an outcome (Sim)
//	tools_linux.go             the commands; variant_linux.go: legacy or nft;
//	                           commands_linux.go, nat_linux.go: for other modes;
//	                           lock_linux.go: waiting for it
//	driver_linux.go            the kernel (Driver)
//	localnet_linux.go          route_localnet
//	tally.go,                  how many rules there are, and how many packets two
//	  packets*.go              of them have met
//	watch_linux.go             whether others wrote: generation_linux.go, info_linux.go
//	probe.go, probe_linux.go,  whether this host can do it;
//	  mode.go                  the mode
package iptables
