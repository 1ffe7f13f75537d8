// SPDX-License-Identifier: Apache-2.0

package netlink

import "encoding/binary"

// Batches are bounded by what the kernel answers: each request that fails takes
// about a kilobyte of the socket's receive buffer, which has 208 of them.
const (
	maxRequests   = 128
	maxBatchBytes = 64 << 10
)

// Batch holds requests that are sent together (Socket.Exchange). Each of them
// succeeds or fails alone; the kernel processes them in order.
type Batch struct {
	w Writer
	n int
}

// Begin opens the next request; the caller adds attributes and calls End on the
// Writer.
func (b *Batch) Begin(kind, flags uint16, family byte) *Writer {
	b.n++
	b.w.Begin(kind, flags, 0, family, 0) // numbered by finish
	return &b.w
}

// Len returns how many requests there are.
func (b *Batch) Len() int { return b.n }

// Full reports whether the batch should be sent before another request.
func (b *Batch) Full() bool { return b.n >= maxRequests || len(b.w.Buf) >= maxBatchBytes }

// finish numbers the requests from first on and sets the acknowledgement flag of the
// last one.
func (b *Batch) finish(first uint32) []byte {
	seq := first
	for at := 0; at < len(b.w.Buf); seq++ {
		binary.NativeEndian.PutUint32(b.w.Buf[at+8:], seq)
		at += align(int(binary.NativeEndian.Uint32(b.w.Buf[at:])))
	}
	b.w.Acknowledge()
	return b.w.Buf
}

func (b *Batch) reset() {
	b.w.Buf, b.n = b.w.Buf[:0], 0
}
