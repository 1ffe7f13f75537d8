// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// The kernel reports each rule that a marked packet traverses (nft_trace). A temporary table
// marks packets, before all other rules:
//
//	table ip tandem-trace-PORT-RANDOM {
//	  chain mark { type filter hook output priority -350; ip daddr ... tcp dport ... meta nftrace set 1 }
//	}
//
// Any number of packets may be followed at once.
const (
	followChain    = "mark"
	followPriority = -350 // before raw, -300
)

// Followed selects the packets to trace: the first ones of connections.
type Followed struct {
	Proto model.Proto
	Src   netip.Addr // not valid: any
	Sport uint16     // 0: any
	Dst   netip.AddrPort
	Local bool // sent by this host
}

// family returns the family of the packets.
func (f Followed) family() model.Family { return model.FamilyOf(f.Dst.Addr()) }

// create creates the table that marks packets.
func (f Followed) create(b *plainBatch, flags uint32) {
	b.family = f.family()
	b.message(msgNewTable, netlink.FlagCreate|netlink.FlagExclusive)
	if flags != 0 {
		b.Uint32(attrTableFlags, flags)
	}
	var n notes
	n.comment(Owner + " (trace)")
	b.Bytes(attrTableUserdata, n)
	b.End()
	point := PreRouting
	if f.Local {
		point = LocalOut
	}
	b.chain(followChain, Hook{Type: "filter", Point: point, Priority: followPriority})
	b.rule(followChain, func() { f.match(&b.encoder) })
}

// match writes the rule that marks packets.
func (f Followed) match(e *encoder) {
	if f.Src.IsValid() {
		SourceIn{netip.PrefixFrom(f.Src, f.Src.BitLen())}.encode(e)
	}
	DestinationIn{Prefix: netip.PrefixFrom(f.Dst.Addr(), f.Dst.Addr().BitLen())}.encode(e)
	L4ProtoIs{f.Proto}.encode(e)
	port := func(offset int, port uint16) {
		e.payload(reg0, baseTransport, offset, 2)
		e.cmp(equal, binary.BigEndian.AppendUint16(nil, port))
	}
	if f.Sport != 0 {
		port(offsetSport, f.Sport)
	}
	port(offsetDport, f.Dst.Port())
	if f.Proto == model.TCP { // SYN without ACK
		e.payload(reg0, baseTransport, offsetTCPFlags, 1)
		e.bitwise([]byte{tcpSYN | tcpACK}, []byte{0})
		e.cmp(equal, []byte{tcpSYN})
	}
	e.immediate(reg0, []byte{1})
	e.setMeta(metaNFTrace)
}

// Step is one rule, or the end of a chain, that a traced packet has met.
type Step struct {
	ID      uint32 // of the packet
	Table   string // with its family, such as "ip tandem"
	Chain   string
	Handle  uint64 // of the rule; 0 for the end of a chain
	Verdict string // continue, accept, drop, goto CHAIN, jump CHAIN, return; reject where the rule does
	Rule    string // its text, as nft lists it; empty where it is not known, and for the end of a chain

	Client netip.Addr // the packet's source before any rule; not valid if the kernel did not report it
}

// String returns a step as people read it.
func (s Step) String() string {
	if s.Handle == 0 && s.Verdict == "return" {
		return fmt.Sprintf("%s %s: end", s.Table, s.Chain)
	}
	if s.Handle == 0 {
		return fmt.Sprintf("%s %s: policy %s", s.Table, s.Chain, s.Verdict)
	}
	if s.Rule == "" {
		return fmt.Sprintf("%s %s: rule %d: %s", s.Table, s.Chain, s.Handle, s.Verdict)
	}
	return fmt.Sprintf("%s %s: rule %d [ %s ]: %s", s.Table, s.Chain, s.Handle, s.Rule, s.Verdict)
}

// Final reports whether the packet goes no further.
func (s Step) Final() bool { return s.Verdict == "drop" || s.Verdict == "reject" }

