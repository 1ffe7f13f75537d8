// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"slices"
	"testing"
)

// everything is two messages with attributes of every kind.
func everything() []byte {
	w := &Writer{}
	for seq := uint32(1); seq <= 2; seq++ {
		w.Begin(0xa03, FlagCreate, seq, 10, 7)
		w.Uint8(1, 2)
		w.Uint16(2|NetworkOrder, 0x0304)
		w.Uint32(3, 0x05060708)
		at := w.Nest(4)
		w.Text(5, "name")
		w.Uint64(6, 9)
		w.NestEnd(at)
		w.Bytes(7, []byte{1, 2, 3, 4, 5})
		w.End()
	}
	w.Acknowledge()
	return w.Buf
}

// What is written is read.
func TestRoundTrip(t *testing.T) {
	seq := uint32(0)
	for m, err := range Messages(everything()) {
		if err != nil {
			t.Fatal(err)
		}
		seq++
		flags := uint16(FlagRequest | FlagCreate)
		if seq == 2 {
			flags |= FlagAck
		}
		if m.Type != 0xa03 || m.Flags != flags || m.Seq != seq || m.Family() != 10 || m.Body[3] != 7 {
			t.Errorf("header %+v", m)
		}
		var types []uint16
		for kind, v := range m.Attrs() {
			types = append(types, kind)
			switch {
			case kind == 2 && !bytes.Equal(v, []byte{3, 4}), kind == 3 && Uint32(v) != 0x05060708, kind == 7 && len(v) != 5:
				t.Errorf("attribute %d: %x", kind, v)
			case kind == 4:
				name, rest, ok := CutAttr(v)
				if number, end, _ := CutAttr(rest); !ok || Text(name.Value) != "name" || number.Type != 6 || len(end) != 0 {
					t.Errorf("nested: %x", v)
				}
			}
		}
		if !slices.Equal(types, []uint16{1, 2, 3, 4, 7}) {
			t.Errorf("attributes %v", types)
		}
	}
	if seq != 2 {
		t.Errorf("%d messages", seq)
	}
}

// A batch is numbered in order, and only its last request is acknowledged.
func TestBatch(t *testing.T) {
	var b Batch
	for !b.Full() {
		b.Begin(1, 0, 2).End()
	}
	seq := ^uint32(0) - 3 // the numbers wrap
	for m, err := range Messages(b.finish(seq)) {
		if err != nil || m.Seq != seq || (m.Flags&FlagAck != 0) != (seq == uint32(maxRequests-5)) {
			t.Fatalf("%+v, %v; want number %d", m, err, seq)
		}
		seq++
	}
	if b.Len() != maxRequests {
		t.Errorf("%d requests", b.Len())
	}
	b.reset()
	b.Begin(1, 0, 2).Bytes(1, make([]byte, maxBatchBytes-100))
	if b.Full() {
		t.Error("full of one request")
	}
	b.Begin(1, 0, 2).Bytes(1, make([]byte, 100))
	if !b.Full() {
		t.Error("not full of bytes")
	}
}

// FuzzDecode feeds the decoder with bytes: it neither panics nor runs forever, all
// that it returns is part of its input, and both ways to read attributes agree.
func FuzzDecode(f *testing.F) {
	f.Add(everything())
	f.Add(everything()[:50])
	f.Add([]byte{16, 0, 0, 0})
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		size := 0
		for m, err := range Messages(b) {
			if err != nil {
				return
			}
			size += HeaderLen + len(m.Body)
			m.Errno()
			decodeAttrs(t, m.Body[min(FamilyLen, len(m.Body)):], 0)
		}
		if size > len(b) || len(b)-size > 3*len(b)/HeaderLen {
			t.Errorf("%d bytes of messages in %d, and no error", size, len(b))
		}
	})
}

func decodeAttrs(t *testing.T, b []byte, depth int) {
	rest := b
	for kind, v := range Attrs(b) {
		a, behind, ok := CutAttr(rest)
		if !ok || a.Type != kind || !bytes.Equal(a.Value, v) || len(a.Whole)+len(behind) != len(rest) {
			t.Fatalf("%x is cut into %+v, and read as %d: %x", rest, a, kind, v)
		}
		rest = behind
		Uint32(v)
		Text(v)
		if depth < 8 {
			decodeAttrs(t, v, depth+1)
		}
	}
	if _, _, ok := CutAttr(rest); ok {
		t.Fatalf("not read: %x", rest)
	}
}
