// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
)

// What is written of an entry is what is read of it.
func TestEntriesComeBackAsWritten(t *testing.T) {
	for _, c := range []Change{
		{Entry: Entry{IP: netip.MustParseAddr("10.96.0.10"), Proto: model.TCP, Port: 80, Mark: 0x2000, MarkMask: 0x7000}},
		{Entry: Entry{IP: netip.MustParseAddr("fd00::1"), Proto: model.SCTP, Port: 80, IP2: netip.MustParseAddr("fd00::"), Bits: 64}},
		{Entry: Entry{IP: netip.MustParseAddr("192.0.2.0"), Bits: 24}, Net: true},
		{Entry: Entry{Port: 30080, Mark: 1, MarkMask: ^uint32(0)}},
	} {
		w := writer{&netlink.Writer{}}
		w.entry(c)
		if got := decodeEntry(w.Buf); !reflect.DeepEqual(got, c.Entry) {
			t.Errorf("got %+v, want %+v", got, c.Entry)
		}
	}
}

// FuzzDecode feeds the reader of listings with bytes: it must not panic, and it
// must end.
func FuzzDecode(f *testing.F) {
	w := writer{&netlink.Writer{}}
	w.Begin(messageType(cmdCreate), 0, 1, 2, 0)
	w.create(Set{"s", "hash:ip,port", model.IPv4, 1 << 24, true})
	w.End()
	w.Begin(messageType(cmdAdd), 0, 1, 2, 0)
	w.names("s")
	entries := w.Nest(attrADT)
	entry := w.Nest(attrData)
	w.entry(Change{Entry: Entry{IP: netip.MustParseAddr("10.0.0.1"), Proto: model.TCP, Port: 80}})
	w.NestEnd(entry)
	w.NestEnd(entries)
	w.End()
	f.Add(w.Buf)
	f.Fuzz(func(_ *testing.T, b []byte) {
		for m, err := range netlink.Messages(b) {
			if err != nil {
				return
			}
			var s Set
			decode(m, &s, nil)
		}
	})
}
