// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

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
