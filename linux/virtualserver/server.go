// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/model"
)

// ID names a virtual server: by protocol and address or, if FWMark is not 0, by
// the mark of its packets alone.
type ID struct {
	Family model.Family
	Proto  model.Proto
	Addr   netip.AddrPort
	FWMark uint32
}

// Server is the definition of a virtual server.
type Server struct {
	Scheduler string // such as "rr"
	Flags     uint32
	Timeout   uint32 // seconds of a persistent server, else 0
}

// Flags of virtual servers. The kernel keeps flags that it does not know, and
// ipvsadm does not show them.
const (
	Persistent = 1 << 0 // a client keeps its destination until Timeout
	hashed     = 1 << 1 // the kernel's own
	Fallback   = 1 << 3 // sh and mh: another destination where the client's own takes no connections
	MHPort     = 1 << 4 // mh: the client's port is hashed, too
)

// Destination is a real server, to which packets go by DNAT ("masquerading").
type Destination struct {
	Addr        netip.AddrPort
	Weight      int // 0 takes no new connections
	Connections int // active and inactive
}

// Schedulers are the names of those that kernels may have, each in its module
// ip_vs_NAME.
func Schedulers() []string {
	return strings.Fields("rr wrr lc wlc fo ovf lblc lblcr dh sh mh sed nq twos")
}

// Text returns what "ipvsadm -R" reads to make a virtual server and its
// destinations.
func Text(id ID, s Server, destinations ...Destination) string {
	line := "-A " + id.text() + " -s " + s.Scheduler
	if s.Timeout > 0 {
		line += fmt.Sprintf(" -p %d", s.Timeout)
	}
	if flags := s.schedulerFlags(); len(flags) > 0 {
		line += " -b " + strings.Join(flags, ",")
	}
	for _, d := range destinations {
		line += fmt.Sprintf("\n-a %s -r %s -m -w %d", id.text(), d.Addr, d.Weight)
	}
	return line + "\n"
}

// schedulerFlags are the names of the flags that are the scheduler's.
func (s Server) schedulerFlags() (names []string) {
	if s.Flags&Fallback != 0 && (s.Scheduler == "sh" || s.Scheduler == "mh") {
		names = append(names, s.Scheduler+"-fallback")
	}
	if s.Flags&MHPort != 0 && s.Scheduler == "mh" {
		names = append(names, "mh-port")
	}
	return names
}

func (id ID) text() string {
	switch {
	case id.FWMark != 0 && id.Family == model.IPv6:
		return fmt.Sprintf("-f %d -6", id.FWMark)
	case id.FWMark != 0:
		return fmt.Sprintf("-f %d", id.FWMark)
	}
	return map[model.Proto]string{model.TCP: "-t", model.UDP: "-u", model.SCTP: "--sctp-service"}[id.Proto] + " " + id.Addr.String()
}

// Table is a table of virtual servers with the addresses of their destinations,
// for simulators.
type Table map[ID][]netip.AddrPort

// Add adds a virtual server or destinations of it.
func (t Table) Add(id ID, destinations ...netip.AddrPort) { t[id] = append(t[id], destinations...) }

// Find returns the virtual server of a packet as the kernel finds it: by mark,
// then by address.
func (t Table) Find(proto model.Proto, dst netip.AddrPort, mark uint32) (ID, bool) {
	family := model.FamilyOf(dst.Addr())
	for _, id := range [...]ID{{Family: family, FWMark: mark}, {Family: family, Proto: proto, Addr: dst}} {
		if _, ok := t[id]; ok {
			return id, true
		}
	}
	return ID{}, false
}

// Connection is an entry of IPVS's own table of connections.
type Connection struct {
	Proto  model.Proto
	Client netip.AddrPort
	Dst    netip.AddrPort // where the client sent its first packet
	To     netip.AddrPort // the destination that the scheduler has chosen
	State  string         // such as SYN_RECV or ESTABLISHED; of UDP "UDP"
}

// connectionTable is the file that lists the connections of the calling thread's network
// namespace.
const connectionTable = "/proc/thread-self/net/ip_vs_conn"

// Connections calls each for all connections of the network namespace of the calling
// thread.
func Connections(ctx context.Context, each func(Connection)) (err error) {
	f, err := os.Open(connectionTable)
	if err != nil {
		return fmt.Errorf("connections of IPVS: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return readConnections(ctx, f, each)
}

// readConnections reads that file. Lines of other protocols and templates of persistent
// clients, which have no port, are left out.
func readConnections(ctx context.Context, r io.Reader, each func(Connection)) error {
	for lines := bufio.NewScanner(r); ; {
		if !lines.Scan() || ctx.Err() != nil {
			return errors.Join(lines.Err(), ctx.Err())
		}
		if c, ok := parseConnection(lines.Text()); ok {
			each(c)
		}
	}
}

// parseConnection reads a line as ip_vs_conn_seq_show of net/netfilter/ipvs/ip_vs_conn.c
// writes it: protocol, client, virtual server, destination, state. IPv4 addresses and ports
// are hexadecimal, IPv6 addresses are written out.
func parseConnection(line string) (c Connection, ok bool) {
	words := strings.Fields(line)
	if len(words) < 8 {
		return c, false
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		if strings.EqualFold(words[0], proto.String()) {
			c.Proto = proto
		}
	}
	c.State = words[7]
	for i, at := range []*netip.AddrPort{&c.Client, &c.Dst, &c.To} {
		if *at, ok = parseAddrPort(words[1+2*i], words[2+2*i]); !ok {
			return c, false
		}
	}
	return c, c.Proto != 0 && c.Client.Port() != 0
}

// parseAddrPort reads an address, IPv4 in hexadecimal or IPv6 as text, and a port in
// hexadecimal.
func parseAddrPort(addr, port string) (netip.AddrPort, bool) {
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	var a netip.Addr
	if strings.Contains(addr, ":") {
		a, err = netip.ParseAddr(addr)
	} else if b, bad := hex.DecodeString(addr); bad == nil {
		a, _ = netip.AddrFromSlice(b)
	}
	return netip.AddrPortFrom(a, uint16(n)), err == nil && a.IsValid()
}
