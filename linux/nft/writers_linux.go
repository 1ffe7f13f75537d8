// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	mu   sync.Mutex     // also held from the receipt of a notice until it is judged
	ring []Writer       // the latest, oldest first
	lost time.Time      // until when commits may be missing: forgotten, or lost by the socket
	told func()         // after notices
	own  map[int]string // children of this process, by process id, and their names: see Child
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
	w := &Writers{file: os.NewFile(uintptr(fd), "nftables notices"), own: map[int]string{}}
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
// costs nothing more, and is not recorded, whoever makes it. It takes about a microsecond.
// Since does not count that as missing: it would have to say so after each change of ours,
// for the moment of our commit.
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

// Listen receives until ctx ends, and calls told, which must not block, after notices. It is called once.
func (w *Writers) Listen(ctx context.Context, told func()) error {
	w.mu.Lock()
	w.told = told
	w.mu.Unlock()
	defer context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })() // fails only where the socket is closed
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		failed = w.receive(int(fd))
		return failed != nil // else wait for more
	})
	if ctx.Err() != nil {
		return nil
	}
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("nftables notices: %w", err)
	}
	return nil
}

// noticeSize is more than a notice of a new generation has.
const noticeSize = 4096

// receive takes all that waits in the socket.
func (w *Writers) receive(fd int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	buf := make([]byte, noticeSize)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if w.told != nil && !errors.Is(err, unix.EAGAIN) {
			w.told()
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.ENOBUFS): // the socket has lost notices
			w.lost = time.Now()
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			w.notes(buf[:n])
		}
	}
}

// drain takes what waits in the socket, so that what was committed before a call is known
// after it, however busy the machine is. A socket that is closed or broken is Listen's to report.
func (w *Writers) drain() { _ = w.control(w.receive) }

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
	if !w.isOwn(one) {
		w.add(one)
	}
}

// add remembers a commit of another program. The oldest is forgotten first.
func (w *Writers) add(one Writer) {
	w.ring = append(w.ring, one)
	if more := len(w.ring) - maxWriters; more > 0 {
		if last := w.ring[more-1].At; last.After(w.lost) {
			w.lost = last
		}
		w.ring = slices.Delete(w.ring, 0, more)
	}
}

// isOwn reports whether a writer is a thread of this process or a child of it. Where the
// process ids are another namespace's, or the writer has ended, its name decides.
func (w *Writers) isOwn(one Writer) bool {
	if _, ok := w.own[one.PID]; ok {
		return true
	}
	if isNamed(fmt.Sprintf("/proc/self/task/%d", one.PID), one.Name) {
		return true
	}
	process := fmt.Sprintf("/proc/%d", one.PID)
	if isNamed(process, one.Name) {
		status, err := os.ReadFile(process + "/status")
		return err == nil && strings.Contains(string(status), fmt.Sprintf("\nPPid:\t%d\n", os.Getpid()))
	}
	if isNamed("/proc/self", one.Name) {
		return true
	}
	for _, name := range w.own {
		if name == one.Name {
			return true
		}
	}
	return false
}

// isNamed reports whether there is a process or thread in a folder of /proc that has the name.
func isNamed(folder, name string) bool {
	comm, err := os.ReadFile(folder + "/comm")
	return err == nil && strings.TrimSuffix(string(comm), "\n") == name
}

// ownKey is the key of the Writers of a context.
type ownKey struct{}

// Own returns a context for the work of this process: w learns from Child of the commands
// that are run in it.
func (w *Writers) Own(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownKey{}, w)
}

// Child notes in the Writers of a context that a child of this process runs a program. Ended is
// to be called once it has ended. What it has committed is known as its own after that, however late the
// notice is read.
func Child(ctx context.Context, pid int, program string) (ended func()) {
	w, ok := ctx.Value(ownKey{}).(*Writers)
	if !ok {
		return func() {}
	}
	const nameSize = 15 // TASK_COMM_LEN without its end
	name := filepath.Base(program)
	w.mu.Lock()
	w.own[pid] = name[:min(len(name), nameSize)]
	w.mu.Unlock()
	return func() {
		w.drain()
		w.mu.Lock()
		delete(w.own, pid)
		w.mu.Unlock()
	}
}

// Since returns the programs that have written since a time, oldest first, and whether these are
// all, but for commits while it was mute.
func (w *Writers) Since(t time.Time) (found []Writer, all bool) {
	w.drain()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.ring {
		if one.At.After(t) {
			found = append(found, one)
		}
	}
	return found, !w.lost.After(t)
}

// Close ends it.
func (w *Writers) Close() error { return w.file.Close() }
