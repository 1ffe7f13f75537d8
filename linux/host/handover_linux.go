// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// LockQueue is the number of the netfilter queue used as the lock of a proxy, and
// probeQueue that of a probe. No rule sends packets to them, so they stay empty.
const (
	LockQueue  = 64210
	probeQueue = LockQueue + 1
)

// The errors of Lock.
var (
	ErrLocked       = errors.New("locked by another process")
	ErrNoLock       = errors.New("locking the network namespace failed")
	errLockProtocol = errors.New("unexpected response from nfnetlink_queue")
)

// Lock binds a netfilter queue, which only one process can do in a network namespace,
// and only with CAP_NET_ADMIN there. It works in the namespace of the calling thread.
// The lock ends when it is closed or when the process ends, however that happens.
//
// It needs no shared file system, so it also works between containers that share only
// the network namespace. Unlike an abstract socket, it cannot be taken by a process
// without the privilege to program rules. ErrLocked: another process holds it.
// ErrNoLock: the privilege or nfnetlink_queue is missing.
func Lock() (io.Closer, error) { return lock(LockQueue) }

// LockProbe is the lock of probes, whose scratch objects have fixed names, so that the
// next probe deletes what one that was killed has left. It waits for the lock until ctx
// ends. Where there is none (ErrNoLock), probes at the same time may fail.
func LockProbe(ctx context.Context) (io.Closer, error) {
	for {
		c, err := lock(probeQueue)
		switch {
		case errors.Is(err, ErrNoLock):
			return io.NopCloser(nil), nil
		case !errors.Is(err, ErrLocked):
			return c, err
		}
		if !sleep.For(ctx, 10*time.Millisecond) {
			return nil, fmt.Errorf("waiting for another probe: %w", ctx.Err())
		}
	}
}

func lock(queue uint16) (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	socket := os.NewFile(uintptr(fd), "netlink")
	if err := bindQueue(fd, queue); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

func bindQueue(fd int, queue uint16) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("%w: netlink socket: %w", ErrNoLock, err)
	}
	// The kernel answers EPERM both without the privilege and if the queue is taken.
	// A command that does nothing since Linux 3.8 distinguishes these cases.
	const bind, unbindFamily = 1, 4 // enum nfqnl_msg_config_cmds
	if err := queueCommand(fd, queue, unbindFamily); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLock, err)
	}
	switch err := queueCommand(fd, queue, bind); {
	case errors.Is(err, unix.EPERM):
		return ErrLocked
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNoLock, err)
	}
	return nil
}

// queueCommand sends a command about a queue and returns its errno
// (nfnetlink_queue.h).
func queueCommand(fd int, queue uint16, command byte) error {
	const message, attribute = 2, 1 // NFQNL_MSG_CONFIG, NFQA_CFG_CMD
	b := make([]byte, 0, 28)
	b = binary.NativeEndian.AppendUint32(b, 28)
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_QUEUE<<8|message)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, 8)...) // sequence and port
	b = append(b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, queue)
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, attribute)
	b = append(b, command, 0, 0, 0)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	answer := make([]byte, 256)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errLockProtocol
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[16:])); errno != 0 {
		return syscall.Errno(-errno)
	}
	return nil
}

// Handover passes the sockets of relays from one data plane of this process to another, and the
// listening TCP sockets to the next process: the service manager keeps them meanwhile (FDSTORE of
// sd_notify(3)), and clients wait in their queues. Without one that does so, clients are
// refused while no process runs. A process has one, and each server of relays a User of it. It is
// safe for concurrent use.
type Handover struct {
	log *slog.Logger

	mu        sync.Mutex
	inherited map[netip.AddrPort]*net.TCPListener // of the process before, not yet used
	kept      map[netip.AddrPort]bool             // those that the service manager has of us
	off       bool                                // it does not take them
	used      map[model.Destination][]use         // the latest last
}

// use is a descriptor that a user has of the socket at an address.
type use struct {
	by     *user
	socket syscall.Conn
}

// user is Handover for one server of relays.
type user struct{ *Handover }

// User returns what one server of relays passes its sockets on by. Those of one user are its own:
// only others get another descriptor of them.
func (h *Handover) User() relay.Handover { return &user{h} }

// mostKept bounds the sockets that are handed over; FileDescriptorStoreMax of the unit is
// as many.
const mostKept = 4096

// keepTimeout bounds the wait for the service manager.
const keepTimeout = time.Second

