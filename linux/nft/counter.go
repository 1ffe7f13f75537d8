// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"

	"github.com/tandem-proxy/tandem/linux/netlink"
)

// Count is what a counter has counted.
type Count struct{ Packets, Bytes uint64 }

// Attributes of a counter: in an element, of its expression, of its data (enum
// nft_set_elem_attributes, nft_expr_attributes, nft_counter_attributes).
const (
	elemCounter    = 7 // NFTA_SET_ELEM_EXPR
	exprName       = 1
	exprData       = 2
	counterBytes   = 1
	counterPackets = 2
)

// counter writes the counter of an element, which begins with a count.
func (e *encoder) counter(c Count) {
	at := e.Nest(elemCounter)
	e.Text(exprName, "counter")
	data := e.Nest(exprData)
	e.Header(counterBytes, 8)
	e.Buf = binary.BigEndian.AppendUint64(e.Buf, c.Bytes)
	e.Header(counterPackets, 8)
	e.Buf = binary.BigEndian.AppendUint64(e.Buf, c.Packets)
	e.NestEnd(data)
	e.NestEnd(at)
}

// parseCounter reads the expression of an element; ok is false for any other than a counter.
func parseCounter(b []byte) (c Count, ok bool) {
	for kind, v := range netlink.Attrs(b) {
		switch kind {
		case exprName:
			ok = string(netlink.TextBytes(v)) == "counter"
		case exprData:
			for kind, v := range netlink.Attrs(v) {
				switch {
				case kind == counterBytes && len(v) == 8:
					c.Bytes = binary.BigEndian.Uint64(v)
				case kind == counterPackets && len(v) == 8:
					c.Packets = binary.BigEndian.Uint64(v)
				}
			}
		}
	}
	return c, ok
}
