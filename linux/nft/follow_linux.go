// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// The kernel reports each rule that a packet traverses once the packet is marked
// (nft_trace). A table of our own marks it, before all other rules:
//
//	table ip tandem-trace-RANDOM {
//	  chain mark { type filter hook output priority -350; ip daddr ... tcp dport ... meta nftrace set 1 }
//	}
//
// Any number of packets may be followed at once. A process id would not tell them apart: it is another
// process's in each container on one network.
const (
	followTable    = "tandem-trace-"
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
		e.cmp(reg0, equal, binary.BigEndian.AppendUint16(nil, port))
	}
	if f.Sport != 0 {
		port(0, f.Sport)
	}
	port(2, f.Dst.Port())
	if f.Proto == model.TCP { // SYN without ACK
		e.payload(reg0, baseTransport, 13, 1)
		e.bitwise([]byte{0x12}, []byte{0})
		e.cmp(reg0, equal, []byte{0x02})
	}
	e.immediate(reg0, []byte{1})
	e.expr("meta", func() {
		e.Uint32(2, 12)   // NFTA_META_KEY, NFT_META_NFTRACE
		e.Uint32(3, reg0) // NFTA_META_SREG
	})
}

// Step is one rule, or the end of a chain, that a traced packet has met.
type Step struct {
	ID      uint32 // of the packet
	Table   string // with its family, such as "ip tandem"
	Chain   string
	Handle  uint64 // of the rule; 0 for the end of a chain
	Verdict string // continue, accept, drop, goto CHAIN, jump CHAIN, return; reject where the rule does
}

// String returns a step as people read it.
func (s Step) String() string {
	if s.Handle == 0 && s.Verdict == "return" {
		return fmt.Sprintf("%s %s: end", s.Table, s.Chain)
	}
	if s.Handle == 0 {
		return fmt.Sprintf("%s %s: policy %s", s.Table, s.Chain, s.Verdict)
	}
	return fmt.Sprintf("%s %s: rule %d: %s", s.Table, s.Chain, s.Handle, s.Verdict)
}

// Final reports whether the packet goes no further.
func (s Step) Final() bool { return s.Verdict == "drop" || s.Verdict == "reject" }

// Attributes of trace messages (enum nft_trace_attributes), and kinds of steps.
const (
	msgTrace = 17 // NFT_MSG_TRACE

	traceTable, traceChain, traceHandle, traceType, traceVerdict, traceID, tracePolicy = 1, 2, 3, 4, 5, 6, 16

	traceByReturn = 2 // NFT_TRACETYPE_RETURN
)

// traceStep reads a notice.
func traceStep(m netlink.Message) (s Step, ok bool) {
	if messageOf(m) != msgTrace {
		return s, false
	}
	var kind uint32
	for attr, v := range m.Attrs() {
		switch attr {
		case traceTable:
			s.Table = netfilterName(m.Family()) + " " + netlink.Text(v)
		case traceChain:
			s.Chain = netlink.Text(v)
		case traceHandle:
			if len(v) == 8 {
				s.Handle = binary.BigEndian.Uint64(v)
			}
		case traceType:
			kind = netlink.Uint32(v)
		case traceID:
			s.ID = netlink.Uint32(v)
		case traceVerdict:
			s.Verdict = verdictName(v)
		case tracePolicy:
			s.Verdict = verdictOf(netlink.Uint32(v), "")
		}
	}
	if kind == traceByReturn && s.Handle == 0 {
		s.Verdict = "return"
	}
	return s, s.ID != 0 && s.Verdict != ""
}

func verdictName(b []byte) string {
	var code uint32
	chain := ""
	for attr, v := range netlink.Attrs(b) {
		switch attr {
		case attrVerdictCode:
			code = netlink.Uint32(v)
		case attrVerdictChain:
			chain = netlink.Text(v)
		}
	}
	return verdictOf(code, chain)
}

func verdictOf(code uint32, chain string) string {
	switch code {
	case codeDrop:
		return "drop"
	case codeAccept:
		return "accept"
	case codeJump:
		return "jump " + chain
	case codeGoto:
		return "goto " + chain
	case codeReturn:
		return "return"
	case 1<<32 - 1, 1<<32 - 2: // NFT_CONTINUE, NFT_BREAK
		return "continue"
	}
	return fmt.Sprintf("verdict %d", int32(code))
}

// netfilterName is a family of tables as nft spells it.
func netfilterName(family byte) string {
	switch family {
	case 2:
		return "ip"
	case 10:
		return "ip6"
	case familyInet:
		return "inet"
	case 7:
		return "bridge"
	case 5:
		return "netdev"
	}
	return fmt.Sprint(family)
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
	f := &Follower{sock: sock, listener: listener, table: fmt.Sprintf("%s%08x", followTable, rand.Uint32()), family: which.family()}
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
	n := 0
	return f.listener.Each(ctx, func(m netlink.Message) bool {
		s, ok := traceStep(m)
		own := strings.HasSuffix(s.Table, " "+f.table)
		if ok && own && packet == 0 {
			packet = s.ID
		}
		if !ok || own || s.ID != packet {
			return false
		}
		if s.Verdict == "drop" && f.rejects(ctx, m, s) {
			s.Verdict = "reject"
		}
		n++
		return handle(s) || n == maxSteps
	})
}

// rejects reports whether the rule of a step rejects what it drops.
func (f *Follower) rejects(ctx context.Context, m netlink.Message, s Step) (found bool) {
	const attrRuleHandle = 3
	_, table, _ := strings.Cut(s.Table, " ")
	fill := func(w *netlink.Writer) {
		w.Text(attrTable, table)
		w.Text(attrRuleChain, s.Chain)
		w.Bytes(attrRuleHandle, binary.BigEndian.AppendUint64(nil, s.Handle))
	}
	// Without an answer it is a drop.
	_ = request(ctx, f.sock, msgGetRule, 0, m.Family(), fill, func(m netlink.Message) error {
		for kind, list := range m.Attrs() {
			if kind != attrRuleExpressions {
				continue
			}
			for _, one := range netlink.Attrs(list) {
				found = found || isReject(one)
			}
		}
		return nil
	})
	return found
}

// isReject reports whether an expression rejects: that of nft, or iptables' target.
func isReject(expression []byte) (is bool) {
	for kind, v := range netlink.Attrs(expression) {
		switch kind {
		case 1: // NFTA_EXPR_NAME
			is = is || netlink.Text(v) == "reject"
		case 2: // NFTA_EXPR_DATA
			for kind, name := range netlink.Attrs(v) {
				is = is || kind == 1 && netlink.Text(name) == "REJECT" // NFTA_TARGET_NAME
			}
		}
	}
	return is
}
