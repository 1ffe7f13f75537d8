// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"iter"

	"github.com/tandem-proxy/tandem/core/model"
)

// Types of messages that all families have.
const (
	TypeError = 2 // NLMSG_ERROR: also an acknowledgement, with the number 0
	TypeDone  = 3 // NLMSG_DONE: the end of a dump
)

// Flags of messages. The kernel uses some bits again in its answers.
const (
	FlagRequest   = 0x1
	FlagAck       = 0x4
	FlagExclusive = 0x200 // NLM_F_EXCL: fail if the object exists
	FlagDump      = 0x300
	FlagCreate    = 0x400
	FlagAppend    = 0x800

	FlagInterrupted = 0x10  // NLM_F_DUMP_INTR: the dump may lack objects
	FlagCapped      = 0x100 // NLM_F_CAPPED: an error without the failed message
	FlagAckTLVs     = 0x200 // NLM_F_ACK_TLVS: an error with attributes
)

// HeaderLen is the length of a message's header, FamilyLen that of the nfgenmsg
// behind it.
const (
	HeaderLen = 16
	FamilyLen = 4
)

// ErrMalformed means that the kernel sent bytes that are not a netlink message.
var ErrMalformed = errors.New("malformed netlink message")

// Message is a message as received. It shares memory with the buffer that was read.
type Message struct {
	Type  uint16 // subsystem << 8 | type, for netfilter
	Flags uint16
	Seq   uint32
	Body  []byte // what follows the header
}

// Messages splits the bytes of one read into messages. Malformed input ends it with
// ErrMalformed.
func Messages(b []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for len(b) > 0 {
			size := 0
			if len(b) >= HeaderLen {
				size = int(binary.NativeEndian.Uint32(b))
			}
			if size < HeaderLen || size > len(b) {
				yield(Message{}, ErrMalformed)
				return
			}
			m := Message{
				Type:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq:   binary.NativeEndian.Uint32(b[8:]),
				Body:  b[HeaderLen:size],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// Family returns the address family of a netfilter message, 0 if it has none.
func (m Message) Family() byte {
	if len(m.Body) < FamilyLen {
		return 0
	}
	return m.Body[0]
}

// Attrs returns the attributes of a netfilter message.
func (m Message) Attrs() iter.Seq2[uint16, []byte] {
	return Attrs(m.Body[min(FamilyLen, len(m.Body)):])
}

// Errno returns the error number of a message of TypeError or TypeDone, 0 for
// success; ok is false if it has none.
func (m Message) Errno() (errno int, ok bool) {
	if len(m.Body) < 4 {
		return 0, false
	}
	return -int(int32(binary.NativeEndian.Uint32(m.Body))), true
}

// FamilyOf returns AF_INET or AF_INET6 as Linux numbers them.
func FamilyOf(f model.Family) byte {
	if f == model.IPv4 {
		return 2
	}
	return 10
}
