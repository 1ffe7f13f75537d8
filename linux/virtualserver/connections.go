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
