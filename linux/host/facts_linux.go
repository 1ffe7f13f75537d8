// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/diagnosis"
)

// Facts reads the facts for doctor's checks: of this machine, and of the network
// namespace of the calling thread. It changes nothing; what cannot be read is left
// out.
func Facts() *diagnosis.Facts {
	f := &diagnosis.Facts{
		System: "linux", Sysctls: sysctls(), Conntrack: conntrackFacts(), Processes: processes(), Clock: clockFacts(),
		Neighbours: max(0, strings.Count(readText("/proc/thread-self/net/arp"), "\n")-1), Listening: listening(),
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		f.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	f.Interfaces, f.Routes = interfaces()
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		f.Files.Limit = limit.Cur
	}
	if n := numbers(readText("/proc/sys/fs/file-nr")); len(n) == 3 {
		f.SystemFile = diagnosis.Usage{Used: n[0], Limit: n[2]}
	}
	f.Available = memoryFacts(readText("/proc/meminfo"))
	return f
}

// readParameters are the kernel parameters that checks need, with those of each
// uplink.
func readParameters() []string {
	return []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
		"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/route_localnet", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce", "net/ipv4/vs/conntrack",
		"net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/neigh/default/gc_thresh3",
		"net/netfilter/nf_conntrack_tcp_timeout_established", "fs/inotify/max_user_instances",
	}
}

func sysctls() map[string]string {
	all := map[string]string{}
	names := readParameters()
	own, _ := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
	for _, name := range own[:min(len(own), 1000)] {
		names = append(names, strings.TrimPrefix(name, "/proc/sys/"))
	}
	for _, name := range names {
		if v, err := Sysctl(name); err == nil {
			all[name] = v
		}
	}
	return all
}

// interfaces lists those that are up, and whether there are default routes.
func interfaces() (all []diagnosis.Interface, routes [2]bool) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, routes
	}
	uplinks := map[int]bool{}
	for f, family := range [2]int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, r := range list {
			if r.Type != unix.RTN_UNICAST {
				continue
			}
			if r.Dst != nil {
				if ones, bits := r.Dst.Mask.Size(); !r.Dst.IP.IsUnspecified() || ones > 0 || bits == 0 {
					continue
				}
			}
			routes[f] = true
			uplinks[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				uplinks[hop.LinkIndex] = true
			}
		}
	}
	all = []diagnosis.Interface{}
	for _, l := range links {
		a := l.Attrs()
		if a.Flags&unix.IFF_UP != 0 {
			all = append(all, diagnosis.Interface{Name: a.Name, Kind: l.Type(), MTU: a.MTU, Uplink: uplinks[a.Index]})
		}
	}
	return all, routes
}

func conntrackFacts() (c diagnosis.Conntrack) {
	read := func(name string) uint64 {
		v, _ := Sysctl("net/netfilter/" + name)
		n, _ := strconv.ParseUint(v, 10, 64)
		return n
	}
	c.Count, c.Max, c.Buckets = read("nf_conntrack_count"), read("nf_conntrack_max"), read("nf_conntrack_buckets")
	addStatistics(&c, readText("/proc/thread-self/net/stat/nf_conntrack"))
	return c
}

// addStatistics adds up the lines of /proc/net/stat/nf_conntrack: names, then one
// line of hexadecimal numbers for each CPU.
func addStatistics(c *diagnosis.Conntrack, text string) {
	var names []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if names == nil {
			names = words
			continue
		}
		for i, w := range words[:min(len(words), len(names))] {
			n, _ := strconv.ParseUint(w, 16, 64)
			switch names[i] {
			case "insert_failed":
				c.InsertFailed += n
			case "drop":
				c.Dropped += n
			case "early_drop":
				c.EarlyDrop += n
			}
		}
	}
}

// processes are the process ids by command, of those in the network namespace of the
// calling thread, as far as this process may look.
func processes() map[string][]string {
	here, err := os.Readlink(OwnNamespace)
	if err != nil {
		return nil
	}
	all := map[string][]string{}
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, name := range names {
		dir := filepath.Dir(name)
		there, err := os.Readlink(filepath.Join(dir, "ns/net"))
		if err != nil || there != here {
			continue
		}
		if comm := strings.TrimSpace(readText(name)); comm != "" {
			all[comm] = append(all[comm], filepath.Base(dir))
		}
	}
	return all
}

func clockFacts() *diagnosis.Clock {
	const unsynchronized = 0x40 // STA_UNSYNC
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return nil
	}
	return &diagnosis.Clock{Synchronized: t.Status&unsynchronized == 0, Error: time.Duration(t.Maxerror) * time.Microsecond}
}

// memoryFacts reads /proc/meminfo.
func memoryFacts(text string) (u diagnosis.Usage) {
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if n := numbers(rest); len(n) == 1 {
			switch name {
			case "MemTotal":
				u.Limit = n[0] << 10
			case "MemAvailable":
				u.Used = n[0] << 10
			}
		}
	}
	return u
}

// listening are the TCP ports that are listened on, of both families.
func listening() (ports []uint16) {
	ports = []uint16{}
	for _, name := range []string{"tcp", "tcp6"} {
		ports = append(ports, listeningIn(readText("/proc/thread-self/net/"+name))...)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// listeningIn reads /proc/net/tcp: "0: 0100007F:1F90 00000000:0000 0A ...".
func listeningIn(text string) (ports []uint16) {
	const listen = "0A"
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || words[3] != listen {
			continue
		}
		_, port, _ := strings.Cut(words[1], ":")
		if n, err := strconv.ParseUint(port, 16, 16); err == nil {
			ports = append(ports, uint16(n))
		}
	}
	return ports
}

// ModuleFacts reports which of some modules of the kernel are neither in use, nor built
// in, nor available to be loaded; nil where their folder is not visible, as in a
// container: built-in ones cannot be determined then.
func ModuleFacts(names ...string) *diagnosis.Modules {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return nil
	}
	dir := filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]))
	known := readText(filepath.Join(dir, "modules.builtin")) + readText(filepath.Join(dir, "modules.dep"))
	if known == "" {
		return nil
	}
	m := &diagnosis.Modules{}
	for _, name := range names {
		_, err := os.Stat("/sys/module/" + name)
		if err != nil && !strings.Contains(known, "/"+name+".ko") {
			m.Missing = append(m.Missing, name)
		}
	}
	return m
}

// most bounds the bytes read of a file in /proc.
const most = 8 << 20

// readText returns a file's text; empty where it cannot be read.
func readText(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	var b strings.Builder
	r := bufio.NewReader(f)
	for b.Len() < most {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			break
		}
	}
	return b.String()
}

// numbers are the decimal numbers in a text.
func numbers(text string) (all []uint64) {
	for _, w := range strings.Fields(text) {
		if n, err := strconv.ParseUint(w, 10, 64); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// PossibleCPUs is how many CPUs the kernel keeps counters for: those that it could ever
// have. Where that cannot be read it is taken for many.
func PossibleCPUs() int { return cpusIn("/sys/devices/system/cpu/possible", 1024) }
