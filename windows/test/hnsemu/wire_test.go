// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
)

const someID = "00112233-4455-6677-8899-aabbccddeeff"

func encodeRequest(r Request) []byte {
	b := []byte{0, 0, 0, 0, byte(r.Kind), byte(r.Verb)}
	b = binary.LittleEndian.AppendUint64(b, r.Handle)
	b = append(b, guidBytes(r.ID)...)
	b = appendString(b, r.Text)
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func TestGUIDsAreMixedEndian(t *testing.T) {
	b := guidBytes(someID)
	want := []byte{0x33, 0x22, 0x11, 0, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	if !bytes.Equal(b, want) || guidText(b) != someID {
		t.Errorf("% x, %s", b, guidText(b))
	}
	if guidText(guidBytes("nonsense")) != "" {
		t.Error("nonsense is an id")
	}
}

func FuzzRequest(f *testing.F) {
	f.Add(encodeRequest(Request{Kind: Endpoint, Verb: Create, Handle: 7, ID: someID, Text: "ä€😀"})[4:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err != nil {
			return
		}
		again, err := parseRequest(encodeRequest(r)[4:])
		if err != nil || again != r {
			t.Errorf("%+v became %+v (%v)", r, again, err)
		}
	})
}

func TestServe(t *testing.T) {
	e := New(WS2025)
	id := e.AddNetwork("pods", hns.TypeL2Bridge)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(r Request) []byte {
		if _, err := conn.Write(encodeRequest(r)); err != nil {
			t.Fatal(err)
		}
		b, err := readMessage(conn)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	opened := ask(Request{Kind: Network, Verb: Open, ID: id})
	if hr := binary.LittleEndian.Uint32(opened); hr != 0 {
		t.Fatalf("open: %x", hr)
	}
	handle := binary.LittleEndian.Uint64(opened[4:])
	text, _, err := readString(ask(Request{Kind: Network, Verb: Query, Handle: handle})[28:])
	if err != nil || !bytes.Contains([]byte(text), []byte(`"Name":"pods"`)) {
		t.Errorf("%s, %v", text, err)
	}
	if hr := binary.LittleEndian.Uint32(ask(Request{Kind: Network, Verb: Close, Handle: handle + 1})); hr != 0x80070006 {
		t.Errorf("a handle that there is not: %x", hr)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
