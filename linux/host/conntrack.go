// SPDX-License-Identifier: Apache-2.0

package host

import (
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

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
