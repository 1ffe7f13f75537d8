// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/redact"
)

// Redact replaces names and addresses by others, equal ones by equal ones wherever
// they are (package redact), and removes free text.
//
// What stays is determined by its type, or is in kept: anything else, and what may be added
// later, is replaced.
func (f *File) Redact(key []byte) {
	f.breakTies()
	r := redactor{redact.New(key), kept()}
	for _, part := range []any{&f.Header, &f.Services, &f.Slices, &f.CIDRs, &f.Routes, &f.Grants, &f.Slots, &f.Ready, &f.Drift, &f.Status, &f.Top, &f.History, &f.Checks} {
		r.walk(reflect.ValueOf(part).Elem())
	}
	if len(f.Observed) > 0 { // their texts have names and addresses in the words of each mode
		f.Observed, f.ReadAt, f.ReadErr = nil, time.Time{}, "observed objects were redacted"
	}
	f.Config.Unused, f.Machine.Salt, f.Redacted = nil, 0, true
	f.Sort()
	f.Plan = ""
	f.Record(f.Resolve())
}

// breakTies has Services of one age differ in it by the order of their names: of two
// that ask for one address the older wins, those of unknown age come last, and then
// the first by name does.
func (f *File) breakTies() {
	f.Sort()
	unknown := time.Date(9000, time.January, 1, 0, 0, 0, 0, time.UTC) // later than all
	services := make([]*model.Service, len(f.Services))
	for i, s := range f.Services {
		older := *s
		if older.Created.IsZero() {
			older.Created = unknown
		}
		older.Created = older.Created.Add(time.Duration(i))
		services[i] = &older
	}
	f.Services = services
}

// redactor walks a file. It is of one Redact.
type redactor struct {
	words *redact.Redactor
	kept  map[reflect.Type][]string
}

// removed replaces free text.
const removed = "(redacted)"

// kept are text fields that reveal nothing about a cluster, by the type that has them; free are
// text fields that may contain anything.
func kept() map[reflect.Type][]string {
	return map[reflect.Type][]string{
		reflect.TypeFor[Header]():              {"Version", "System", "Ports", "Plan"},
		reflect.TypeFor[config.API]():          {"ContentType"},
		reflect.TypeFor[config.IPVS]():         {"Scheduler"},
		reflect.TypeFor[config.Config]():       {"LogLevel", "Gates"},
		reflect.TypeFor[config.Logging]():      {"Format"},
		reflect.TypeFor[question.Status]():     {"Version", "Mode"},
		reflect.TypeFor[question.Input]():      {"Name", "Version"},
		reflect.TypeFor[question.Service]():    {"State"},
		reflect.TypeFor[question.Frontend]():   {"Kind", "Proto", "Why"},
		reflect.TypeFor[question.Problem]():    {"Reason"},
		reflect.TypeFor[question.Drift]():      {"Mode"},
		reflect.TypeFor[question.Difference](): {"State"},
		reflect.TypeFor[question.Top]():        {"Mode"},
		reflect.TypeFor[question.TopAddress](): {"Proto"},
		reflect.TypeFor[diagnosis.Check]():     {"ID"},
		reflect.TypeFor[history.Entry]():       {"Kind", "Verb"},
	}
}

func free(field string) bool {
	return slices.Contains([]string{"Detail", "Err", "Errors", "Reasons", "Where", "Hash", "Modules", "Wanted", "Found", "Fix", "ReadErr", "NotCounted"}, field)
}

func (r redactor) walk(v reflect.Value) {
	switch x := v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(r.words.Address(x)))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(r.words.Address(x.Addr()), x.Port())))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(r.words.Prefix(x)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fresh := reflect.New(v.Type().Elem()) // the original may be in use elsewhere
			fresh.Elem().Set(v.Elem())
			v.Set(fresh)
			r.walk(v.Elem())
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(fresh, v)
		v.Set(fresh)
		for i := range v.Len() {
			r.walk(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return
		}
		fresh := reflect.MakeMapWithSize(v.Type(), v.Len())
		for from := v.MapRange(); from.Next(); {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			key.Set(from.Key())
			value.Set(from.Value())
			r.walk(key)
			r.walk(value)
			fresh.SetMapIndex(key, value)
		}
		v.Set(fresh)
	case reflect.Array:
		for i := range v.Len() {
			r.walk(v.Index(i))
		}
	case reflect.Struct:
		r.fields(v)
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() { // others are of a fixed set
			v.SetString(r.words.Text(v.String()))
		}
	}
}

func (r redactor) fields(v reflect.Value) {
	of := v.Type()
	for i := range of.NumField() {
		field, value := of.Field(i), v.Field(i)
		switch {
		case !field.IsExported() || slices.Contains(r.kept[of], field.Name):
		case free(field.Name) && value.Kind() == reflect.String:
			if value.String() != "" {
				value.SetString(removed)
			}
		case free(field.Name) && value.Kind() == reflect.Slice:
			value.SetZero()
		default:
			r.walk(value)
		}
	}
}
