// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// ErrNoSCTP means that this kernel cannot carry SCTP through its connection
// tracking, or that raw sockets are forbidden.
var ErrNoSCTP = errors.New("no SCTP on this kernel")

// initChunk is the one chunk of the first two packets of an association (RFC 9260,
// 3.3.2 and 3.3.3). They show whether packets get through and which endpoint they reach, so the
// association is not completed.
type initChunk struct {
	srcPort, dstPort uint16
	verification     uint32 // the peer's tag; 0 in INIT
	ack              bool   // INIT ACK, otherwise INIT
	tag              uint32 // the sender's
	cookie           []byte // only in INIT ACK: carries the answer
}

const (
	chunkInit    = 1
	chunkInitAck = 2
	paramCookie  = 7
	headerSize   = 12 // ports, verification tag, checksum
	initSize     = 20
	paramSize    = 4
)

// encode returns the chunk as a packet.
func (c initChunk) encode() []byte {
	size := initSize
	if c.ack {
		size += paramSize + len(c.cookie)
	}
	p := make([]byte, headerSize+(size+3)&^3)
	be := binary.BigEndian
	be.PutUint16(p[0:], c.srcPort)
	be.PutUint16(p[2:], c.dstPort)
	be.PutUint32(p[4:], c.verification)
	body := p[headerSize:]
	body[0] = chunkInit
	be.PutUint16(body[2:], uint16(size))
	be.PutUint32(body[4:], c.tag)
	be.PutUint32(body[8:], 64<<10) // receive window
	be.PutUint16(body[12:], 1)     // streams out
	be.PutUint16(body[14:], 1)     // streams in
	be.PutUint32(body[16:], 1)     // first sequence number
	if c.ack {
		body[0] = chunkInitAck
		be.PutUint16(body[20:], paramCookie)
		be.PutUint16(body[22:], uint16(paramSize+len(c.cookie)))
		copy(body[24:], c.cookie)
	}
	binary.LittleEndian.PutUint32(p[8:], checksum(p))
	return p
}

// decode reads a packet; ok is false for anything but INIT and INIT ACK.
func decode(p []byte) (c initChunk, ok bool) {
	be := binary.BigEndian
	if len(p) < headerSize+initSize || binary.LittleEndian.Uint32(p[8:]) != checksum(p) {
		return c, false
	}
	c.srcPort, c.dstPort, c.verification = be.Uint16(p[0:]), be.Uint16(p[2:]), be.Uint32(p[4:])
	body := p[headerSize:]
	c.tag = be.Uint32(body[4:])
	switch body[0] {
	case chunkInit:
		return c, true
	case chunkInitAck:
		c.ack = true
		param := body[initSize:]
		if len(param) < paramSize || be.Uint16(param) != paramCookie {
			return c, false
		}
		size := int(be.Uint16(param[2:]))
		if size < paramSize || size > len(param) {
			return c, false
		}
		c.cookie = param[paramSize:size]
		return c, true
	}
	return c, false
}

// checksum is CRC32c over the packet with the checksum taken as zero.
func checksum(p []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, p[:8])
	sum = crc32.Update(sum, table, make([]byte, 4))
	return crc32.Update(sum, table, p[headerSize:])
}
