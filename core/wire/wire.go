// SPDX-License-Identifier: Apache-2.0

// Package wire writes and reads what a running tandem answers: JSON, which any client
// reads and whose form is stable, or CBOR (RFC 8949) with the same fields for tandem's own
// commands, which read a list of 10,000 Services in a fourth of the time.
//
//	command ──Accept──▶ running tandem ──Type, Encode──▶ Read ──▶ command
//
// An answer with a long list is written in parts, and its entries are made meanwhile: see List.
package wire

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/fxamacker/cbor/v2"
)

const (
	JSON = "application/json"
	CBOR = "application/cbor"
)

// Accept is the Accept header of a request whose answer Read reads.
const Accept = CBOR + ", " + JSON

// limit bounds what is read of an answer: a list of 50,000 Services needs some 40 MB.
const limit = 256 << 20

// Type is the type of the answer to a request with an Accept header: CBOR only for clients
// that name it.
func Type(accept string) string {
	if strings.Contains(accept, CBOR) {
		return CBOR
	}
	return JSON
}

// modes are how CBOR has the types of answers: as JSON has them, by the same tags.
type modes struct {
	write cbor.UserBufferEncMode
	read  cbor.DecMode
}

func newModes() (m modes, err error) {
	m.write, err = cbor.EncOptions{Time: cbor.TimeRFC3339Nano, TextMarshaler: cbor.TextMarshalerTextString, NilContainers: cbor.NilContainerAsNull, BinaryMarshaler: cbor.BinaryMarshalerNone}.UserBufferEncMode()
	if err != nil {
		return m, err
	}
	m.read, err = cbor.DecOptions{
		TextUnmarshaler: cbor.TextUnmarshalerTextString, MaxArrayElements: 1 << 21, MaxMapPairs: 1 << 21, UTF8: cbor.UTF8DecodeInvalid, BinaryUnmarshaler: cbor.BinaryUnmarshalerNone,
	}.DecMode()
	return m, err
}

// Marshal returns an answer as content of a type.
func Marshal(kind string, v any) ([]byte, error) {
	if kind != CBOR {
		return json.Marshal(v)
	}
	m, err := newModes()
	if err != nil {
		return nil, err
	}
	return m.write.Marshal(v)
}

// Read reads an answer of a type.
func Read(kind string, r io.Reader, v any) error {
	text, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return fmt.Errorf("read the answer of the running tandem: %w", err)
	}
	if len(text) > limit {
		return fmt.Errorf("the answer of the running tandem has more than %d MiB", limit>>20)
	}
	if !strings.HasPrefix(kind, CBOR) {
		return json.Unmarshal(text, v)
	}
	m, err := newModes()
	if err != nil {
		return err
	}
	return m.read.Unmarshal(text, v)
}
