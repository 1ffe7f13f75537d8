// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// The wire format between the test DLLs and the emulator. Numbers are
// little-endian, strings UTF-16 as in the DLL:
//
//	request   u32 length | u8 kind | u8 verb | u64 handle | 16 GUID | string settings or query
//	response  u32 length | u32 HRESULT | u64 handle | 16 GUID | string text | string record
//	string    u32 bytes | UTF-16, not terminated
//
// The length does not include itself.

// maxMessage bounds a message in bytes: a list of 100,000 ids needs far less.
const maxMessage = 16 << 20

const headLength = 2 + 8 + 16

func readRequest(r io.Reader) (Request, error) {
	b, err := readMessage(r)
	if err != nil {
		return Request{}, err
	}
	return parseRequest(b)
}

func readMessage(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func parseRequest(b []byte) (Request, error) {
	if len(b) < headLength {
		return Request{}, fmt.Errorf("a request of %d bytes", len(b))
	}
	r := Request{Kind: Kind(b[0]), Verb: Verb(b[1]), Handle: binary.LittleEndian.Uint64(b[2:]), ID: guidText(b[10:26])}
	if r.Kind > SdnRoute || r.Verb > Rest {
		return Request{}, fmt.Errorf("no function %d of kind %d", r.Verb, r.Kind)
	}
	text, rest, err := readString(b[headLength:])
	if err != nil || len(rest) > 0 {
		return Request{}, fmt.Errorf("a request that ends wrongly: %d bytes left, %w", len(rest), err)
	}
	r.Text = text
	return r, nil
}

func readString(b []byte) (s string, rest []byte, err error) {
	if len(b) < 4 {
		return "", b, io.ErrUnexpectedEOF
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if uint64(n) > uint64(len(b)) || n%2 != 0 {
		return "", b, io.ErrUnexpectedEOF
	}
	units := make([]uint16, n/2)
	for i := range units {
		units[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return string(utf16.Decode(units)), b[n:], nil
}

func appendString(b []byte, s string) []byte {
	units := utf16.Encode([]rune(s))
	b = binary.LittleEndian.AppendUint32(b, uint32(2*len(units)))
	for _, u := range units {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

func encode(r Response) []byte {
	b := make([]byte, 4, 64+2*len(r.Text))
	b = binary.LittleEndian.AppendUint32(b, r.Result)
	b = binary.LittleEndian.AppendUint64(b, r.Handle)
	b = append(b, guidBytes(r.ID)...)
	b = appendString(b, r.Text)
	b = appendString(b, r.Record)
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// guidText writes a GUID as text; all zeros are none. Its first three fields are
// little-endian in memory.
func guidText(b []byte) string {
	if [16]byte(b) == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]),
		binary.LittleEndian.Uint16(b[6:]), b[8:10], b[10:16])
}

func guidBytes(s string) []byte {
	b := make([]byte, 16)
	var d1 uint32
	var d2, d3 uint16
	var tail []byte
	if _, err := fmt.Sscanf(strings.Replace(s, "-", " ", 3), "%8x %4x %4x", &d1, &d2, &d3); err != nil || len(s) != 36 {
		return b
	}
	if _, err := fmt.Sscanf(s[19:23]+s[24:], "%x", &tail); err != nil || len(tail) != 8 {
		return b
	}
	binary.LittleEndian.PutUint32(b, d1)
	binary.LittleEndian.PutUint16(b[4:], d2)
	binary.LittleEndian.PutUint16(b[6:], d3)
	copy(b[8:], tail)
	return b
}
