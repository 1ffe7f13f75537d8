package ipset

import (
	"encoding/binary"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Commands.
const (
	cmdCreate  = 2
	cmdDestroy = 3
	cmdFlush   = 4
	cmdSwap    = 6
	cmdList    = 7
	cmdAdd     = 9
	cmdDel     = 10
)

// Attributes of messages.
const (
	attrProtocol = 1
	attrName     = 2
	attrType     = 3 // the second set's name in a swap
	attrRevision = 4
	attrFamily   = 5
	attrData     = 7
	attrADT      = 8
)

// Attributes of definitions and entries.
const (
	dataIP       = 1
	dataBits     = 3
	dataPort     = 4
	dataPortTo   = 5
	dataProto    = 7
	dataFlags    = 8
	dataMaxElems = 19
	dataIP2      = 20
	dataBits2    = 21
	dataMark     = 27
)

const (
	protocol      = 6
	subsystem     = 6
	flagMarks     = 1 << 6 // of dataFlags
	nested        = 1 << 15
	networkOrder  = 1 << 14
	headerLen     = 16 + 4
	flagRequest   = 1
	flagAck       = 4
	flagDump      = 0x300
	flagExclusive = 0x200
)

// writer writes netlink messages one behind the other.
type writer struct {
	buf   []byte
	start int // of the message
}

func (w *writer) begin(cmd byte, flags uint16, seq uint32, family byte) {
	w.start = len(w.buf)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(subsystem)<<8|uint16(cmd))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flagRequest|flags)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, seq)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = append(w.buf, family, 0, 0, 0)
	w.attr(attrProtocol, protocol)
}

func (w *writer) end() {
	binary.NativeEndian.PutUint32(w.buf[w.start:], uint32(len(w.buf)-w.start))
}

// acknowledge asks for an answer to the message that was begun last.
func (w *writer) acknowledge() { w.buf[w.start+6] |= flagAck }

func (w *writer) attr(kind uint16, data ...byte) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(4+len(data)))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = append(w.buf, data...)
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *writer) str(kind uint16, s string) { w.attr(kind, append([]byte(s), 0)...) }

func (w *writer) nest(kind uint16, fill func()) {
	at := len(w.buf)
	w.attr(kind | nested)
	fill()
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

func (w *writer) number(kind uint16, n uint32) {
	w.attr(kind|networkOrder, binary.BigEndian.AppendUint32(nil, n)...)
}

func (w *writer) port(kind, n uint16) {
	w.attr(kind|networkOrder, binary.BigEndian.AppendUint16(nil, n)...)
}

func (w *writer) addr(kind uint16, a netip.Addr) {
	w.nest(kind, func() { w.attr(1+uint16(model.FamilyOf(a))|networkOrder, a.AsSlice()...) })
}

// familyNumber is AF_INET or AF_INET6.
func familyNumber(f model.Family) byte { return [...]byte{2, 10}[f] }

func (w *writer) create(s Set, seq uint32) {
	family := familyNumber(s.Family)
	if s.Type == bitmapPort {
		family = 0
	}
	w.begin(cmdCreate, flagAck|flagExclusive, seq, family)
	w.str(attrName, s.Name)
	w.str(attrType, s.Type)
	w.attr(attrRevision, revision(s.Type))
	w.attr(attrFamily, family)
	w.nest(attrData, func() {
		if s.Type == bitmapPort {
			w.port(dataPort, 0)
			w.port(dataPortTo, 65535)
		} else {
			w.number(dataMaxElems, s.MaxEntries)
		}
		if s.Marks {
			w.number(dataFlags, flagMarks)
		}
	})
	w.end()
}

// named writes a message about one set, or two.
func (w *writer) named(cmd byte, flags uint16, seq uint32, names ...string) {
	w.begin(cmd, flags, seq, 0)
	for i, name := range names {
		w.str(attrName+uint16(i), name)
	}
	w.end()
}

func (w *writer) change(c Change, seq uint32) {
	cmd := byte(cmdAdd)
	if c.Delete {
		cmd = cmdDel
	}
	w.begin(cmd, 0, seq, 0)
	w.str(attrName, c.Set)
	w.nest(attrData, func() { w.entry(c) })
	w.end()
}

func (w *writer) entry(c Change) {
	e := c.Entry
	if e.IP.IsValid() {
		w.addr(dataIP, e.IP)
	}
	if c.Net {
		w.attr(dataBits, e.Bits)
	}
	if e.Port != 0 {
		w.port(dataPort, e.Port)
	}
	if e.Proto != 0 {
		w.attr(dataProto, byte(e.Proto))
	}
	if e.IP2.IsValid() {
		w.addr(dataIP2, e.IP2)
		if e.Bits != 0 && !c.Net {
			w.attr(dataBits2, e.Bits)
		}
	}
	if e.MarkMask != 0 && !c.Delete {
		w.attr(dataMark|networkOrder, binary.BigEndian.AppendUint64(nil, uint64(e.Mark)<<32|uint64(e.MarkMask))...)
	}
}
