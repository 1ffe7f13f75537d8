// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
	"golang.org/x/sys/unix"
)

// inNetns runs f with a Table in a new network namespace whose loopback is up
// and takes all traffic. The namespace ends with the thread.
func inNetns(tb testing.TB, f func(*Table)) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: makes a network namespace")
	}
	done := make(chan struct{})
	go func() {
		defer close(done) // also after FailNow
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			tb.Errorf("new network namespace: %v", err)
			return
		}
		command(tb, "", "ip", "link", "set", "lo", "up")
		t, err := Open()
		if err != nil {
			tb.Error(err)
			return
		}
		defer t.Close()
		f(t)
	}()
	<-done
}

// command runs a tool in the network namespace of the calling thread.
func command(tb testing.TB, stdin, name string, args ...string) string {
	tb.Helper()
	c := exec.Command(name, args...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// made is an entry to make through ctnetlink.
type made struct {
	proto    model.Proto
	src, dst string // the original direction
	replySrc string // empty: not translated
	zone     uint16
	oneWay   uint16 // the attribute of the only tuple that is in the zone; 0: both are
	status   uint32 // beside IPS_CONFIRMED
}

func udp(src, dst, replySrc string) made {
	return made{proto: model.UDP, src: src, dst: dst, replySrc: replySrc}
}

func (m made) flow() flows.Flow {
	f := flows.Flow{Answered: m.status&seenReply != 0, Proto: m.proto, Dst: netip.MustParseAddrPort(m.dst), From: netip.MustParseAddrPort(m.dst)}
	if m.replySrc != "" {
		f.From = netip.MustParseAddrPort(m.replySrc)
	}
	return f
}

const ctaTimeout = 7

// add adds a request to make an entry.
func (m made) add(b *netlink.Batch) {
	src, f := netip.MustParseAddrPort(m.src), m.flow()
	w := b.Begin(msgNew, netlink.FlagCreate|netlink.FlagExclusive, netlink.FamilyOf(model.FamilyOf(src.Addr())))
	m.writeWhole(w, ctaTupleOrig, src, f.Dst)
	m.writeWhole(w, ctaTupleReply, f.From, src)
	w.Uint32(ctaTimeout, 1024)
	w.Uint32(ctaStatus, 8|m.status) // IPS_CONFIRMED
	if m.zone != 0 && m.oneWay == 0 {
		w.Uint16(ctaZone, m.zone)
	}
	if m.proto == model.TCP {
		info := w.Nest(4) // CTA_PROTOINFO
		tcp := w.Nest(1)  // CTA_PROTOINFO_TCP
		w.Uint8(1, 3)     // its state: established
		w.NestEnd(tcp)
		w.NestEnd(info)
	}
	w.End()
}

func (m made) writeWhole(w *netlink.Writer, attr uint16, src, dst netip.AddrPort) {
	s := side{ipv4: ctaIPv4Src, ipv6: ctaIPv6Src}
	d := side{ipv4: ctaIPv4Src + 1, ipv6: ctaIPv6Src + 1}
	tuple := w.Nest(attr)
	ip := w.Nest(ctaTupleIP)
	s.writeAddr(w, src.Addr())
	d.writeAddr(w, dst.Addr())
	w.NestEnd(ip)
	ports := w.Nest(ctaTupleProto)
	w.Uint8(ctaProtoNum, byte(m.proto))
	w.Uint16(ctaProtoSrc, src.Port())
	w.Uint16(ctaProtoDst, dst.Port())
	w.NestEnd(ports)
	if m.zone != 0 && m.oneWay == attr {
		w.Uint16(ctaTupleZone, m.zone)
	}
	w.NestEnd(tuple)
}

// create makes entries, some hundred with a system call.
func create(tb testing.TB, n int, nth func(int) made) {
	tb.Helper()
	s, err := netlink.Open()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	var b netlink.Batch
	for i := range n {
		nth(i).add(&b)
		if !b.Full() && i != n-1 {
			continue
		}
		if err := s.Exchange(tb.Context(), &b, func(_ int, err error) { tb.Errorf("create entry: %v", err) }); err != nil {
			tb.Fatal(err)
		}
	}
}

func createAll(tb testing.TB, entries ...made) {
	tb.Helper()
	create(tb, len(entries), func(i int) made { return entries[i] })
}

// snapshot returns all entries as the kernel lists them, without the seconds they
// have left, by what identifies them.
func snapshot(tb testing.TB) map[string][]byte {
	tb.Helper()
	t, err := Open()
	if err != nil {
		tb.Fatal(err)
	}
	defer t.Close()
	entries := map[string][]byte{}
	for _, family := range model.Families() {
		err := t.dumps.Request(tb.Context(), msgGet, netlink.FlagDump, netlink.FamilyOf(family), nil, func(m netlink.Message) error {
			e, err := parseEntry(m.Body)
			key := string(e.reply) + string(e.zone) + string(e.id)
			entries[key] = bytes.Clone(m.Body[:netlink.FamilyLen])
			for b := m.Body[netlink.FamilyLen:]; len(b) > 0; {
				a, rest, _ := netlink.CutAttr(b)
				if a.Type != ctaTimeout {
					entries[key] = append(entries[key], a.Whole...)
				}
				b = rest
			}
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return entries
}

// flowsOf returns the flows of a snapshot.
func flowsOf(tb testing.TB, entries map[string][]byte) map[flows.Flow]int {
	tb.Helper()
	all := map[flows.Flow]int{}
	for _, body := range entries {
		e, err := parseEntry(body)
		if err != nil {
			tb.Fatal(err)
		}
		all[e.flow]++
	}
	return all
}
