// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
)

// world is one in which real packets flow: two endpoints, a client, a
// virtual address that only rules make work, and another Service's.
type world struct {
	family                      string // nft's
	client, a, b, front, others string
	bits                        int
}

var worlds = map[string]world{
	"IPv4": {"ip", "10.244.1.10", "10.244.1.2", "10.244.1.3", "10.96.0.10", "10.96.0.11", 32},
	"IPv6": {"ip6", "fd00:1::10", "fd00:1::2", "fd00:1::3", "fd00:96::a", "fd00:96::b", 128},
}

func at(addr string) string { return net.JoinHostPort(addr, "5353") }

// prepare gives the namespace its addresses and starts the endpoints, which
// answer with their name.
func (w world) prepare(t *testing.T) {
	t.Helper()
	for _, addr := range []string{w.client, w.a, w.b} {
		args := []string{"address", "add", fmt.Sprintf("%s/%d", addr, w.bits), "dev", "lo"}
		if w.bits == 128 {
			args = append(args, "nodad")
		}
		command(t, "", "ip", args...)
	}
	family := map[int]string{32: "-4", 128: "-6"}[w.bits]
	// What no rule translates leaves by an unconnected wire.
	command(t, "", "ip", "link", "add", "out", "arp", "off", "up", "type", "veth", "peer", "name", "end")
	command(t, "", "ip", "link", "set", "end", "up")
	command(t, "", "ip", family, "route", "add", "default", "dev", "out")
	for _, addr := range []string{w.a, w.b} {
		conn, err := net.ListenPacket("udp", at(addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		go answer(conn, addr)
	}
}

func answer(conn net.PacketConn, name string) {
	for buf := make([]byte, 64); ; {
		_, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = conn.WriteTo([]byte(name), from)
		}
	}
}

// translate sends new flows to the frontend to an endpoint, and those of the other
// Service always to a.
func (w world) translate(t *testing.T, endpoint string) {
	t.Helper()
	rules := fmt.Sprintf("add table %[1]s tandem-test\ndelete table %[1]s tandem-test\ntable %[1]s tandem-test {\n"+
		"chain out { type nat hook output priority -100;\n%[1]s daddr %[2]s udp dport 53 dnat to %[3]s\n", w.family, w.others, w.nat(w.a))
	if endpoint != "" {
		rules += fmt.Sprintf("%s daddr %s udp dport 53 dnat to %s\n", w.family, w.front, w.nat(endpoint))
	}
	command(t, rules+"}\n}\n", "nft", "-f", "-")
}

func (w world) nat(addr string) string {
	if w.bits == 128 {
		return "[" + addr + "]:5353"
	}
	return addr + ":5353"
}

// flow is a client with one source port.
func (w world) flow(t *testing.T, front string) *net.UDPConn {
	t.Helper()
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(w.client)}, &net.UDPAddr{IP: net.ParseIP(front), Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask returns which endpoint answers, "" if none.
func ask(t *testing.T, conn *net.UDPConn, patience time.Duration) string {
	t.Helper()
	if _, err := conn.Write([]byte("?")); err != nil {
		return "" // an earlier ICMP error
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	return string(buf[:n])
}

const (
	soon = 2 * time.Second       // for an answer that must come
	long = 50 * time.Millisecond // for one that must not
)

// A client that never changes its source port follows its Service to the next
// endpoint, as it would not without Delete.
func TestEndpointReplaced(t *testing.T) {
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			inNetns(t, func(table *Table) {
				w.prepare(t)
				w.translate(t, w.a)
				client, other := w.flow(t, w.front), w.flow(t, w.others)
				if got := ask(t, client, soon); got != w.a {
					t.Fatalf("%q answers, want %q", got, w.a)
				}
				ask(t, other, soon)
				w.translate(t, w.b)
				if got := ask(t, client, soon); got != w.a {
					t.Fatalf("%q answers although the flow is tracked", got)
				}
				before := snapshot(t)
				w.clean(t, table, w.a, w.b, 1)
				sameBut(t, before, snapshot(t), 1)
				if got := ask(t, client, soon); got != w.b {
					t.Errorf("%q answers, want %q", got, w.b)
				}
				if got := ask(t, other, soon); got != w.a {
					t.Errorf("the other Service: %q answers, want %q", got, w.a)
				}
				w.clean(t, table, w.a, w.b, 0) // the new flow stays
			})
		})
	}
}

// A client that was there before its Service is found by it.
func TestServiceAfterItsClient(t *testing.T) {
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			inNetns(t, func(table *Table) {
				w.prepare(t)
				w.translate(t, "")
				client := w.flow(t, w.front)
				if got := ask(t, client, long); got != "" {
					t.Fatalf("%q answers before there are rules", got)
				}
				w.translate(t, w.a)
				if got := ask(t, client, long); got != "" {
					t.Fatalf("%q answers although the flow is tracked untranslated", got)
				}
				w.clean(t, table, "", w.a, 1)
				if got := ask(t, client, soon); got != w.a {
					t.Errorf("%q answers, want %q", got, w.a)
				}
			})
		})
	}
}

// clean reports to the table that the frontend's only endpoint was old and is now new.
func (w world) clean(t *testing.T, table *Table, old, now string, want int) {
	t.Helper()
	d := model.Delta{New: w.port(now)}
	if old != "" {
		d.Old = w.port(old)
	}
	deleted, err := deleteStale(t.Context(), table, flows.Stale(&model.Host{}, []model.Delta{d}))
	if err != nil || deleted != want {
		t.Errorf("deleted %d, %v; want %d", deleted, err, want)
	}
}

func (w world) port(endpoint string) *model.Port {
	front := model.Frontend{At: netip.AddrPortFrom(netip.MustParseAddr(w.front), 53)}
	pool := &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort(at(endpoint))}}}
	for o := range front.On {
		front.On[o].Pool = pool
	}
	return &model.Port{
		ID:        model.PortID{Proto: model.UDP, Family: model.FamilyOf(front.At.Addr())},
		Frontends: []model.Frontend{front},
	}
}

// sameBut fails unless exactly n entries are missing and the others are the same.
func sameBut(t *testing.T, before, after map[string][]byte, n int) {
	t.Helper()
	had := len(before)
	maps.DeleteFunc(before, func(key string, _ []byte) bool { return after[key] == nil })
	if had-len(before) != n || !maps.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("%d of %d entries left: %v", len(after), had, flowsOf(t, after))
	}
}
