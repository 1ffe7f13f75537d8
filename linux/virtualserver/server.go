// SPDX-License-Identifier: Apache-2.0

package virtualserver

import (
	"fmt"
	"net/netip"
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
	SHFallback = 1 << 3 // sh: another destination where the chosen one is not available
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
	switch {
	case s.Scheduler == "sh" && s.Flags&SHFallback != 0:
		line += " -b sh-fallback"
	case s.Scheduler == "mh" && s.Flags&MHPort != 0:
		line += " -b mh-port"
	}
	for _, d := range destinations {
		line += fmt.Sprintf("\n-a %s -r %s -m -w %d", id.text(), d.Addr, d.Weight)
	}
	return line + "\n"
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
