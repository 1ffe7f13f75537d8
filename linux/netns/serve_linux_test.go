// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// A socket that fails for good is not read as fast as the processor can.
func TestServersOfABrokenSocketWait(t *testing.T) {
	const reads = 50
	for name, answer := range map[string]func(ended func() bool){
		"UDP": func(ended func() bool) {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			answerUDP(c, netip.AddrPort{}, ended)
		},
		"SCTP": func(ended func() bool) { answerSCTP(&net.IPConn{}, netip.AddrPort{}, ended) }, // not open
	} {
		start, asked := time.Now(), 0
		answer(func() bool { asked++; return asked > reads })
		if took := time.Since(start); took < reads*retryAfter {
			t.Errorf("%s: %d reads in %s, want at least %s", name, reads, took, reads*retryAfter)
		}
	}
}
