// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
)

// Addresses lists and watches the addresses of the network namespace that it was
// opened in. One goroutine may use it at a time.
type Addresses struct {
	links   *netlink.Handle
	events  *os.File // a socket that receives address changes
	skip    func(netlink.Link) bool
	skipped map[int]bool // links by index, as last listed
}

// Dummies reports whether a link is a dummy device, such as kube-ipvs0: addresses
// there are for Services, not for this machine.
func Dummies(l netlink.Link) bool { return l.Type() == "dummy" }

// OpenAddresses opens those of the calling thread's network namespace, except the
// links to skip.
func OpenAddresses(skip func(netlink.Link) bool) (a *Addresses, err error) {
	a = &Addresses{skip: skip}
	if a.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err == nil {
		a.events, err = subscribe(unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch this machine's addresses: %w", err), a.Close())
	}
	return a, nil
}

// Close ends the subscription and closes its sockets.
func (a *Addresses) Close() (err error) {
	if a.events != nil {
		err = a.events.Close()
	}
	if a.links != nil {
		a.links.Close()
	}
	return err
}

// Changed reports whether an address has changed since the last call, except those
// on skipped links, as kube-ipvs0 gets one for each Service, and link-local ones of IPv6,
// as the link of each pod gets one. It costs a system call.
func (a *Addresses) Changed() (changed bool) {
	raw, err := a.events.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { changed = addressChanged(int(fd), func(link int) bool { return a.skipped[link] }) })
	}
	return changed || err != nil
}

// Wait waits until Changed has something to look at, or ctx ends.
func (a *Addresses) Wait(ctx context.Context) {
	raw, err := a.events.SyscallConn()
	if err != nil {
		return
	}
	_ = a.events.SetReadDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { _ = a.events.SetReadDeadline(time.Unix(1, 0)) })()
	_ = raw.Read(func(fd uintptr) (ready bool) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil
	})
}

// List returns all addresses but those of loopback, link-local ones and those on
// skipped links. Those of the links that were made first are first: of hardware before
// those of bridges for containers.
func (a *Addresses) List() ([]model.LocalAddress, error) {
	var addrs []netlink.Addr
	var links []netlink.Link
	err := RetryInterrupted(func() (err error) { // links last, so that the link of every address is known or gone
		if addrs, err = a.links.AddrList(nil, netlink.FAMILY_ALL); err == nil {
			links, err = a.links.LinkList()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	a.skipped = make(map[int]bool, len(links))
	for _, l := range links {
		a.skipped[l.Attrs().Index] = a.skip(l)
	}
	return onNetworks(addrs, a.skipped), nil
}

// onNetworks returns the addresses of links that exist and are not skipped.
func onNetworks(addrs []netlink.Addr, skipped map[int]bool) (all []model.LocalAddress) {
	slices.SortStableFunc(addrs, func(a, b netlink.Addr) int { return cmp.Compare(a.LinkIndex, b.LinkIndex) })
	for _, addr := range addrs {
		ip, ok := netip.AddrFromSlice(addr.IP)
		if ip = ip.Unmap(); !ok || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			continue
		}
		bits, _ := addr.Mask.Size()
		skip, known := skipped[addr.LinkIndex]
		if prefix := netip.PrefixFrom(ip, bits); known && !skip && prefix.IsValid() { // not so ::ffff:192.0.2.1/128
			all = append(all, model.LocalAddress{Prefix: prefix})
		}
	}
	return all
}

// ServiceAddress is an address for a device that holds addresses of Services. The
// kernel must never choose it as the source of other packets, as masquerading
// does: its scope is the host or, in IPv6, where scopes have no effect, it is
// deprecated.
func ServiceAddress(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: SingleAddr(a), Scope: unix.RT_SCOPE_HOST}
	if a.Is6() {
		addr.Flags, addr.Scope = unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE, 0
		addr.ValidLft, addr.PreferedLft = math.MaxUint32, 0
	}
	return addr
}

// SingleAddr is the prefix of one address.
func SingleAddr(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// subscribe opens a socket that receives changes of routing netlink groups, in the
// network namespace of the calling thread. Reading it never blocks.
func subscribe(groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "address notices"), nil
}

// addressChanged drains a socket of address changes and reports whether one concerns others
// than skipped links, or whether the socket's buffer has overflowed.
func addressChanged(fd int, skip func(link int) bool) (changed bool) {
	buf := make([]byte, 16<<10)
	for range 1024 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return changed
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			changed = true
			continue
		case err != nil:
			return true
		}
		changed = changed || concernsOther(buf[:n], skip)
	}
	return true // the rest is read next time
}

