// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// The bytes of a connection in both directions, by the address that its client asked for;
// where they are not counted, it says how to have that.
func TestTraffic(t *testing.T) {
	inNetns(t, func(*Table) {
		r := NewReader()
		defer r.Close()
		command(t, "", "nft", "add table ip filter; add chain ip filter incoming { type filter hook input priority 0; }; add rule ip filter incoming ct state new,established accept")
		command(t, "", "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=0")
		if why, err := r.Traffic(t.Context(), func(model.Proto, netip.AddrPort, netip.AddrPort, uint64) {}); err != nil || !strings.Contains(why, "nf_conntrack_acct=1") {
			t.Errorf("not counted: %q, %v", why, err)
		}
		command(t, "", "sysctl", "-qw", "net.netfilter.nf_conntrack_acct=1")
		server, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		client, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		const packets, size, header = 10, 1000, 28
		for range packets {
			if _, err := client.Write(make([]byte, size)); err != nil {
				t.Error(err)
			}
		}
		if _, err := server.WriteTo(make([]byte, size), client.LocalAddr()); err != nil {
			t.Error(err)
		}
		want, found := netip.MustParseAddrPort(server.LocalAddr().String()), uint64(0)
		if why, err := r.Traffic(t.Context(), func(proto model.Proto, at, from netip.AddrPort, bytes uint64) {
			if proto == model.UDP && at == want && from == want {
				found += bytes
			}
		}); err != nil || why != "" || found != (packets+1)*(size+header) {
			t.Errorf("%d bytes, want %d: %v", found, (packets+1)*(size+header), err)
		}
	})
}
