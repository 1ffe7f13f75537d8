// SPDX-License-Identifier: Apache-2.0

package diagnosis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/printable"
)

// conntrackChecks are about the tables that connections and neighbours are kept in,
// and about ports.
func conntrackChecks() []check {
	return []check{
		{"conntrack", "linux", conntrackUsage},
		{"conntrack-buckets", "linux", conntrackBuckets},
		{"conntrack-drops", "linux", conntrackDrops},
		{"conntrack-timeouts", "linux", conntrackTimeouts},
		{"neighbour-table", "linux", neighbours},
		{"local-ports", "linux", localPorts},
		{"local-port-range", "linux", localPortRange},
		{"nodeport-listeners", "", nodePortListeners},
	}
}

// nearlyFull is from which part of a table in use on new entries are in danger, and
// asGoodAsFull from which part on they fail, as the number changes all the time.
const (
	nearlyFull   = 0.8
	asGoodAsFull = 0.95
)

func conntrackUsage(f *Facts) Check {
	u := Usage{f.Conntrack.Count, f.Conntrack.Max}
	switch text := fmt.Sprintf("%d of %d connections are tracked", u.Used, u.Limit); {
	case u.Limit == 0:
		return note("connection tracking is not in use yet", "")
	case u.over(nearlyFull):
		level := warn // Services work, so far
		if u.over(asGoodAsFull) {
			level = fail
		}
		return level(text+": when the table is full, new ones fail", fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d, and conntrack.maxPerCore in the configuration", 2*u.Limit))
	default:
		return ok(text)
	}
}

// conntrackBuckets: entries hang in lists, as long as there are entries a bucket. The
// kernel's default is 1 (nf_conntrack_max is the number of buckets since 5.15), 4
// before.
func conntrackBuckets(f *Facts) Check {
	const most = 8
	c := f.Conntrack
	if c.Buckets == 0 || c.Max == 0 {
		return Check{}
	}
	return either(ok(fmt.Sprintf("%d buckets for at most %d connections", c.Buckets, c.Max)),
		warn(fmt.Sprintf("%d buckets for at most %d connections: each packet walks a list of up to %d", c.Buckets, c.Max, c.Max/c.Buckets),
			fmt.Sprintf("echo %d > /sys/module/nf_conntrack/parameters/hashsize", c.Max/4)), c.Max/c.Buckets <= most)
}

func conntrackDrops(f *Facts) Check {
	c := f.Conntrack
	if c.Max == 0 {
		return Check{}
	}
	switch {
	case c.EarlyDrop > 0 || c.Dropped > 0:
		return warn(fmt.Sprintf("since boot the conntrack table was full: %d new connections dropped, %d evicted early", c.Dropped, c.EarlyDrop),
			fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*c.Max))
	case c.InsertFailed > 0:
		return note(fmt.Sprintf("%d connections were lost since the boot as their entry was taken: mostly UDP packets at the same moment, such as DNS", c.InsertFailed), "a DNS cache on each node avoids them")
	}
	return ok("no connection was lost for lack of an entry")
}

// conntrackTimeouts: an entry that expires before its connection ends takes the
// translation with it.
func conntrackTimeouts(f *Facts) Check {
	const hour = 3600
	established, known := f.sysctl("net/netfilter/nf_conntrack_tcp_timeout_established")
	if !known {
		return Check{}
	}
	return either(ok(fmt.Sprintf("idle connections are tracked for %d s", established)),
		warn(fmt.Sprintf("connections that are idle for %d s lose their translation, and then hang", established), "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=86400"),
		established >= hour)
}

func neighbours(f *Facts) Check {
	limit, known := f.sysctl("net/ipv4/neigh/default/gc_thresh3")
	if !known {
		return Check{}
	}
	u := Usage{uint64(f.Neighbours), uint64(limit)}
	return either(ok(fmt.Sprintf("%d of %d neighbours", u.Used, u.Limit)),
		warn(fmt.Sprintf("%d of %d neighbours: when the table is full, pods and nodes cannot be reached", u.Used, u.Limit), fmt.Sprintf("sysctl -w net.ipv4.neigh.default.gc_thresh3=%d", 4*limit)),
		!u.over(nearlyFull))
}

