// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// Handover passes the listening TCP sockets of relays to the next process: the service
// manager keeps them meanwhile (FDSTORE of sd_notify(3)), and clients wait in their
// queues. Without one that does so, clients are refused while no process runs. One
// goroutine uses it at a time.
type Handover struct {
	log       *slog.Logger
	inherited map[netip.AddrPort]*net.TCPListener // of the process before, not yet used
	kept      map[netip.AddrPort]bool             // those that the service manager has of us
	off       bool                                // it does not take them
}

// mostKept bounds the sockets that are handed over; FileDescriptorStoreMax of the unit is
// as many.
const mostKept = 4096

// keepTimeout bounds the wait for the service manager.
const keepTimeout = time.Second

// OpenHandover takes the sockets that the previous process left. It does so once: LISTEN_FDS
// is removed from the environment.
func OpenHandover(log *slog.Logger) *Handover {
	h := &Handover{log: log, inherited: map[netip.AddrPort]*net.TCPListener{}, kept: map[netip.AddrPort]bool{}, off: os.Getenv("NOTIFY_SOCKET") == ""}
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

// Inherit implements relay.Handover.
func (h *Handover) Inherit(at netip.AddrPort) *net.TCPListener {
	l := h.inherited[at]
	if l != nil {
		h.kept[at] = true
	}
	delete(h.inherited, at)
	return l
}

// Keep implements relay.Handover.
func (h *Handover) Keep(l *net.TCPListener) {
	at := addrOf(l)
	if h.off || h.kept[at] || len(h.kept) >= mostKept {
		return
	}
	raw, err := l.SyscallConn()
	if err == nil {
		sent := raw.Control(func(fd uintptr) { err = notify("FDSTORE=1\nFDPOLL=0\nFDNAME="+storeName(at), int(fd)) })
		if sent != nil {
			err = sent
		}
	}
	if err != nil {
		h.off = true
		h.log.Warn("handing listening sockets to the service manager failed; clients are refused during a restart", "err", err)
		return
	}
	h.kept[at] = true
}

// Forget implements relay.Handover: it removes a socket that is no longer needed from the service manager's store.
func (h *Handover) Forget(at netip.AddrPort) {
	if !h.kept[at] {
		return
	}
	delete(h.kept, at)
	if err := notify("FDSTOREREMOVE=1\nFDNAME="+storeName(at), -1); err != nil {
		h.log.Debug("taking a listening socket back from the service manager failed", "address", at, "err", err)
	}
}

// Release implements relay.Handover: it closes inherited sockets that are unused.
func (h *Handover) Release() {
	for at, l := range h.inherited {
		l.Close()
		h.kept[at] = true
		h.Forget(at)
	}
	clear(h.inherited)
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
