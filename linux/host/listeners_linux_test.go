// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/host"
)

// Real sockets: on one address, on all, of both protocols; one that is connected does not listen.
func TestListeners(t *testing.T) {
	l, err := host.OpenListeners()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	all, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	client, err := net.Dial("tcp4", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	port := func(a net.Addr) uint16 { return netip.MustParseAddrPort(a.String()).Port() }
	here, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.9")
	for _, tt := range []struct {
		proto model.Proto
		ip    netip.Addr
		port  uint16
		want  bool
	}{
		{model.TCP, here, port(tcp.Addr()), true},
		{model.TCP, other, port(tcp.Addr()), false},
		{model.UDP, here, port(tcp.Addr()), port(tcp.Addr()) == port(udp.LocalAddr())},
		{model.TCP, other, port(all.Addr()), true},
		{model.TCP, netip.IPv6Loopback(), port(all.Addr()), true},
		{model.UDP, here, port(udp.LocalAddr()), true},
		{model.TCP, here, port(client.LocalAddr()), false},
	} {
		place := model.Listener{Proto: tt.proto, At: netip.AddrPortFrom(tt.ip, tt.port)}
		found, err := l.At([]model.Listener{place})
		if err != nil || len(found) > 0 != tt.want {
			t.Errorf("%s %s: %v, %v", tt.proto, place.At, found, err)
		}
		if comm, _ := os.ReadFile("/proc/self/comm"); tt.want && len(found) > 0 {
			if want := fmt.Sprintf("%s (process %d)", comm[:len(comm)-1], os.Getpid()); found[0].Name != want && found[0].Name != fmt.Sprintf("process of user ID %d", os.Getuid()) {
				t.Errorf("%s: named %q, want %q", place.At, found[0].Name, want)
			}
		}
	}
}
