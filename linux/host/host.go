// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// Setting is the wanted value of a number in a file of the kernel.
type Setting struct {
	// Path is the file below the root, such as
	// "proc/sys/net/netfilter/nf_conntrack_max".
	Path string
	Want int
	// AtLeast leaves a larger value alone: other programs may rely on it.
	AtLeast bool
}

// fits reports whether a file's content satisfies the setting.
func (s Setting) fits(content string) (bool, error) {
	have, err := strconv.Atoi(strings.TrimSpace(content))
	if err != nil {
		return false, fmt.Errorf("not a number: %.40q", content)
	}
	return have == s.Want || s.AtLeast && have > s.Want, nil
}

// String names the setting and its wanted value.
func (s Setting) String() string {
	least := ""
	if s.AtLeast {
		least = "at least "
	}
	return fmt.Sprintf("%s should be %s%d", s.name(), least, s.Want)
}

// name is the sysctl name, such as net.netfilter.nf_conntrack_max, or the file.
func (s Setting) name() string {
	if sysctl, ok := strings.CutPrefix(s.Path, "proc/sys/"); ok {
		return "sysctl " + strings.ReplaceAll(sysctl, "/", ".")
	}
	return "/" + s.Path
}

// fix is the command that sets it by hand.
func (s Setting) fix() string {
	if sysctl, ok := strings.CutPrefix(s.Path, "proc/sys/"); ok {
		return fmt.Sprintf("sysctl -w %s=%d", strings.ReplaceAll(sysctl, "/", "."), s.Want)
	}
	return fmt.Sprintf("echo %d > /%s", s.Want, s.Path)
}

// maxTracked bounds the table size computed from the number of CPUs, as in
// kube-proxy: an entry takes about 300 bytes. A minimum set by the user may be
// larger.
const maxTracked = 1 << 20

// trackingDir is where the kernel has the parameters of connection tracking:
// Documentation/networking/nf_conntrack-sysctl.rst.
const trackingDir = "proc/sys/net/netfilter/"

// Conntrack returns the connection tracking parameters for a machine with that many
// CPUs. Values that are 0 or nil in the configuration are left unchanged, and the
// table size is never lowered.
func Conntrack(c config.Conntrack, cpus int) (all []Setting) {
	set := func(name string, value int) {
		all = append(all, Setting{Path: trackingDir + name, Want: value})
	}
	if size := tableSize(c, cpus); size > 0 {
		all = append(all,
			Setting{Path: trackingDir + "nf_conntrack_max", Want: size, AtLeast: true},
			// Lookups are fast enough with four entries to a bucket.
			Setting{Path: "sys/module/nf_conntrack/parameters/hashsize", Want: size / 4, AtLeast: true},
		)
	}
	if t := c.TCPEstablished; t != nil && *t > 0 {
		set("nf_conntrack_tcp_timeout_established", seconds(*t))
	}
	if t := c.TCPCloseWait; t != nil && *t > 0 {
		set("nf_conntrack_tcp_timeout_close_wait", seconds(*t))
	}
	if c.TCPBeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
	if c.UDP > 0 {
		set("nf_conntrack_udp_timeout", seconds(c.UDP))
	}
	if c.UDPStream > 0 {
		set("nf_conntrack_udp_timeout_stream", seconds(c.UDPStream))
	}
	return all
}

// tableSize returns the wanted number of entries; 0 means unchanged.
func tableSize(c config.Conntrack, cpus int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	size := maxTracked
	if c.MaxPerCore < maxTracked/max(cpus, 1) {
		size = c.MaxPerCore * max(cpus, 1)
	}
	return max(size, c.Min)
}

// seconds rounds up: 0 would mean something else to the kernel.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// countCPUs counts a list as in /sys/devices/system/cpu/online: "0-3,8".
func countCPUs(list string) (n int, err error) {
	const most = 1 << 16
	for _, part := range strings.Split(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || to < from {
			return 0, fmt.Errorf("not a list of CPUs: %.40q", list)
		}
		n += int(to-from) + 1
		if n > most {
			return 0, fmt.Errorf("too many CPUs: %.40q", list)
		}
	}
	return n, nil
}

// Poll schedules reading of state for which the kernel sends no change events: at
// intervals of Every, and for at most 1/pollShare of the time. It is safe for
// concurrent use once Every is set.
type Poll struct {
	Every time.Duration // 0 is never

	mu    sync.Mutex
	begun time.Time // of the last reading, also if it failed
	took  time.Duration
}

// pollShare bounds the cost of polling. With 10,000 Services of five endpoints
// iptables-save takes 0.2 s and twice that to compare; IPVS has some 60,000
// objects.
const pollShare = 200

// Due reports whether it is time to read.
func (p *Poll) Due(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Every > 0 && now.Sub(p.begun) > max(p.Every, pollShare*p.took)
}

// Begin notes that a reading begins.
func (p *Poll) Begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = now
}

// End notes that the reading has ended.
func (p *Poll) End(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = now.Sub(p.begun)
}