// concernsOther reports whether messages are about an address that List may return. They begin
// with nlmsghdr and ifaddrmsg. In IPv6 the scope is that of the address itself.
func concernsOther(b []byte, skip func(link int) bool) bool {
	const header, scope, index = unix.SizeofNlMsghdr, 3, 4
	for len(b) >= header+unix.SizeofIfAddrmsg {
		linkLocal := b[header] == unix.AF_INET6 && b[header+scope] == unix.RT_SCOPE_LINK
		if !linkLocal && !skip(int(int32(binary.NativeEndian.Uint32(b[header+index:])))) {
			return true
		}
		size := (int(binary.NativeEndian.Uint32(b)) + 3) &^ 3
		if size < header || size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}

// dumpAttempts is how often a dump is read that changes while it is read.
const dumpAttempts = 10

// RetryInterrupted calls read, which dumps kernel objects, until the dump is
// consistent. The kernel flags one that may lack entries (NLM_F_DUMP_INTR), which
// netlink libraries return as EINTR.
func RetryInterrupted(read func() error) (err error) {
	for range dumpAttempts {
		if err = read(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

// Namespace is a network namespace, kept to work in it from any goroutine.
// Its methods are safe for concurrent use.
type Namespace struct{ file *os.File }

// OwnNamespace leads to the network namespace of the thread that opens it.
const OwnNamespace = "/proc/thread-self/ns/net"

// OpenNamespace returns the network namespace of the calling thread. Close it.
func OpenNamespace() (*Namespace, error) {
	f, err := os.Open(OwnNamespace)
	if err != nil {
		return nil, fmt.Errorf("current network namespace: %w", err)
	}
	return &Namespace{f}, nil
}

// Close releases the namespace. Sockets opened in it stay open.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs f on a thread in the namespace. It needs no privileges if the caller is
// already in it.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := n.isHere()
	if err != nil {
		return err
	}
	if here {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, since no other
		// goroutine may run on a thread in another namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Listen listens in the namespace, as net.ListenConfig.Listen does for IP
// addresses.
func (n *Namespace) Listen(ctx context.Context, network, address string) (l net.Listener, err error) {
	err = n.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, network, address)
		return err
	})
	return l, err
}

func (n *Namespace) isHere() (bool, error) {
	kept, errKept := n.file.Stat()
	current, errCurrent := os.Stat(OwnNamespace)
	if err := errors.Join(errKept, errCurrent); err != nil {
		return false, fmt.Errorf("current network namespace: %w", err)
	}
	return os.SameFile(kept, current), nil
}

// Listeners tells which sockets of a network namespace listen, by sock_diag. It is used by one
// goroutine at a time.
type Listeners struct {
	socket *nl.NetlinkSocket
	names  map[uint32]string // of processes by the inodes of the sockets last found
}

// OpenListeners opens a Listeners for the network namespace of the calling thread.
func OpenListeners() (*Listeners, error) {
	s, err := nl.GetNetlinkSocketAt(-1, -1, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("opening sock_diag: %w", err)
	}
	return &Listeners{socket: s}, nil
}

// Close closes the socket; of nil it does nothing.
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
		var msgs [][]byte
		err := RetryInterrupted(func() (err error) {
			req := nl.NewNetlinkRequest(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: {Socket: l.socket}}
			req.AddData(diagRequest{family, byte(proto), states})
			msgs, err = req.Execute(unix.NETLINK_INET_DIAG, 0)
			return err
		})
		if errors.Is(err, syscall.EAFNOSUPPORT) && family == unix.AF_INET6 {
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
