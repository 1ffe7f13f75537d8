// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// dropRules make first packets cost nothing after the address translation, and
// have them tracked also without any translation.
const dropRules = `table ip bench { chain output { type filter hook output priority 300;
	ip saddr 192.0.2.1 tcp dport { 80, 8080 } ct state new drop; }; }`

// prepareDrop loads the rules on the node.
func (n *testNode) prepareDrop() error { return n.net.Do(lab.Node, loadDropRules) }

// loadDropRules loads the rules in the network namespace of the calling thread.
func loadDropRules() error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(dropRules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// firstPacket returns the seconds that a new connection's first packet costs the node: it
// sends SYNs to Services in no order, each of a new flow, which are dropped when
// they have been translated. It is the least of some runs: whatever else the
// machine does only adds to it.
func (n *testNode) firstPacket(w world) (each float64, err error) {
	err = n.net.Do(lab.Node, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range 20 {
			took, err := flood(fd, w, 50*time.Millisecond)
			if err != nil {
				return err
			}
			if each == 0 || took < each {
				each = took
			}
		}
		return nil
	})
	return each, err
}

// flood sends for some time and returns the seconds for each packet.
func flood(fd int, w world, span time.Duration) (float64, error) {
	begin, all := time.Now(), newSYNs(fd, w)
	for n := 1; ; n++ {
		if err := all.send(64); err != nil {
			return 0, err
		}
		if took := time.Since(begin); took > span {
			return took.Seconds() / float64(64*n), nil
		}
	}
}

// syns are first packets of connections from the node to Services, each of a new flow.
type syns struct {
	world
	fd     int // a raw socket
	packet []byte
	sent   int
}

func newSYNs(fd int, w world) *syns {
	s := &syns{world: w, fd: fd, packet: make([]byte, 40)}
	s.packet[0], s.packet[8], s.packet[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(s.packet[12:16], nodeIP.AsSlice())
	s.packet[32], s.packet[33] = 5<<4, 2 // the header's length, SYN
	binary.BigEndian.PutUint16(s.packet[22:], servicePort)
	binary.BigEndian.PutUint16(s.packet[34:], 65535)
	return s
}

// send sends some more.
func (s *syns) send(n int) error {
	to := &unix.SockaddrInet4{}
	for range n {
		// A step that shares no factor with any number of Services in use.
		vip := s.vip(s.sent * 7919 % s.services).Addr().As4()
		copy(s.packet[16:20], vip[:])
		to.Addr = vip
		binary.BigEndian.PutUint16(s.packet[20:], uint16(1024+s.sent%60000))
		s.sent++
		// A packet dropped on its way out is reported as EPERM.
		if err := unix.Sendto(s.fd, s.packet, 0, to); err != nil && err != unix.EPERM {
			return fmt.Errorf("send to %v: %w", vip, err)
		}
	}
	return nil
}
