// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
)

// Redact replaces names and addresses by others, equal ones by equal ones wherever
// they are, and removes free text. Addresses keep their network class and which
// prefixes they share, so that an address in a range stays in it. With one key the same
// names and addresses become the same in several snapshots; without
// the key this can neither be reversed nor checked for a guessed name.
//
// What stays is determined by its type, or is in kept: anything else, and what may be added
// later, is replaced.
func (f *File) Redact(key []byte) {
	f.breakTies()
	r := redactor{hash: hmac.New(sha256.New, key), names: map[string]string{}, addresses: map[netip.Addr]netip.Addr{}}
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

// redactor replaces. It is of one Redact.
type redactor struct {
	hash      hash.Hash
	names     map[string]string
	addresses map[netip.Addr]netip.Addr
}

// removed replaces free text.
const removed = "(redacted)"

// kept are text fields that reveal nothing about a cluster; free are text fields that may
// contain anything.
func kept(of reflect.Type, field string) bool {
	fields := map[reflect.Type][]string{
		reflect.TypeFor[Header]():               {"Version", "System", "Ports", "Plan"},
		reflect.TypeFor[config.API]():           {"ContentType"},
		reflect.TypeFor[config.IPVS]():          {"Scheduler"},
		reflect.TypeFor[config.Config]():        {"LogLevel"},
		reflect.TypeFor[config.Logging]():       {"Format"},
		reflect.TypeFor[question.Status]():      {"Version", "Mode"},
		reflect.TypeFor[question.Input]():       {"Name", "Version"},
		reflect.TypeFor[question.Service]():     {"State"},
		reflect.TypeFor[question.Frontend]():    {"Kind", "Proto", "Why"},
		reflect.TypeFor[question.Problem]():     {"Reason"},
		reflect.TypeFor[question.Drift]():       {"Mode"},
		reflect.TypeFor[question.Difference]():  {"State"},
		reflect.TypeFor[question.Top]():         {"Mode"},
		reflect.TypeFor[question.TopFrontend](): {"Proto"},
		reflect.TypeFor[diagnosis.Check]():      {"ID"},
		reflect.TypeFor[history.Entry]():        {"Kind", "Verb"},
	}
	return slices.Contains(fields[of], field)
}

func free(field string) bool {
	return slices.Contains([]string{"Detail", "Err", "Errors", "Reasons", "Where", "Hash", "Modules", "Wanted", "Found", "Fix", "ReadErr", "NotCounted"}, field)
}

func (r *redactor) walk(v reflect.Value) {
	switch x := v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(r.address(x)))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(r.address(x.Addr()), x.Port())))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(r.prefix(x)))
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
			v.SetString(r.text(v.String()))
		}
	}
}

func (r *redactor) fields(v reflect.Value) {
	of := v.Type()
	for i := range of.NumField() {
		field, value := of.Field(i), v.Field(i)
		switch {
		case !field.IsExported() || kept(of, field.Name):
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

// text replaces a name, an address in words, or several names with "/" between them.
func (r *redactor) text(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return r.address(a).String()
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return r.prefix(p).String()
	}
	if p, err := netip.ParseAddrPort(s); err == nil {
		return netip.AddrPortFrom(r.address(p.Addr()), p.Port()).String()
	}
	if port, ok := strings.CutPrefix(s, "*:"); ok && strings.Trim(port, "0123456789") == "" {
		return s
	}
	parts := strings.Split(s, "/")
	for i, part := range parts {
		parts[i] = r.name(part)
	}
	return strings.Join(parts, "/")
}

// name replaces a name by a label of DNS. The Service of the API server keeps its
// own, which every cluster has and policy looks for.
func (r *redactor) name(s string) string {
	switch s {
	case "", "default", "kubernetes":
		return s
	}
	if known, ok := r.names[s]; ok {
		return known
	}
	sum := r.sum([]byte("name"), []byte(s))
	r.names[s] = "n" + hex.EncodeToString(sum[:5])
	return r.names[s]
}

func (r *redactor) sum(parts ...[]byte) []byte {
	r.hash.Reset()
	for _, p := range parts {
		_, _ = r.hash.Write(p) // a hash never fails
		_, _ = r.hash.Write([]byte{0})
	}
	return r.hash.Sum(nil)
}

// address replaces an address: each bit behind the class is turned or not by what
// precedes it, so that two addresses share as many bits afterwards as before
// (Xu et al., Prefix-preserving IP address anonymization, 2002). Those that mean
// something by themselves stay.
func (r *redactor) address(a netip.Addr) netip.Addr {
	if !a.IsValid() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() {
		return a
	}
	if known, ok := r.addresses[a]; ok {
		return known
	}
	b := a.AsSlice()
	out := slices.Clone(b)
	class := 8
	if a.Is6() {
		class = 16
	}
	for bit := class; bit < len(b)*8; bit++ {
		before := slices.Clone(b[:bit/8+1])
		before[bit/8] &^= 0xff >> (bit % 8)
		if r.sum([]byte("address"), before, []byte{byte(bit)})[0]&1 == 1 {
			out[bit/8] ^= 0x80 >> (bit % 8)
		}
	}
	replaced, _ := netip.AddrFromSlice(out)
	r.addresses[a] = replaced
	return replaced
}

// prefix replaces a prefix so that the addresses in it are in it afterwards. Host
// bits are those of the address.
func (r *redactor) prefix(p netip.Prefix) netip.Prefix {
	if !p.IsValid() {
		return p
	}
	masked := p.Masked().Addr() == p.Addr()
	out := netip.PrefixFrom(r.address(p.Addr()), p.Bits())
	if masked {
		return out.Masked()
	}
	return out
}
