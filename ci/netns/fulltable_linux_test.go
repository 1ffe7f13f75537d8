// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// mostFilled bounds the entries that the test makes: each takes some 300 bytes of the kernel's
// memory. How many a table may have is a setting of the whole machine, which stays as it is.
const mostFilled = 300_000

// doctor names a table of connections that is full, and none that has room.
func TestAFullConntrackTableIsNamed(t *testing.T) {
	needNFTables(t)
	s := newSite(t)
	s.flags = []string{"--proxy-mode", "nftables"}
	s.write("", "10.244.1.2")
	s.start()
	limit, err := strconv.Atoi(strings.TrimSpace(s.must("sysctl", "-n", "net.netfilter.nf_conntrack_max")))
	if err != nil {
		t.Fatal(err)
	}
	if limit > mostFilled {
		t.Skipf("a table of this machine may have %d connections: more than %d are not made here", limit, mostFilled)
	}
	says := func() string {
		out, _ := s.run("bash", "-c", s.bin+" doctor 2>/dev/null | grep -E '^[A-Z]+ +conntrack '") // the exit code is that of grep
		return out
	}
	if out := says(); !strings.HasPrefix(out, "OK") {
		t.Errorf("with an empty table: %s", out)
	}
	s.must("sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=600")
	s.must("ip", "neigh", "replace", "192.0.2.99", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
	if err := s.net.Do(lab.Node, func() error { return sendToPorts(netip.MustParseAddr("192.0.2.99"), limit) }); err != nil {
		t.Fatal(err)
	}
	s.eventually(time.Minute, "a full table is named", func() error {
		if out := says(); !strings.HasPrefix(out, "FAIL") || !strings.Contains(out, "when the table is full, new ones fail") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// sendToPorts sends so many datagrams that each are a connection of their own.
func sendToPorts(to netip.Addr, n int) error {
	for n > 0 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		for port := 1; port <= 65535 && n > 0; port++ {
			_ = unix.Sendto(fd, nil, 0, &unix.SockaddrInet4{Port: port, Addr: to.As4()}) // a full table refuses the last ones
			n--
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	return nil
}