// OpenHandover takes the sockets that the previous process left. It does so once: LISTEN_FDS
// is removed from the environment.
func OpenHandover(log *slog.Logger) *Handover {
	h := &Handover{log: log, inherited: map[netip.AddrPort]*net.TCPListener{}, kept: map[netip.AddrPort]bool{}, off: os.Getenv("NOTIFY_SOCKET") == "", used: map[model.Destination][]use{}}
	all, err := activation.Listeners() // nil for those that are none
	if err != nil {
		log.Warn("taking the listening sockets of the previous process failed", "err", err)
	}
	for _, l := range all {
		if tcp, ok := l.(*net.TCPListener); ok {
			h.inherited[addrOf(tcp)] = tcp
		} else if l != nil {
			l.Close()
		}
	}
	return h
}

func addrOf(l *net.TCPListener) netip.AddrPort {
	at := l.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

var _ relay.Handover = (*user)(nil)

func (u *user) Inherit(at netip.AddrPort) *net.TCPListener {
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.inherited[at]; l != nil {
		u.kept[at] = true
		delete(u.inherited, at)
		return l
	}
	f := u.duplicate(model.Destination{Proto: model.TCP, At: at})
	if f == nil {
		return nil
	}
	defer f.Close()
	l, err := net.FileListener(f) // has a descriptor of its own
	if err != nil {
		return nil
	}
	return l.(*net.TCPListener)
}

func (u *user) InheritUDP(at netip.AddrPort) *net.UDPConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	f := u.duplicate(model.Destination{Proto: model.UDP, At: at})
	if f == nil {
		return nil
	}
	defer f.Close()
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil
	}
	return c.(*net.UDPConn)
}

// duplicate returns another descriptor of a socket that another user has; nil for none. Sockets
// that were closed since, or that others have stopped, are none.
func (u *user) duplicate(a model.Destination) *os.File {
	for _, other := range slices.Backward(u.used[a]) {
		if other.by == u {
			continue
		}
		copied := -1
		raw, err := other.socket.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				if listens, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN); a.Proto == model.TCP && listens == 0 {
					return
				}
				copied, _ = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			})
		}
		if err == nil && copied >= 0 {
			return os.NewFile(uintptr(copied), "handover")
		}
	}
	return nil
}

func (u *user) Keep(proto model.Proto, at netip.AddrPort, socket syscall.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := model.Destination{Proto: proto, At: at}
	u.used[a] = append(u.used[a], use{u, socket})
	if proto != model.TCP || u.off || u.kept[at] || len(u.kept) >= mostKept {
		return
	}
	raw, err := socket.SyscallConn()
	if err == nil {
		sent := raw.Control(func(fd uintptr) { err = notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+storeName(at), int(fd)) })
		if sent != nil {
			err = sent
		}
	}
	if err != nil {
		u.off = true
		u.log.Warn("passing listening sockets to the service manager failed; connections are refused during a restart", "err", err)
		return
	}
	u.kept[at] = true
}

// Forget removes a socket that no user needs any more from the
// service manager's store.
func (u *user) Forget(proto model.Proto, at netip.AddrPort, socket syscall.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := model.Destination{Proto: proto, At: at}
	left := slices.DeleteFunc(u.used[a], func(o use) bool { return o == use{u, socket} })
	if len(left) > 0 {
		u.used[a] = left
		return
	}
	delete(u.used, a)
	if proto == model.TCP {
		u.remove(at)
	}
}

// remove removes a socket from the service manager's store. mu is held.
func (h *Handover) remove(at netip.AddrPort) {
	if !h.kept[at] {
		return
	}
	delete(h.kept, at)
	if err := notify("FDSTOREREMOVE=1\nFDNAME="+storeName(at), -1); err != nil {
		h.log.Debug("taking a listening socket back from the service manager failed", "address", at, "err", err)
	}
}

// Release closes inherited sockets that are unused.
func (u *user) Release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for at, l := range u.inherited {
		l.Close()
		u.kept[at] = true
		u.remove(at)
	}
	clear(u.inherited)
}

// storeName names a socket in the store, where colons mean something else.
func storeName(at netip.AddrPort) string {
	return "relay-" + strings.NewReplacer(":", "_", "[", "", "]", "").Replace(at.String())
}

// notify sends a state to the service manager, with a descriptor unless that is
// negative. Without a service manager it does nothing.
func notify(state string, fd int) error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // package net sends no rights over one that is connected
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(socket)
	limit := unix.NsecToTimeval(keepTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return fmt.Errorf("setsockopt SO_SNDTIMEO: %w", err)
	}
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	if err := unix.Sendmsg(socket, []byte(state), rights, &unix.SockaddrUnix{Name: name}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("notify the service manager at %s: %w", name, err)
	}
	return nil
}
