// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Writer is a program that has committed to nf_tables, as the kernel reports for each new
// generation of the rules: nft, iptables-nft and others.
type Writer struct {
	Name string // of the thread, up to 15 bytes
	PID  int    // of the thread, as the host counts
	At   time.Time
}

// Writers records which programs commit to nf_tables in one network namespace, other than this
// process and its children.
//
// While any socket is in the kernel's multicast group, the kernel makes a notice of each object of
// each commit. So our own commits are made outside of it: see Mute.
type Writers struct {
	file *os.File
	mu   sync.Mutex
	ring []Writer // the latest, oldest first
}

// maxWriters is how many commits are remembered.
const maxWriters = 64

// OpenWriters opens the socket in the network namespace of the calling thread. From then
// on all commits are recorded, see Listen.
func OpenWriters() (*Writers, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables notices: %w", err)
	}
	w := &Writers{file: os.NewFile(uintptr(fd), "nftables notices")}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, generationsOnly()))
	if err == nil {
		err = w.Mute(false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables notices: %w", err), w.Close())
	}
	return w, nil
}

// Mute leaves the kernel's group, or joins it again: a commit in between
// costs nothing more, and is not recorded. It takes about a microsecond.
func (w *Writers) Mute(on bool) error {
	const group = 7 // NFNLGRP_NFTABLES
	option := unix.NETLINK_ADD_MEMBERSHIP
	if on {
		option = unix.NETLINK_DROP_MEMBERSHIP
	}
	return w.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, group) })
}

// control calls f with the socket, while that is open.
func (w *Writers) control(f func(fd int) error) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

// generationsOnly lets notices of new generations pass, and not those of each object,
// which the kernel sends to the same group.
func generationsOnly() *unix.SockFprog {
	var kind [2]byte
	binary.NativeEndian.PutUint16(kind[:], subsystem<<8|unix.NFT_MSG_NEWGEN)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsg_type, as if in network order
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(binary.BigEndian.Uint16(kind[:])), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 4096},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	return &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
}

// Listen receives until ctx ends. It is called once.
func (w *Writers) Listen(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })() // fails only where the socket is closed
	buf := make([]byte, noticeSize)
	for {
		n, err := w.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some notices were lost, and their writers with them
			continue
		case err != nil:
			return fmt.Errorf("nftables notices: %w", err)
		}
		w.notes(buf[:n])
	}
}

// noticeSize is more than a notice of a new generation has.
const noticeSize = 4096

// drain reads the notices queued in the socket, so that commits before a call are known
// after it, however busy the machine is.
func (w *Writers) drain() {
	buf := make([]byte, noticeSize)
	for range maxWriters {
		n := 0
		err := w.control(func(fd int) (err error) {
			n, _, err = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			return err
		})
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // EAGAIN: nothing waits
			return
		}
		w.notes(buf[:max(n, 0)])
	}
}

func (w *Writers) notes(b []byte) {
	for m, err := range netlink.Messages(b) {
		if err == nil {
			w.note(m)
		}
	}
}

func (w *Writers) note(m netlink.Message) {
	const attrProcPID, attrProcName = 2, 3 // NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
	one := Writer{At: time.Now()}
	for kind, v := range m.Attrs() {
		switch kind {
		case attrProcPID:
			one.PID = int(netlink.Uint32(v))
		case attrProcName:
			one.Name = netlink.Text(v)
		}
	}
	if isOwn(one) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ring = append(w.ring, one)
	w.ring = slices.Delete(w.ring, 0, max(0, len(w.ring)-maxWriters))
}

// isOwn reports whether a writer is a thread of this process or a child of it. Where the
// process ids are another namespace's, or the child has exited, the name decides.
func isOwn(w Writer) bool {
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", w.PID)); err == nil {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.PID))
	if err == nil {
		return strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid()))
	}
	own, _ := os.ReadFile("/proc/self/comm")
	return w.Name == strings.TrimSpace(string(own)) || strings.HasPrefix(w.Name, "iptables-restor") || strings.HasPrefix(w.Name, "ip6tables-resto")
}

// Since returns the programs that have written since a time, oldest first.
func (w *Writers) Since(t time.Time) (all []Writer) {
	w.drain()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.ring {
		if one.At.After(t) {
			all = append(all, one)
		}
	}
	return all
}

// Close ends it.
func (w *Writers) Close() error { return w.file.Close() }
