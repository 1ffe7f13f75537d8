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
