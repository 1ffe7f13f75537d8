// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// Listeners tells which sockets of a network namespace listen, by sock_diag. It is used by one
// goroutine at a time.
type Listeners struct {
	socket *nl.NetlinkSocket
	names  map[uint32]string // of processes by the inodes of the sockets last found
}

// OpenListeners opens it for the namespace of the calling thread.
func OpenListeners() (*Listeners, error) {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("opening sock_diag: %w", err)
	}
	return &Listeners{socket: s}, nil
}

// Close closes it.
func (l *Listeners) Close() error {
	if l != nil {
		l.socket.Close()
	}
	return nil
}

// At returns those of some places at which a socket listens, a wildcard one included, with the name of
// its process. Of a protocol that the kernel cannot tell about, SCTP without its module, all are.
func (l *Listeners) At(places []model.Listener) (found []model.Listener, err error) {
	names := make(map[uint32]string)
	for _, proto := range []model.Proto{model.TCP, model.UDP, model.SCTP} {
		at := map[uint16][]netip.Addr{}
		for _, p := range places {
			if p.Proto == proto {
				at[p.At.Port()] = append(at[p.At.Port()], p.At.Addr())
			}
		}
		if len(at) == 0 {
			continue
		}
		sockets, err := l.dump(proto)
		if err != nil && proto != model.SCTP {
			return nil, fmt.Errorf("listing %s sockets: %w", proto, err)
		}
		if err != nil {
			for port, ips := range at {
				for _, ip := range ips {
					found = append(found, model.Listener{Proto: proto, At: netip.AddrPortFrom(ip, port), Name: "process, maybe (the kernel cannot tell),"})
				}
			}
			continue
		}
		for _, s := range sockets {
			for _, ip := range at[s.at.Port()] {
				if s.has(ip) {
					found = append(found, model.Listener{Proto: proto, At: netip.AddrPortFrom(ip, s.at.Port()), Name: l.name(s, names)})
				}
			}
		}
	}
	l.names = names
	return found, nil
}

// listeningSocket is one that the kernel listed.
type listeningSocket struct {
	at         netip.AddrPort
	only6      bool
	uid, inode uint32
}

// has reports whether a connection to an address of this machine would reach the socket.
func (s listeningSocket) has(ip netip.Addr) bool {
	a := s.at.Addr()
	return a == ip || a.IsUnspecified() && (a.Is4() == ip.Is4() || a.Is6() && !s.only6)
}

// What linux/inet_diag.h has.
const (
	diagRequestLen = 56
	diagMessageLen = 72
	diagSKV6Only   = 11
	tcpClose       = 7 // of UDP: not connected
	tcpListen      = 10
)

// diagRequest asks for all sockets of a family and protocol in some states.
type diagRequest struct {
	family, proto byte
	states        uint32
}

var _ nl.NetlinkRequestData = diagRequest{}

func (diagRequest) Len() int { return diagRequestLen }

func (r diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestLen)
	b[0], b[1] = r.family, r.proto
	binary.NativeEndian.PutUint32(b[4:], r.states)
	return b
}

// dump lists the sockets of a protocol that wait for clients.
func (l *Listeners) dump(proto model.Proto) (all []listeningSocket, err error) {
	states := uint32(1) << tcpListen
	if proto == model.UDP {
		states = 1 << tcpClose
	}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		const attempts = 3 // of a list that changed while it was read
		var msgs [][]byte
		for range attempts {
			req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: l.socket}}
			req.AddData(diagRequest{family, byte(proto), states})
			if msgs, err = req.Execute(unix.NETLINK_INET_DIAG, 0); !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if errors.Is(err, syscall.EAFNOSUPPORT) && family == unix.AF_INET6 {
			err = nil
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if s, ok := decodeSocket(m); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

func decodeSocket(m []byte) (s listeningSocket, ok bool) {
	if len(m) < diagMessageLen {
		return s, false
	}
	ip := netip.AddrFrom4([4]byte(m[8:12]))
	if m[0] == unix.AF_INET6 {
		ip = netip.AddrFrom16([16]byte(m[8:24])).Unmap()
	}
	s.at = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(m[4:]))
	s.uid, s.inode = binary.NativeEndian.Uint32(m[64:]), binary.NativeEndian.Uint32(m[68:])
	attrs, err := nl.ParseRouteAttr(m[diagMessageLen:])
	for _, a := range attrs {
		if err == nil && a.Attr.Type == diagSKV6Only && len(a.Value) > 0 {
			s.only6 = a.Value[0] != 0
		}
	}
	return s, true
}

// namingTime is how long a search for a process may take: what follows waits for it.
const namingTime = 20 * time.Millisecond

// name returns the name of the process that has a socket, or of its user where the process is out of sight.
func (l *Listeners) name(s listeningSocket, now map[uint32]string) string {
	name, known := now[s.inode]
	if !known {
		name, known = l.names[s.inode]
	}
	if !known {
		if name = processOf(s.inode, time.Now().Add(namingTime)); name == "" {
			name = fmt.Sprintf("process of user ID %d", s.uid)
		}
	}
	now[s.inode] = name
	return name
}

func processOf(inode uint32, until time.Time) string {
	want := fmt.Sprintf("socket:[%d]", inode)
	proc, err := os.Open("/proc")
	if err != nil {
		return ""
	}
	defer proc.Close()
	for {
		some, err := proc.Readdirnames(64)
		for _, pid := range some {
			if _, err := strconv.Atoi(pid); err != nil {
				continue
			}
			dir := filepath.Join("/proc", pid, "fd")
			fds, _ := os.ReadDir(dir) // no permission, or gone
			for _, fd := range fds {
				if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && link == want {
					comm, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
					return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(comm)), pid)
				}
			}
			if time.Now().After(until) {
				return ""
			}
		}
		if err != nil {
			return ""
		}
	}
}