// traceStep reads a step from the kernel's trace message.
func traceStep(m netlink.Message) (s Step, ok bool) {
	if messageOf(m) != unix.NFT_MSG_TRACE {
		return s, false
	}
	var kind uint32
	for attr, v := range m.Attrs() {
		switch attr {
		case unix.NFTA_TRACE_TABLE:
			s.Table = netfilterName(m.Family()) + " " + netlink.Text(v)
		case unix.NFTA_TRACE_CHAIN:
			s.Chain = netlink.Text(v)
		case unix.NFTA_TRACE_RULE_HANDLE:
			if len(v) == 8 {
				s.Handle = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_TRACE_TYPE:
			kind = netlink.Uint32(v)
		case unix.NFTA_TRACE_ID:
			s.ID = netlink.Uint32(v)
		case unix.NFTA_TRACE_VERDICT:
			s.Verdict = verdictName(v)
		case unix.NFTA_TRACE_NETWORK_HEADER:
			s.Client = sender(v)
		case unix.NFTA_TRACE_POLICY:
			s.Verdict = verdictOf(netlink.Uint32(v), "")
		}
	}
	if kind == unix.NFT_TRACETYPE_RETURN && s.Handle == 0 {
		s.Verdict = "return"
	}
	return s, s.ID != 0 && s.Verdict != ""
}

// netfilterName returns nft's name of a family of tables.
func netfilterName(family byte) string {
	switch family {
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_IPV6:
		return "ip6"
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	}
	return fmt.Sprint(family)
}

// sender returns the source address in an IP header.
func sender(header []byte) (a netip.Addr) {
	switch {
	case len(header) >= 20 && header[0]>>4 == 4:
		a, _ = netip.AddrFromSlice(header[12:16])
	case len(header) >= 40 && header[0]>>4 == 6:
		a, _ = netip.AddrFromSlice(header[8:24])
	}
	return a
}

// Follower makes the kernel report the rules that first packets of connections traverse, in
// the network namespace of the thread that opens it. Close removes its table, and
// since Linux 5.12 so does the end of the process.
type Follower struct {
	sock     *netlink.Socket // owns the table
	listener *netlink.Listener
	table    string
	family   model.Family
}

// Follow opens a Follower. From then on the packets are traced.
func Follow(ctx context.Context, which Followed) (*Follower, error) {
	sock, err := openSocket()
	if err != nil {
		return nil, err
	}
	listener, err := netlink.Listen(netlink.GroupNFTrace)
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	f := &Follower{sock: sock, listener: listener, family: which.family()}
	if f.table, err = temporaryName(traceTable, sock); err != nil {
		return nil, errors.Join(err, listener.Close(), sock.Close())
	}
	err = withOwner(func(flags uint32) error {
		b := newPlainBatch(sock.Next(), netlink.FamilyOf(f.family), f.table)
		which.create(&b, flags)
		return b.commit(ctx, sock)
	})
	if err != nil {
		return nil, errors.Join(Advise(absent(err)), listener.Close(), sock.Close())
	}
	return f, nil
}

// Close removes the table.
func (f *Follower) Close() error {
	b := newPlainBatch(f.sock.Next(), netlink.FamilyOf(f.family), f.table)
	b.remove()
	err := b.commit(context.Background(), f.sock)
	if errors.Is(err, unix.ENOENT) { // a flush of all rules has removed it
		err = nil
	}
	return errors.Join(err, f.listener.Close(), f.sock.Close())
}

// maxSteps bounds the steps of a packet.
const maxSteps = 1000

// Each calls handle for the steps of the first reported packet, except those in the Follower's
// table, until ctx ends, handle returns done, or after maxSteps.
func (f *Follower) Each(ctx context.Context, handle func(Step) (done bool)) error {
	var packet uint32
	var client netip.Addr
	n := 0
	return f.listener.Each(ctx, func(m netlink.Message) bool {
		s, ok := traceStep(m)
		own := strings.HasSuffix(s.Table, " "+f.table)
		if ok && own && packet == 0 {
			packet = s.ID
		}
		if !ok || s.ID != packet {
			return false
		}
		if !client.IsValid() { // the first notice about a packet has it as it came
			client = s.Client
		}
		if own {
			return false
		}
		rejects := false
		if s.Handle != 0 {
			s.Rule, rejects = ruleOf(ctx, f.sock, m, s)
		}
		if s.Verdict == "drop" && rejects {
			s.Verdict = "reject"
		}
		s.Client = client
		n++
		return handle(s) || n == maxSteps
	})
}

// ruleOf reads the text of a step's rule, and whether the rule rejects the packets that it drops. If reading fails the text is empty.
func ruleOf(ctx context.Context, sock *netlink.Socket, m netlink.Message, s Step) (text string, rejects bool) {
	_, table, _ := strings.Cut(s.Table, " ")
	fill := func(w *netlink.Writer) {
		w.Text(attrTable, table)
		w.Text(attrRuleChain, s.Chain)
		w.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, s.Handle))
	}
	_ = request(ctx, sock, msgGetRule, 0, m.Family(), fill, func(m netlink.Message) error {
		text = spell(m)
		for kind, list := range m.Attrs() {
			if kind != attrRuleExpressions {
				continue
			}
			for _, one := range netlink.Attrs(list) {
				rejects = rejects || isReject(one)
			}
		}
		return nil
	})
	return text, rejects
}

