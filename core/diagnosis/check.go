// SPDX-License-Identifier: Apache-2.0

// Package diagnosis has the results of `tandem doctor`: what each check found, and how
// to fix it. Checks of a node are in node_*.go, from facts that linux/host and windows/host
// read; checks of modes are in platform.
package diagnosis

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Check is the result of one check. Its JSON form is stable.
type Check struct {
	ID    string `json:"id"` // stable, for scripts: "mode-nftables"
	Level Level  `json:"level"`
	Found string `json:"found"`         // what was found
	Fix   string `json:"fix,omitempty"` // what to do about it, as a command where there is one
}

// Level states how bad a finding is.
type Level string

const (
	OK   Level = "ok"
	Note Level = "note" // good to know; nothing is wrong
	Warn Level = "warn" // works, but something will not be as expected
	Fail Level = "fail" // Services do not work
)

// check inspects one aspect of the node. It returns the zero Check where there is nothing to
// inspect, and need not set the ID.
type check struct {
	id     string
	system string // empty for any
	run    func(*Facts) Check
}

func ok(found string) Check { return Check{Level: OK, Found: found} }

func note(found, fix string) Check { return Check{Level: Note, Found: found, Fix: fix} }

func warn(found, fix string) Check { return Check{Level: Warn, Found: found, Fix: fix} }

func fail(found, fix string) Check { return Check{Level: Fail, Found: found, Fix: fix} }

func either(good, bad Check, is bool) Check {
	if is {
		return good
	}
	return bad
}

// Facts are the input of a node's checks. What a system does not have, or what
// could not be read, is absent: checks that need it report nothing.
type Facts struct {
	System string // as Go names it: "linux", "windows"
	Mode   string // that is configured or in use
	Kernel string // release: "6.1.0-18-amd64", "10.0.20348"
	IPv6   bool   // Services have IPv6 addresses here

	// Sysctls are kernel parameters by their names with slashes.
	Sysctls    map[string]string
	Interfaces []Interface
	Routes     [2]bool // whether there is a default route, by family
	BaseChains []BaseChain
	Flowtables []Flowtable
	// EarlyRules are rules of iptables that end a packet's way through the nat table
	// before Services are looked up.
	EarlyRules []string
	// LegacyTables are tables of iptables-legacy, beside NFTTables of iptables-nft.
	LegacyTables, NFTTables []string
	ForwardDrop             []string // chains with the policy drop for forwarded packets

	Conntrack  Conntrack
	Neighbours int // entries of the IPv4 neighbour table
	Files      Usage
	SystemFile Usage // open files of the whole system
	Memory     Usage // bytes, against the limit of this process's group
	OOMKills   int   // in that group
	Available  Usage // Used is memory available, Limit all there is
	Processes  map[string][]string
	Listening  []uint16 // TCP ports that anything but tandem listens on, at any address
	NodePorts  [2]int   // first and last of the range
	Modules    *Modules
	Clock      *Clock
	Services   map[string]string // of Windows, and their states: "running"
	Dynamic    [2]int            // Windows: first and last dynamic TCP port
	Running    *Running
}

// Interface is a network interface that is up.
type Interface struct {
	Name   string
	Kind   string // "vxlan", "geneve", "wireguard", "ipip", "bridge", "veth", ""
	MTU    int
	Uplink bool // a default route leads out of it
}

// BaseChain is a chain of nftables that packets reach by themselves.
type BaseChain struct {
	Family, Table, Name string
	Type                string // "filter", "nat", "route"
	Hook                string // "prerouting", "input", "forward", "output", "postrouting"
	Priority            int
	Drop                bool // its policy
	Rules               int  // that it has
}

// own reports whether the chain is tandem's.
func (c BaseChain) own() bool { return c.Table == "tandem" || strings.HasPrefix(c.Table, "tandem-") }

// Flowtable is a flowtable of nftables: packets of connections in it go past all chains of
// prerouting, forward and postrouting.
type Flowtable struct {
	Family, Table, Name string
	Devices             []string
	Own                 bool // tandem's
}

// String names it as nft does: "inet filter fast".
func (f Flowtable) String() string { return f.Family + " " + f.Table + " " + f.Name }

// Conntrack are counters of connection tracking, summed over all CPUs.
type Conntrack struct {
	Count, Max, Buckets     uint64
	InsertFailed, EarlyDrop uint64 // since the boot
	Dropped                 uint64
}

// Usage is how much of a limit is in use; a Limit of 0 is unknown.
type Usage struct{ Used, Limit uint64 }

// over reports whether more than a part of the limit is in use.
func (u Usage) over(part float64) bool {
	return u.Limit > 0 && float64(u.Used) > part*float64(u.Limit)
}

// Modules are kernel modules that the mode needs.
type Modules struct {
	Missing []string // neither loaded, nor built in, nor available to be loaded
}

// Clock is the state of the system's clock.
type Clock struct {
	Synchronized bool
	Error        time.Duration // the kernel's bound of the clock's error
}

// Running is the state that a running tandem reports.
type Running struct {
	Healthy   bool
	Reasons   []string
	Mode      string
	Drift     uint64
	Failing   []string // Services
	Partial   int
	Pending   int // Services that the next syncs program
	Degraded  []string
	Inputs    map[string]time.Duration // since each kind of object was last known to be up to date
	Unlisted  []string                 // those of which nothing was read yet
	NodePorts []uint16                 // TCP, of its Services
	IPv6      bool                     // some have IPv6 addresses
	Offload   bool                     // flow offload is asked for
}

// sysctl returns a parameter as a number.
func (f *Facts) sysctl(name string) (n int, ok bool) {
	n, err := strconv.Atoi(strings.TrimSpace(f.Sysctls[name]))
	return n, err == nil
}

// version returns the numbers of a kernel's release, as many as there are up to three.
func version(release string) (v [3]int) {
	for i, part := range strings.SplitN(release, ".", 3) {
		digits := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
		if digits >= 0 {
			part = part[:digits]
		}
		v[i], _ = strconv.Atoi(part)
	}
	return v
}

// before reports whether a version is older than another.
func before(v, other [3]int) bool {
	for i := range v {
		if v[i] != other[i] {
			return v[i] < other[i]
		}
	}
	return false
}

// Node runs all checks of a node that need nothing but facts.
func Node(f *Facts) []Check {
	var found []Check
	for _, c := range slices.Concat(routingChecks(), filterChecks(), conntrackChecks(), resourceChecks(), windowsChecks(), runningChecks()) {
		if c.system != "" && c.system != f.System {
			continue
		}
		if result := c.run(f); result.Level != "" {
			result.ID = c.id
			found = append(found, result)
		}
	}
	return found
}

// Worst returns the worst level of checks; OK when there are none.
func Worst(checks []Check) Level {
	order := []Level{Fail, Warn, Note}
	for _, l := range order {
		for _, c := range checks {
			if c.Level == l {
				return l
			}
		}
	}
	return OK
}
