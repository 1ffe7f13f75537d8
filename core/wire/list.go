// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"strings"
)

// List is a list whose entries are made one at a time: each is valid until the next. A list of all that a
// proxy knows, made as a whole and then encoded as a whole, is megabytes of garbage beside changes.
type List[T any] struct {
	Len  int
	Each iter.Seq[*T] // Len of them, the same each time
}

// ListOf is a list of entries that are there.
func ListOf[T any](all []T) List[T] {
	return List[T]{len(all), func(yield func(*T) bool) {
		for i := range all {
			if !yield(&all[i]) {
				return
			}
		}
	}}
}

// Listing is an answer with a List in the place of one of its fields.
type Listing struct {
	answer any
	field  string
	length int
	each   iter.Seq[any]
}

// In returns an answer, which is a struct, that has the list as the field of a name in JSON.
func (l List[T]) In(answer any, field string) Listing {
	return Listing{answer, field, l.Len, func(yield func(any) bool) {
		for entry := range l.Each {
			if !yield(entry) {
				return
			}
		}
	}}
}

// partLength is how many bytes a part of an answer has, or an entry more.
const partLength = 32 << 10

// Encode returns an answer as content of a type: of a Listing the last part, after send got those before, which it
// must not keep.
func Encode(kind string, v any, send func(part []byte) error) (last []byte, err error) {
	l, long := v.(Listing)
	if !long {
		return Marshal(kind, v)
	}
	e := encoder{send: send}
	e.Grow(partLength + 4<<10)
	e.json = json.NewEncoder(&e)
	if e.binary = kind == CBOR; e.binary {
		if e.modes, err = newModes(); err != nil {
			return nil, err
		}
	}
	if err := e.listing(l); err != nil {
		return nil, err
	}
	return e.Bytes(), nil
}

// encoder writes the same bytes as Marshal, in parts.
type encoder struct {
	bytes.Buffer
	send   func([]byte) error
	binary bool // CBOR
	json   *json.Encoder
	modes  modes
}

func (e *encoder) listing(l Listing) error {
	answer := reflect.ValueOf(l.answer)
	var fields []int
	for i := range answer.NumField() {
		name, options := tag(answer.Type().Field(i))
		if name == l.field || !strings.Contains(options, "omitempty") || !empty(answer.Field(i)) {
			fields = append(fields, i)
		}
	}
	e.begin('{', majorMap, len(fields))
	for n, i := range fields {
		name, _ := tag(answer.Type().Field(i))
		e.next(n)
		if err := e.value(name); err != nil {
			return err
		}
		e.text(":")
		write := func() error { return e.value(answer.Field(i).Interface()) }
		if name == l.field {
			write = func() error { return e.list(l) }
		}
		if err := write(); err != nil {
			return err
		}
	}
	e.text("}")
	return nil
}

func (e *encoder) list(l Listing) error {
	e.begin('[', majorArray, l.length)
	n := 0
	for entry := range l.each {
		e.next(n)
		n++
		if err := e.value(entry); err != nil {
			return err
		}
		if e.Len() < partLength {
			continue
		}
		if err := e.send(e.Bytes()); err != nil {
			return err
		}
		e.Reset()
		runtime.Gosched() // a change may wait for this processor: see engine.Snapshot.Each
	}
	if e.text("]"); n != l.length {
		return fmt.Errorf("%d entries of %d in %s", n, l.length, l.field)
	}
	return nil
}

// tag is a field's name in JSON, with its options.
func tag(f reflect.StructField) (name, options string) {
	name, options, _ = strings.Cut(f.Tag.Get("json"), ",")
	return name, options
}

// empty reports whether a field with omitempty is left out. Answers have no maps and structs there.
func empty(v reflect.Value) bool { return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 }

// value writes a value.
func (e *encoder) value(v any) error {
	if e.binary {
		return e.modes.write.MarshalToBuffer(v, &e.Buffer)
	}
	err := e.json.Encode(v)
	e.Truncate(max(0, e.Len()-1)) // the end of its line
	return err
}

// text is what JSON has between values, and CBOR has not.
func (e *encoder) text(s string) {
	if !e.binary {
		e.WriteString(s)
	}
}

// next begins entry n of a list or object.
func (e *encoder) next(n int) {
	if n > 0 {
		e.text(",")
	}
}

// The major types of CBOR that begin with a length.
const (
	majorArray = 4
	majorMap   = 5
)

// begin begins a list or object of a length.
func (e *encoder) begin(bracket, major byte, n int) {
	if !e.binary {
		e.WriteByte(bracket)
		return
	}
	switch major <<= 5; {
	case n < 24:
		e.Write([]byte{major | byte(n)})
	case n < 1<<8:
		e.Write([]byte{major | 24, byte(n)})
	case n < 1<<16:
		e.Write([]byte{major | 25, byte(n >> 8), byte(n)})
	default:
		e.Write([]byte{major | 26, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
}
