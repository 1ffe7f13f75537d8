// SPDX-License-Identifier: Apache-2.0

// Package snapshot holds everything that is needed to inspect a running Tandem later and
// elsewhere: its configuration and inputs, what it made of them, and its history.
//
//	platform ──▶ File ──Write──▶ text ──Read──▶ File ──Document──▶ core/question: the same plan and answers, on any system
//	              │
//	              └──Redact──▶ names and addresses replaced, alike everywhere
//
// The text is JSON, one value a line, with a header first and an end last: a file
// that was cut short is rejected. What is zero is left out. It has no secrets: of the way to the API server only
// paths and addresses are in a configuration.
package snapshot

import (
	"bufio"
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Format is the version of the format. A reader rejects others, and fields that it
// does not know.
const Format = 1

// File is a snapshot.
type File struct {
	Header
	Services []*model.Service
	Slices   []*model.Slice
	CIDRs    []*model.ServiceCIDR
	Routes   []*model.Route
	Grants   []*model.Grant
	// Slots are the orders of pools that are not those that the inputs give by
	// themselves: they depend on the past.
	Slots []Slot
	// Ready are the Services with an endpoint that is still slowly starting.
	Ready   []Ready
	Drift   question.Drift // as known with Observed
	Status  question.Status
	Top     *question.Top // nil where connections were not counted
	History history.Document
	// Observed are the objects of the data plane that were not as Replay plans them when it
	// was read for this snapshot; all others were.
	Observed []dataplane.Difference
	Checks   []diagnosis.Check // of tandem doctor; empty unless it was asked
}

// Header is what there is one of.
type Header struct {
	Format   int           `json:"tandemSnapshot"`
	Version  string        `json:"version"` // of the tandem that made it
	System   string        `json:"system"`
	Mode     config.Mode   `json:"mode"` // in use
	At       time.Time     `json:"at"`
	Redacted bool          `json:"redacted,omitempty"`
	Config   config.Config `json:"config"`
	Node     *model.Node   `json:"node"` // null when unknown
	Machine  model.Machine `json:"machine"`
	// Others are the other nodes that have an address which a Service asks for, with these addresses.
	Others []*model.Node `json:"otherNodes,omitempty"`
	// Suspects are endpoints that had stopped answering, and since when they answer again.
	Suspects model.Suspects `json:"suspects,omitempty"`
	// Ports is the hash of the ports that the node had resolved (question.PortsHash), with its scheme: Resolve makes the
	// same of this. Where a change had arrived that was not resolved yet, it is what this tandem made of it all.
	Ports string `json:"ports,omitempty"`
	// Plan is the SHA-256 of the plan that Replay makes of this, in hexadecimal: in snapshots
	// of earlier versions, and in those that tests compare. It follows from the ports.
	Plan string `json:"plan,omitempty"`
	// ReadAt is when the data plane was read, or since when no other program has written to it;
	// zero where it was not, for the reason in ReadErr.
	ReadAt  time.Time `json:"readAt,omitzero"`
	ReadErr string    `json:"readErr,omitempty"`
}

// Slot is the order of a pool's endpoints, of a frontend and an origin.
type Slot struct {
	Proto     model.Proto
	At        netip.AddrPort
	From      model.Origin
	Endpoints []netip.AddrPort
}

// Ready is when the endpoints of a Service became ready; the zero time for those that
// always were.
type Ready struct {
	Service   model.ServiceName
	Endpoints map[netip.Addr]time.Time
}

// line is a line of the text: one of these.
type line struct {
	Service  *model.Service        `json:"service,omitempty"`
	Slice    *model.Slice          `json:"slice,omitempty"`
	CIDR     *model.ServiceCIDR    `json:"cidr,omitempty"`
	Route    *model.Route          `json:"route,omitempty"`
	Grant    *model.Grant          `json:"grant,omitempty"`
	Slot     *Slot                 `json:"slot,omitempty"`
	Ready    *Ready                `json:"ready,omitempty"`
	Drift    *question.Drift       `json:"drift,omitempty"`
	Status   *question.Status      `json:"status,omitempty"`
	Serves   *question.Service     `json:"serves,omitempty"`
	Top      *question.Top         `json:"top,omitempty"`
	History  *history.Document     `json:"history,omitempty"`
	Change   *history.Entry        `json:"change,omitempty"`
	Observed *dataplane.Difference `json:"observed,omitempty"`
	Check    *diagnosis.Check      `json:"check,omitempty"`
	End      *end                  `json:"end,omitempty"`
}

// end is the last line.
type end struct {
	Lines int `json:"lines"` // before it
}

// Lists are the longest lists of a File that is only written: they are made meanwhile.
type Lists struct {
	Services iter.Seq[*question.Service]
	History  iter.Seq[*history.Entry]
}

// Write writes a snapshot, without having all of its text in memory.
func Write(w io.Writer, f *File) error {
	return f.Write(w, Lists{wire.ListOf(f.Status.Services).Each, wire.ListOf(f.History.Entries).Each})
}

// Write writes a snapshot whose Status and History have what is in lists.
func (f *File) Write(w io.Writer, lists Lists) error {
	out := newLines(w)
	out.header(&f.Header)
	for _, s := range f.Services {
		out.put(s)
	}
	for _, s := range f.Slices {
		out.put(s)
	}
	for _, c := range f.CIDRs {
		out.put(c)
	}
	for _, r := range f.Routes {
		out.put(r)
	}
	for _, g := range f.Grants {
		out.put(g)
	}
	for i := range f.Slots {
		out.put(&f.Slots[i])
	}
	for i := range f.Ready {
		out.put(&f.Ready[i])
	}
	out.put(&f.Drift)
	head := f.Status
	head.Services = nil
	out.put(&head)
	for s := range lists.Services {
		out.put(s)
	}
	if f.Top != nil {
		out.put(f.Top)
	}
	past := f.History
	past.Entries = nil
	out.put(&past)
	for e := range lists.History {
		out.put(e)
	}
	for i := range f.Observed {
		out.put(&f.Observed[i])
	}
	for i := range f.Checks {
		out.put(&f.Checks[i])
	}
	out.put(&end{Lines: out.count})
	return out.flush()
}

// lines writes values, each on a line of its own, until one fails.
type lines struct {
	to      io.Writer
	encoder encoder
	buffer  []byte
	count   int
	err     error
}

// writeLength is how many bytes are written at once, or a line more.
const writeLength = 64 << 10

func newLines(w io.Writer) *lines {
	return &lines{to: w, encoder: newEncoder(), buffer: make([]byte, 0, writeLength+4<<10)}
}

// header writes the first line: a configuration states what is zero, too.
func (l *lines) header(h *Header) {
	var text []byte
	text, l.err = json.Marshal(h)
	l.buffer = append(append(l.buffer, text...), '\n')
	l.count++
}

// put writes the line with a value, which is a pointer of one of line's fields.
func (l *lines) put(v any) {
	if l.err != nil {
		return
	}
	l.buffer = append(l.encoder.line(l.buffer, v), '\n')
	l.count++
	if l.err = l.encoder.err; l.err == nil && len(l.buffer) >= writeLength {
		l.err = l.flush()
	}
}

func (l *lines) flush() error {
	if l.err != nil {
		return l.err
	}
	_, err := l.to.Write(l.buffer)
	l.buffer = l.buffer[:0]
	runtime.Gosched() // a change may wait for this processor: see engine.Snapshot.Each
	return err
}

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

// The bounds of a snapshot that is read: it is untrusted input.
const (
	maxBytes = 1 << 30
	maxLine  = 64 << 20 // a Service with 30,000 entries needs some 3 MB
	maxLines = 4_000_000

	// Objects are made of what has so many bytes on average: an empty one, of three bytes, may
	// take hundreds in memory. What is written has more, since what is zero is left out.
	minObject = 16
	minLine   = 4 << 10 // from which that counts
)

// Read reads a snapshot. The error names the line.
func Read(r io.Reader) (*File, error) {
	limited := &io.LimitedReader{R: r, N: maxBytes + 1}
	in := bufio.NewScanner(limited)
	in.Buffer(nil, maxLine)
	f := &File{}
	n, ended := 0, false
	for in.Scan() {
		if n++; n > maxLines {
			return nil, fmt.Errorf("snapshot: more than %d lines", maxLines)
		}
		var err error
		switch {
		case ended:
			err = errors.New("data after the end")
		case n == 1:
			err = f.header(in.Bytes())
		default:
			ended, err = f.line(in.Bytes(), n)
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot, line %d: %w", n, err)
		}
	}
	switch {
	case in.Err() != nil:
		return nil, fmt.Errorf("snapshot, line %d: %w", n+1, in.Err())
	case limited.N <= 0:
		return nil, fmt.Errorf("snapshot: more than %d MiB", maxBytes>>20)
	case !ended:
		return nil, errors.New("snapshot: truncated: the end record is missing")
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	return f, nil
}

// header reads the first line.
func (f *File) header(text []byte) error {
	var version struct {
		Format *int `json:"tandemSnapshot"`
	}
	if err := json.Unmarshal(text, &version); err != nil || version.Format == nil {
		return errors.New("not a snapshot of tandem")
	}
	if *version.Format != Format {
		return fmt.Errorf("format %d: this tandem reads format %d; use the one that made it", *version.Format, Format)
	}
	return strict(text, &f.Header)
}

// strict decodes one value and rejects unknown fields.
func strict(text []byte, v any) error {
	if len(text) > minLine && objects(text) > len(text)/minObject {
		return errors.New("too many empty values")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if strings.Contains(err.Error(), "unknown field") {
			err = fmt.Errorf("%w: read it with the tandem that made it", err)
		}
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

// objects counts the objects in a text of JSON, and the entries of lists that are null, which
// make one, too.
func objects(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case !quoted && (c == '{' || c == 'n'):
			n++
		}
	}
	return n
}

// line reads the line of a number, and reports whether it is the end.
func (f *File) line(text []byte, number int) (ended bool, err error) {
	var l line
	if err := strict(text, &l); err != nil {
		return false, err
	}
	switch {
	case l.Service != nil:
		f.Services = append(f.Services, l.Service)
	case l.Slice != nil:
		f.Slices = append(f.Slices, l.Slice)
	case l.CIDR != nil:
		f.CIDRs = append(f.CIDRs, l.CIDR)
	case l.Route != nil:
		f.Routes = append(f.Routes, l.Route)
	case l.Grant != nil:
		f.Grants = append(f.Grants, l.Grant)
	case l.Slot != nil:
		f.Slots = append(f.Slots, *l.Slot)
	case l.Ready != nil:
		f.Ready = append(f.Ready, *l.Ready)
	case l.Drift != nil:
		f.Drift = *l.Drift
	case l.Status != nil:
		f.Status, f.Status.Services = *l.Status, []question.Service{}
	case l.Serves != nil:
		f.Status.Services = append(f.Status.Services, *l.Serves)
	case l.Top != nil:
		f.Top = l.Top
	case l.History != nil:
		f.History, f.History.Entries = *l.History, []history.Entry{}
	case l.Change != nil:
		f.History.Entries = append(f.History.Entries, *l.Change)
	case l.Observed != nil:
		f.Observed = append(f.Observed, *l.Observed)
	case l.Check != nil:
		f.Checks = append(f.Checks, *l.Check)
	case l.End != nil && l.End.Lines == number-1:
		return true, nil
	case l.End != nil:
		return false, fmt.Errorf("the end record counts %d lines, but there are %d", l.End.Lines, number-1)
	default:
		return false, errors.New("an empty line")
	}
	return false, nil
}

// check rejects what no source delivers, so that what works with inputs may rely on
// the same as in a running proxy.
func (f *File) check() error {
	if f.Node != nil {
		if err := addresses("node "+f.Node.Name, f.Node.IPs, nil, f.Node.PodCIDRs); err != nil {
			return err
		}
	}
	for _, s := range f.Services {
		if err := checkService(s); err != nil {
			return fmt.Errorf("service %s: %w", s.Name, err)
		}
	}
	for _, n := range f.Others {
		if n == nil {
			return errors.New("otherNodes: null")
		}
		if err := addresses("node "+n.Name, n.IPs, nil, n.PodCIDRs); err != nil {
			return err
		}
	}
	for _, s := range f.Slices {
		if err := checkSlice(s); err != nil {
			return fmt.Errorf("slice %s: %w", s.Name, err)
		}
	}
	for _, c := range f.CIDRs {
		if err := addresses("ServiceCIDR "+c.Name, nil, nil, c.CIDRs); err != nil {
			return err
		}
	}
	for _, r := range f.Routes {
		if r.Name.Proto != model.TCP && r.Name.Proto != model.UDP {
			return fmt.Errorf("route %s/%s: protocol %d", r.Name.Namespace, r.Name.Name, r.Name.Proto)
		}
	}
	for _, s := range f.Slots {
		if err := addresses("slot", nil, append([]netip.AddrPort{s.At}, s.Endpoints...), nil); err != nil || s.From >= model.Origins {
			return fmt.Errorf("slot of %s: not valid", s.At)
		}
	}
	for _, r := range f.Ready {
		if err := addresses("ready of "+r.Service.String(), slices.Collect(maps.Keys(r.Endpoints)), nil, nil); err != nil {
			return err
		}
	}
	var local []netip.Prefix
	for _, a := range f.Machine.Addresses {
		local = append(local, a.Prefix)
	}
	if err := addresses("machine", slices.Collect(maps.Keys(f.Suspects)), f.Machine.APIServers, local); err != nil {
		return err
	}
	return addresses("configuration", nil, nil, append(append(append([]netip.Prefix{}, f.Config.ClusterCIDRs...), f.Config.NodePorts.Prefixes...), f.Config.ExternalIPs.Allowed...))
}

// addresses rejects addresses that are invalid or not in canonical form.
func addresses(whose string, ips []netip.Addr, ports []netip.AddrPort, prefixes []netip.Prefix) error {
	for _, p := range ports {
		ips = append(ips[:len(ips):len(ips)], p.Addr())
	}
	for _, p := range prefixes {
		if !p.IsValid() {
			return fmt.Errorf("%s: %s is not a prefix", whose, p)
		}
		ips = append(ips[:len(ips):len(ips)], p.Addr())
	}
	for _, a := range ips {
		if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
			return fmt.Errorf("%s: address %s is not valid", whose, a)
		}
	}
	return nil
}

func proto(p model.Proto) bool { return p == model.TCP || p == model.UDP || p == model.SCTP }

func checkService(s *model.Service) error {
	if s.Type > model.LoadBalancer || s.External > model.Local || s.Internal > model.Local || s.SessionAffinity < 0 {
		return fmt.Errorf("type %d, policies %d and %d, affinity %s: not valid", s.Type, s.External, s.Internal, s.SessionAffinity)
	}
	if c := s.Choice; !c.Valid() {
		return fmt.Errorf("scheduler %d, slow start %s, spill-over above %g, floor %d: not valid", uint8(c.Scheduler), c.SlowStart, c.Spill.Above, c.Spill.Floor)
	}
	for _, p := range s.Ports {
		if !proto(p.Proto) || p.Port == 0 {
			return fmt.Errorf("port %q: not valid", p.Name)
		}
	}
	for _, ips := range [][]netip.Addr{s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs} {
		if err := addresses("addresses", ips, nil, nil); err != nil {
			return err
		}
		var once model.Unique[netip.Addr]
		for _, ip := range ips {
			if !once.Add(ip) {
				return fmt.Errorf("address %s is there twice", ip)
			}
		}
	}
	return addresses("source ranges", nil, nil, s.SourceRanges)
}

func checkSlice(s *model.Slice) error {
	if s.Family > model.IPv6 {
		return fmt.Errorf("family %d", s.Family)
	}
	for _, p := range s.Ports {
		if !proto(p.Proto) || p.Port == 0 {
			return fmt.Errorf("port %q: not valid", p.Name)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if err := addresses("endpoint", []netip.Addr{e.Addr}, nil, nil); err != nil {
			return err
		}
		if model.FamilyOf(e.Addr) != s.Family || e.State > model.Ready|model.Serving|model.Terminating|model.Unanswered {
			return fmt.Errorf("endpoint %s: not of the slice's family, or in an unknown state", e.Addr)
		}
	}
	return nil
}
