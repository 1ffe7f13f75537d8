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

// Writer is a program that has committed to nf_tables, as the kernel tells of each new
// generation of the rules: nft, iptables-nft and whatever else.
type Writer struct {
	Name string // of the thread, up to 15 bytes
	PID  int    // of the thread, as the host counts
	At   time.Time
}

// Writers listens to who commits to nf_tables in one network namespace, other than this
// process and its children.
type Writers struct {
	file *os.File
	mu   sync.Mutex
	ring []Writer // the latest, oldest first
}

// maxWriters is how many commits are remembered.
const maxWriters = 64

// OpenWriters opens the socket in the network namespace of the calling thread. It hears
// nothing before Listen.
func OpenWriters() (*Writers, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables notices: %w", err)
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, generationsOnly()))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables notices: %w", err), unix.Close(fd))
	}
	return &Writers{file: os.NewFile(uintptr(fd), "nftables notices")}, nil
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

// Listen joins the kernel's group, receives until ctx ends, and leaves it. As long as
// somebody is in it, the kernel makes notices of all objects. It may be called again, and
// not at the same time.
func (w *Writers) Listen(ctx context.Context) error {
	const group = 7 // NFNLGRP_NFTABLES
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	member := func(option int) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, group) })
		return errors.Join(err, failed)
	}
	if err = errors.Join(w.file.SetReadDeadline(time.Time{}), member(unix.NETLINK_ADD_MEMBERSHIP)); err != nil {
		return fmt.Errorf("nftables notices: %w", err)
	}
	defer func() { _ = member(unix.NETLINK_DROP_MEMBERSHIP) }() // fails only where the socket is closed
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended // before another call sets the deadline
		}
	}()
	buf := make([]byte, 8192)
	for {
		n, err := w.file.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // some notices were lost: who wrote is not known then
			continue
		case err != nil:
			return fmt.Errorf("nftables notices: %w", err)
		}
		for m, err := range netlink.Messages(buf[:n]) {
			if err == nil {
				w.note(m)
			}
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
// process ids are another namespace's, or the child is gone, the name decides.
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

// Since returns who has written since a time, oldest first.
func (w *Writers) Since(t time.Time) (all []Writer) {
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
