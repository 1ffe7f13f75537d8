// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"testing"
)

func TestSCTPPackets(t *testing.T) {
	for _, want := range []initChunk{
		{srcPort: 33000, dstPort: 80, tag: 7},
		{srcPort: 80, dstPort: 33000, verification: 7, tag: 8, ack: true, cookie: []byte("10.0.0.1:1 10.0.0.2:2\n")},
	} {
		p := want.encode()
		if len(p)%4 != 0 {
			t.Errorf("%d bytes: not padded", len(p))
		}
		got, ok := decode(p)
		if !ok || got.srcPort != want.srcPort || got.dstPort != want.dstPort || got.verification != want.verification ||
			got.tag != want.tag || got.ack != want.ack || !bytes.Equal(got.cookie, want.cookie) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for i := range p {
			p[i] ^= 0x10
			if _, ok := decode(p); ok {
				t.Errorf("a wrong byte %d was not found", i)
			}
			p[i] ^= 0x10
		}
		for size := range p {
			decode(p[:size]) // must not panic
		}
	}
}
