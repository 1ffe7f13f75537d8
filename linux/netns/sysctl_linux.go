// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// sysctl is a setting below /proc/sys/net, which shows the namespace of the
// thread that opens it.
type sysctl struct {
	path, value string
	optional    bool // may be missing: IPv6 switched off, an older kernel
}

// everywhere are the settings of all namespaces, made before links are created, which
// inherit those of "default".
func everywhere() []sysctl {
	return []sysctl{
		// Answers arrive by other interfaces than the reverse path.
		{path: "ipv4/conf/all/rp_filter", value: "0"},
		{path: "ipv4/conf/default/rp_filter", value: "0"},
		// By default Linux sends one "unreachable" per second and peer; here several
		// clients are refused at once.
		{path: "ipv4/icmp_ratelimit", value: "0"},
		{path: "ipv4/icmp_msgs_per_sec", value: "100000", optional: true}, // of the namespace since Linux 6.12
		{path: "ipv6/icmp/ratelimit", value: "0", optional: true},
		// No traffic except the test's.
		{path: "ipv6/conf/all/accept_ra", value: "0", optional: true},
		{path: "ipv6/conf/default/accept_ra", value: "0", optional: true},
		{path: "ipv6/conf/default/accept_dad", value: "0", optional: true},
		{path: "ipv6/conf/default/addr_gen_mode", value: "1", optional: true},
	}
}

// manyMachines are the further settings of a place that simulates many machines.
func manyMachines() []sysctl {
	return []sysctl{
		{path: "ipv4/conf/all/accept_local", value: "1"},
		{path: "ipv4/conf/default/accept_local", value: "1"},
	}
}

// router are the further settings of the node.
func router() []sysctl {
	return []sysctl{
		{path: "ipv4/ip_forward", value: "1"},
		{path: "ipv4/conf/all/send_redirects", value: "0"},
		{path: "ipv4/conf/default/send_redirects", value: "0"},
		{path: "ipv6/conf/all/forwarding", value: "1", optional: true},
	}
}

// write sets sysctls in the namespace of the calling thread.
func write(all []sysctl) error {
	for _, s := range all {
		err := os.WriteFile("/proc/sys/net/"+s.path, []byte(s.value), 0)
		switch {
		case err == nil:
		case s.optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)):
		default:
			return fmt.Errorf("sysctl net/%s=%s: %w", s.path, s.value, err)
		}
	}
	return nil
}

func haveIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