// ports reads "32768 60999".
func ports(text string) (first, last int, ok bool) {
	words := strings.Fields(text)
	if len(words) != 2 {
		return 0, 0, false
	}
	first, err1 := strconv.Atoi(words[0])
	last, err2 := strconv.Atoi(words[1])
	return first, last, err1 == nil && err2 == nil && first <= last
}

// localPorts: an outgoing connection from a local port that is a node port, too, is answered
// by the Service once its conntrack entry is gone. The kernel gives no connection a reserved port.
func localPorts(f *Facts) Check {
	first, last, known := ports(f.Sysctls["net/ipv4/ip_local_port_range"])
	if !known || f.NodePorts[1] == 0 {
		return Check{}
	}
	reserved := strings.TrimSpace(f.Sysctls["net/ipv4/ip_local_reserved_ports"])
	from, to := max(first, f.NodePorts[0]), min(last, f.NodePorts[1])
	return either(ok("local ports of outgoing connections are no node ports"),
		warn(fmt.Sprintf("local ports %d-%d of outgoing connections overlap with node ports %d-%d", first, last, f.NodePorts[0], f.NodePorts[1]),
			"sysctl -w net.ipv4.ip_local_reserved_ports="+strings.TrimPrefix(fmt.Sprintf("%s,%d-%d", reserved, f.NodePorts[0], f.NodePorts[1]), ",")),
		from > to || containsPorts(reserved, from, to))
}

// containsPorts reports whether all ports from one to another are in a list such as "8080,30000-32767", in which the kernel
// joins ranges without a gap.
func containsPorts(list string, from, to int) bool {
	for part := range strings.SplitSeq(list, ",") {
		first, last, two := strings.Cut(part, "-")
		if !two {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && a <= from && to <= b {
			return true
		}
	}
	return false
}

func localPortRange(f *Facts) Check {
	const least = 10000
	first, last, known := ports(f.Sysctls["net/ipv4/ip_local_port_range"])
	if !known {
		return Check{}
	}
	n := last - first + 1
	return either(ok(fmt.Sprintf("%d local ports for outgoing connections and SNAT", n)),
		warn(fmt.Sprintf("only %d local ports: no more connections to one endpoint at a time", n), "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\""), n >= least)
}

// nodePortListeners: a program that listens on a node port gets no connection by it.
func nodePortListeners(f *Facts) Check {
	if f.Listening == nil || f.Mode == "userspace" { // listens on node ports itself
		return Check{}
	}
	used := map[uint16]bool{}
	if f.Running != nil {
		for _, p := range f.Running.NodePorts {
			used[p] = true
		}
	}
	var hidden, within []string
	for _, p := range f.Listening {
		switch {
		case used[p]:
			hidden = append(hidden, strconv.Itoa(int(p)))
		case int(p) >= f.NodePorts[0] && int(p) <= f.NodePorts[1]:
			within = append(within, strconv.Itoa(int(p)))
		}
	}
	switch {
	case len(hidden) > 0:
		return warn("programs listen on node ports of Services, and get none of their connections: "+list(hidden), "let the program or the Service use another port; "+Listeners(f.System)+" shows it")
	case len(within) > 0:
		return note("programs listen on ports that a Service may be given as node ports: "+list(within), "let them listen outside of the range; "+Listeners(f.System)+" shows them")
	}
	return ok("nothing listens on node ports")
}

// list is a list for people, cut short.
func list(all []string) string {
	const most = 8
	return printable.List(all, most)
}

// Listeners is a system's own command that lists listening sockets.
func Listeners(system string) string {
	if system == "windows" {
		return "netstat -ano"
	}
	return "ss -ltnp"
}