// isReject reports whether an expression is nft's reject, or iptables' target REJECT.
func isReject(expression []byte) (is bool) {
	for kind, v := range netlink.Attrs(expression) {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			is = is || netlink.Text(v) == "reject"
		case unix.NFTA_EXPR_DATA:
			for kind, name := range netlink.Attrs(v) {
				is = is || kind == unix.NFTA_TARGET_NAME && netlink.Text(name) == "REJECT"
			}
		}
	}
	return is
}

// Writers records which programs commit to nf_tables in one network namespace, other than this
// process and its children.
//
// While any socket is in the kernel's multicast group, in whatever network namespace (nl_table has one mask of listeners),
// the kernel creates a notice for each object of each commit. So Tandem leaves the group for its own commits (Mute). It
// is safe for concurrent use.
type Writers struct {
	file *os.File
	mu   sync.Mutex         // also held from the receipt of a notice until it is judged
	ring []dataplane.Writer // the latest commits, oldest first
	lost time.Time          // commits up to then may be missing: forgotten, or lost by the socket
	told func()             // called after notices
	own  map[int]string     // programs run by children of this process (Child), by process id
}

// maxWriters bounds the commits that are remembered.
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

// Mute leaves the kernel's multicast group, or joins it again: commits in between
// cause no notices and are not recorded, whichever program makes them. It takes about a microsecond.
// Since does not report them as missing: it would have to after each of Tandem's own commits.
func (w *Writers) Mute(on bool) error {
	option := unix.NETLINK_ADD_MEMBERSHIP
	if on {
		option = unix.NETLINK_DROP_MEMBERSHIP
	}
	return w.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES) })
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

// generationsOnly is a socket filter that passes notices of new generations, and drops those
// of objects, which the kernel sends to the same group.
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

// Listen receives notices until ctx ends, and calls told, which must not block, after them. It is called once.
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

// noticeSize is the buffer for a notice of a new generation, which is far smaller.
const noticeSize = 4096

// receive reads all notices that wait in the socket.
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

// drain reads the notices that wait in the socket, so that commits made before the call are
// known after it, however busy the machine is. Listen reports errors of the socket.
func (w *Writers) drain() { _ = w.control(w.receive) }

func (w *Writers) notes(b []byte) {
	for m, err := range netlink.Messages(b) {
		if err == nil {
			w.note(m)
		}
	}
}

func (w *Writers) note(m netlink.Message) {
	one := dataplane.Writer{At: time.Now()}
	for kind, v := range m.Attrs() {
		switch kind {
		case unix.NFTA_GEN_PROC_PID:
			one.PID = int(netlink.Uint32(v))
		case unix.NFTA_GEN_PROC_NAME:
			one.Name = netlink.Text(v)
		}
	}
	if !w.isOwn(one) {
		w.add(one)
	}
}

// add records a commit of another program, and forgets the oldest beyond maxWriters.
func (w *Writers) add(one dataplane.Writer) {
	w.ring = append(w.ring, one)
	if more := len(w.ring) - maxWriters; more > 0 {
		if last := w.ring[more-1].At; last.After(w.lost) {
			w.lost = last
		}
		w.ring = slices.Delete(w.ring, 0, more)
	}
}

// isOwn reports whether a writer is a thread of this process or a child of it. If its process
// id is of another namespace, or it has ended, its name decides.
func (w *Writers) isOwn(one dataplane.Writer) bool {
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

// isNamed reports whether the process or thread of a folder in /proc exists and has the name.
func isNamed(folder, name string) bool {
	comm, err := os.ReadFile(folder + "/comm")
	return err == nil && strings.TrimSuffix(string(comm), "\n") == name
}

// ownKey is the key of the Writers of a context.
type ownKey struct{}

// Own returns a context for which Child tells w of commands that this process runs.
func (w *Writers) Own(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownKey{}, w)
}

// Child tells the Writers of a context, if any, that a child of this process runs a program. The
// caller calls ended once the child has ended; its commits are recognised as own until then, also those
// whose notices still wait.
func Child(ctx context.Context, pid int, program string) (ended func()) {
	w, ok := ctx.Value(ownKey{}).(*Writers)
	if !ok {
		return func() {}
	}
	const nameSize = 15 // TASK_COMM_LEN without the terminating zero
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

// Since returns the commits of other programs since a time, oldest first, except those made while
// muted. Incomplete means that more may be missing.
func (w *Writers) Since(t time.Time) (found dataplane.Candidates) {
	w.drain()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.ring {
		if one.At.After(t) {
			found.Writers = append(found.Writers, one)
		}
	}
	found.Incomplete = w.lost.After(t)
	return found
}

// Close closes the socket, which ends Listen.
func (w *Writers) Close() error { return w.file.Close() }
