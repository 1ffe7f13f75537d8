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

// The kernel reports each rule that a packet traverses once the packet is marked
// (nft_trace). A table of our own marks it, before all other rules:
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

// Followed are the packets that are traced: first ones of connections.
type Followed struct {
	Proto model.Proto
	Src   netip.Addr // not valid: any
	Sport uint16     // 0: any
	Dst   netip.AddrPort
	Local bool // sent by this host
}

// family is that of the packets.
func (f Followed) family() model.Family { return model.FamilyOf(f.Dst.Addr()) }

// create makes the table that marks packets.
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

// match is the rule.
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

	Client netip.Addr // that the packet came from, before any rule; not valid where the kernel did not say
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

// traceStep reads a notice.
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

// netfilterName is a family of tables as nft spells it.
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

// sender is the source address of a packet that begins with an IP header.
func sender(header []byte) (a netip.Addr) {
	switch {
	case len(header) >= 20 && header[0]>>4 == 4:
		a, _ = netip.AddrFromSlice(header[12:16])
	case len(header) >= 40 && header[0]>>4 == 6:
		a, _ = netip.AddrFromSlice(header[8:24])
	}
	return a
}

// Follower has the kernel report the rules that the first packet of some connections traverses, in
// the network namespace of the thread that opens it. Close removes its objects, and
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

// Each calls handle for the steps of the first packet that is reported, except those in our
// own table, until ctx ends, or handle returns done.
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

// ruleOf returns the text of the rule of a step, and whether it rejects what it drops. Without an answer the text is empty.
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

// isReject reports whether an expression rejects: that of nft, or iptables' target.
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
// While any socket is in the kernel's multicast group, the kernel makes a notice of each object of
// each commit. So our own commits are made outside of it: see Mute.
type Writers struct {
	file *os.File
	mu   sync.Mutex         // also held from the receipt of a notice until it is judged
	ring []dataplane.Writer // the latest, oldest first
	lost time.Time          // until when commits may be missing: forgotten, or lost by the socket
	told func()             // after notices
	own  map[int]string     // children of this process, by process id, and their names: see Child
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
// costs nothing more, and is not recorded, whichever program makes it. It takes about a microsecond.
// Since does not count that as missing: it would have to say so after each change of ours,
// for the moment of our commit.
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

// add remembers a commit of another program. The oldest is forgotten first.
func (w *Writers) add(one dataplane.Writer) {
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

// Since returns the programs that have written since a time, oldest first: all of them, but for commits while it was
// mute, unless Incomplete.
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

// Close ends it.
func (w *Writers) Close() error { return w.file.Close() }
