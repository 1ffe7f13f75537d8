// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"encoding"
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// encoder appends values as JSON that encoding/json reads as the same values. It leaves out
// all fields that are zero, and makes no garbage: a snapshot of 10,000 Services is written
// beside changes, which wait for the collector. It is not safe for concurrent use.
type encoder struct {
	types map[reflect.Type]appender
	names map[reflect.Type]string // what a line with a pointer of this type begins with
	err   error                   // the first one
}

func newEncoder() encoder {
	e := encoder{types: map[reflect.Type]appender{}, names: map[reflect.Type]string{}}
	for i := range reflect.TypeFor[line]().NumField() {
		f := reflect.TypeFor[line]().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		e.names[f.Type] = "{" + strconv.Quote(name) + ":"
	}
	return e
}

// line appends the line with a value, which is a pointer of one of line's fields.
func (e *encoder) line(b []byte, v any) []byte {
	t := reflect.TypeOf(v)
	return append(e.of(t.Elem())(append(b, e.names[t]...), reflect.ValueOf(v).Elem()), '}')
}

// appender appends a value, which is addressable, of one type.
type appender func(b []byte, v reflect.Value) []byte

// of returns the appender of a type. What the encoder has no way of its own for it leaves to encoding/json.
func (e *encoder) of(t reflect.Type) appender {
	if a := e.types[t]; a != nil {
		return a
	}
	e.types[t] = func(b []byte, v reflect.Value) []byte { return e.types[t](b, v) } // for types that have themselves in them
	e.types[t] = e.make(t)
	return e.types[t]
}

func (e *encoder) make(t reflect.Type) appender {
	switch p := reflect.PointerTo(t); {
	case p.Implements(reflect.TypeFor[encoding.TextAppender]()): // addresses and times
		return e.text
	case p.Implements(reflect.TypeFor[json.Marshaler]()), p.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return e.other
	}
	switch t.Kind() {
	case reflect.Bool:
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendBool(b, v.Bool()) }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendInt(b, v.Int(), 10) }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return func(b []byte, v reflect.Value) []byte { return strconv.AppendUint(b, v.Uint(), 10) }
	case reflect.Float64:
		return e.float
	case reflect.String:
		return func(b []byte, v reflect.Value) []byte { return e.quote(b, v.String()) }
	case reflect.Pointer:
		return e.pointer(e.of(t.Elem()))
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 { // bytes have a form of their own
			return e.list(e.of(t.Elem()))
		}
	case reflect.Struct:
		return e.object(t)
	}
	return e.other
}

// other leaves a value to encoding/json.
func (e *encoder) other(b []byte, v reflect.Value) []byte {
	text, err := json.Marshal(v.Addr().Interface())
	if err != nil && e.err == nil {
		e.err = err
	}
	return append(b, text...)
}

func (e *encoder) text(b []byte, v reflect.Value) []byte {
	start := len(b)
	b, err := v.Addr().Interface().(encoding.TextAppender).AppendText(append(b, '"'))
	if err != nil && e.err == nil {
		e.err = err
	}
	if !plain(b[start+1:]) {
		return e.quote(b[:start], string(b[start+1:]))
	}
	return append(b, '"')
}

func (e *encoder) quote(b []byte, s string) []byte {
	if plain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil && e.err == nil {
		e.err = err
	}
	return append(b, text...)
}

// plain reports whether a text needs no escapes.
func plain[T string | []byte](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (e *encoder) float(b []byte, v reflect.Value) []byte {
	if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return strconv.AppendFloat(b, f, 'g', -1, 64)
	}
	return e.other(b, v) // which has no form for it
}

func (e *encoder) pointer(to appender) appender {
	return func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, "null"...)
		}
		return to(b, v.Elem())
	}
}

func (e *encoder) list(of appender) appender {
	return func(b []byte, v reflect.Value) []byte {
		if v.IsNil() {
			return append(b, "null"...)
		}
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			b = of(b, v.Index(i))
		}
		return append(b, ']')
	}
}

func (e *encoder) object(t reflect.Type) appender {
	type field struct {
		index int
		name  string // "name":
		empty bool   // an empty list is left out, too
		value appender
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous, strings.Contains(options, "string"):
			return e.other
		case !f.IsExported(), name == "-":
			continue
		case name == "":
			name = f.Name
		}
		fields = append(fields, field{i, strconv.Quote(name) + ":", f.Type.Kind() == reflect.Slice && strings.Contains(options, "omitempty"), e.of(f.Type)})
	}
	return func(b []byte, v reflect.Value) []byte {
		b = append(b, '{')
		first := true
		for i := range fields {
			f := &fields[i]
			value := v.Field(f.index)
			if value.IsZero() || f.empty && value.Len() == 0 {
				continue
			}
			if !first {
				b = append(b, ',')
			}
			first = false
			b = f.value(append(b, f.name...), value)
		}
		return append(b, '}')
	}
}
