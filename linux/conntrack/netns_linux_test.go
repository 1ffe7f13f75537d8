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
}

func udp(src, dst, replySrc string) made {
	return made{proto: model.UDP, src: src, dst: dst, replySrc: replySrc}
}

func (m made) flow() flows.Flow {
	f := flows.Flow{Proto: m.proto, Dst: netip.MustParseAddrPort(m.dst), From: netip.MustParseAddrPort(m.dst)}
	if m.replySrc != "" {
		f.From = netip.MustParseAddrPort(m.replySrc)
	}
	return f
}

const (
	ctaStatus  = 3
	ctaTimeout = 7
)

// appendNew appends a request to make an entry.
func appendNew(b []byte, seq uint32, m made) []byte {
	src, f := netip.MustParseAddrPort(m.src), m.flow()
	b, end := appendHeader(b, msgNew, flagRequest|0x400|0x200, seq, model.FamilyOf(src.Addr())) // CREATE, EXCL
	b = appendWhole(b, ctaTupleOrig, m.proto, src, f.Dst)
	b = appendWhole(b, ctaTupleReply, m.proto, f.From, src)
	b = appendAttr(b, ctaTimeout, 0, 0, 4, 0)
	b = appendAttr(b, ctaStatus, 0, 0, 0, 8) // IPS_CONFIRMED
	if m.zone != 0 {
		b = appendAttr(b, ctaZone, byte(m.zone>>8), byte(m.zone))
	}
	if m.proto == model.TCP {
		b = nest(b, 4, func(b []byte) []byte { // CTA_PROTOINFO, CTA_PROTOINFO_TCP, its state: established
			return nest(b, 1, func(b []byte) []byte { return appendAttr(b, 1, 3) })
		})
	}
	return end(b)
}

func appendWhole(b []byte, attr uint16, proto model.Proto, src, dst netip.AddrPort) []byte {
	s := side{ipv4: ctaIPv4Src, ipv6: ctaIPv6Src}
	d := side{ipv4: ctaIPv4Src + 1, ipv6: ctaIPv6Src + 1}
	return nest(b, attr, func(b []byte) []byte {
		b = nest(b, ctaTupleIP, func(b []byte) []byte { return d.appendAddr(s.appendAddr(b, src.Addr()), dst.Addr()) })
		return nest(b, ctaTupleProto, func(b []byte) []byte {
			b = appendAttr(b, ctaProtoNum, byte(proto))
			b = appendAttr(b, ctaProtoSrc, byte(src.Port()>>8), byte(src.Port()))
			return appendAttr(b, ctaProtoDst, byte(dst.Port()>>8), byte(dst.Port()))
		})
	})
}

// create makes entries, some hundred with a system call.
func create(tb testing.TB, n int, nth func(int) made) {
	tb.Helper()
	s, err := dial()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.close()
	var b []byte
	for i := range n {
		last := len(b)
		b = appendNew(b, uint32(i+1), nth(i))
		if i%256 != 255 && i != n-1 {
			continue
		}
		native.PutUint16(b[last+6:], native.Uint16(b[last+6:])|flagAck)
		if err := s.send(b); err != nil {
			tb.Fatal(err)
		}
		answer, err := s.receive()
		if err != nil {
			tb.Fatal(err)
		}
		m, _, err := nextMessage(answer)
		if err != nil || m.err() != nil || m.seq != uint32(i+1) {
			tb.Fatalf("create entry %d: %v, %v", m.seq, err, m.err())
		}
		b = b[:0]
	}
}

func createAll(tb testing.TB, entries ...made) {
	tb.Helper()
	create(tb, len(entries), func(i int) made { return entries[i] })
}

// snapshot returns all entries as the kernel tells them, but for the seconds they
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
		seq := t.dumps.next()
		if err := t.dumps.send(appendDump(nil, seq, filter{family: family})); err != nil {
			tb.Fatal(err)
		}
		_, _, err := readDump(t.dumps.receive, seq, func(m message) error {
			e, err := parseEntry(m.body)
			key := string(e.reply) + string(e.zone) + string(e.id)
			entries[key] = bytes.Clone(m.body[:nfgenLen])
			for b := m.body[nfgenLen:]; len(b) > 0; {
				typ, _, whole, rest, _ := nextAttr(b)
				if typ != ctaTimeout {
					entries[key] = append(entries[key], whole...)
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
