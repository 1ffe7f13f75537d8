// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Query is one kind of question to the proxy that runs here, over its control
// socket. Request and Answer are its JSON; the answer's form is stable: fields are
// added, not changed. There is one for each verb that asks; queries lists them.
type Query[Request, Answer any] struct {
	Name string
	// Reads means that it reads the kernel or HNS.
	Reads  bool
	answer func(context.Context, *Proxy, Request) (Answer, error) // or:
	list   func(context.Context, *Proxy, Request) (any, error)    // an Answer, or a wire.Listing in its place
}

// readLimit is how long a query that reads the data plane may take, its wait for others
// included, answerLimit any other. A proxy that ends waits for one that reads no longer than readGrace.
const (
	readLimit   = 30 * time.Second
	answerLimit = 30 * time.Second
	readGrace   = 5 * time.Second
)

// query is a Query whatever its types.
type query interface {
	name() string
	reads() bool
	ask(context.Context, *Proxy, []byte) (any, error)
}

func (q Query[Request, Answer]) name() string { return q.Name }

func (q Query[Request, Answer]) reads() bool { return q.Reads }

// Ask puts the question to the proxy that runs here.
func (q Query[Request, Answer]) Ask(ctx context.Context, r Request) (a Answer, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	err = call(ctx, "/query/"+q.Name, body, &a)
	return a, err
}

// Of answers the question about a proxy of this process.
func (q Query[Request, Answer]) Of(ctx context.Context, p *Proxy, r Request) (a Answer, err error) {
	if q.list == nil {
		return q.answer(ctx, p, r)
	}
	listed, err := q.list(ctx, p, r)
	if err != nil {
		return a, err
	}
	var text bytes.Buffer
	last, err := wire.Encode(wire.CBOR, listed, func(part []byte) error {
		_, err := text.Write(part)
		return err
	})
	if err != nil {
		return a, err
	}
	text.Write(last)
	err = wire.Read(wire.CBOR, &text, &a)
	return a, err
}

func (q Query[Request, Answer]) ask(ctx context.Context, p *Proxy, body []byte) (any, error) {
	var r Request
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("query %s: %w", q.Name, err)
	}
	if q.list != nil {
		return q.list(ctx, p, r)
	}
	return q.answer(ctx, p, r)
}

// snapshotFor is a snapshot for a question, of a proxy that serves, with the Services that
// it is about.
func (p *Proxy) snapshotFor(ctx context.Context, pick func(*track.Tracker) []*track.View) (*engine.Snapshot, error) {
	s, err := p.engine.SnapshotOf(ctx, pick)
	if err != nil {
		return nil, err
	}
	if s.Host == nil || !s.Status.SourceSynced {
		return nil, fmt.Errorf("tandem has not yet received everything from %s: %s", p.config.Source(), strings.Join(p.health().Reasons, "; "))
	}
	return s, nil
}

// History is the query of tandem history. It does not use the engine's goroutine.
func History() Query[history.Filter, history.Document] {
	return Query[history.Filter, history.Document]{Name: "history", list: past}
}

func past(_ context.Context, p *Proxy, f history.Filter) (any, error) {
	if f.Limit < 0 {
		return nil, fmt.Errorf("limit %d: must not be negative", f.Limit)
	}
	d, n, each := p.engine.History().List(f)
	return wire.List[history.Entry]{Len: n, Each: each}.In(d, "entries"), nil
}

// maxRequest bounds a question: plan sends manifests.
const maxRequest = 64 << 20

// queries are all there are.
func queries() []query {
	return []query{Explain(), Outcomes(), Trace(), Drift(), Services(), History(), Top(), Preview()}
}

// queryRoute answers queries on the control socket.
func (p *Proxy) queryRoute() route {
	return route{"POST /query/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
		if err != nil {
			if errors.As(err, new(*http.MaxBytesError)) {
				err = fmt.Errorf("request larger than %d MiB: send fewer manifests at a time", maxRequest>>20)
			}
			reply(w, r, nil, err)
			return
		}
		kind := wire.Type(r.Header.Get("Accept"))
		begun := false
		last, err := p.ask(r.Context(), r.PathValue("name"), body, kind, func(part []byte) error {
			if !begun {
				w.Header().Set("Content-Type", kind)
				begun = true
			}
			_, err := bounded{w}.Write(part)
			return err
		})
		if err != nil && begun {
			panic(http.ErrAbortHandler) // so that nobody takes what was sent for all
		}
		send(w, kind, last, err)
	}}
}

// ask finds the query and returns its answer as content of a type: the last part, after send got those before.
// However many clients ask, one answer is made at a time, and beside it one of those that read the data plane: changes
// find a processor. What a client takes to read its answer is nobody's wait.
func (p *Proxy) ask(ctx context.Context, name string, body []byte, kind string, send func([]byte) error) (last []byte, err error) {
	all := queries()
	i := slices.IndexFunc(all, func(q query) bool { return q.name() == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown query %.40q: is the running tandem another version?", name)
	}
	q, turn, limit := all[i], p.answers, answerLimit
	if q.reads() {
		turn, limit = p.kernel, readLimit
	}
	made, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := turn.take(made); err != nil {
		return nil, fmt.Errorf("other queries are answered: %w", err)
	}
	mine := true
	defer func() {
		if mine {
			turn.give()
		}
	}()
	found, err := q.ask(made, p, body)
	if err != nil {
		return nil, err
	}
	return wire.Encode(kind, found, func(part []byte) error {
		turn.give()
		if mine = false; send(part) != nil {
			return errDisconnected
		}
		again, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := turn.take(again)
		mine = err == nil
		return err
	})
}

var errDisconnected = errors.New("the client has disconnected")

// TakeSnapshot asks the proxy that runs here for a snapshot, as text. The caller
// reads and closes it.
func TakeSnapshot(ctx context.Context) (io.ReadCloser, error) {
	res, err := open(ctx, "/snapshot", nil)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// snapshotRoute answers TakeSnapshot. One is made at a time: it may be large.
func (p *Proxy) snapshotRoute() route {
	turn := make(turn, 1)
	return route{"POST /snapshot", func(w http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-r.Context().Done():
			return
		}
		f, lists, err := p.file(r.Context())
		if err != nil {
			reply(w, r, nil, err)
			return
		}
		_ = f.Write(bounded{w}, lists) // fails only when the client has disconnected
	}}
}

// file is a snapshot of the proxy, with lists that are made while they are written.
func (p *Proxy) file(ctx context.Context) (*snapshot.File, snapshot.Lists, error) {
	start := time.Now()
	readAt, failed := p.read(ctx)
	var counts *question.Top
	var notCounted error
	var counting sync.WaitGroup // meanwhile: most of it is the kernel's work
	counting.Go(func() { counts, notCounted = p.counts(ctx) })
	f, lists, s, err := p.answerFile(ctx)
	counting.Wait()
	if err != nil {
		return nil, lists, err
	}
	if f.Top = counts; notCounted != nil { // like what cannot be read, this hides nothing else
		f.Top = &question.Top{At: f.At, Mode: string(f.Mode), Services: []question.TopService{}, NotCounted: "connections were not counted: " + notCounted.Error()}
	}
	if failed == nil {
		f.ReadAt, f.Drift.ReadAt, f.Observed = readAt, &readAt, observed(s, start)
	} else {
		f.ReadErr = failed.Error()
	}
	return f, lists, nil
}

// answerFile is fileOf of now, when it is its turn.
func (p *Proxy) answerFile(ctx context.Context) (f *snapshot.File, lists snapshot.Lists, s *engine.Snapshot, err error) {
	if err := p.answers.take(ctx); err != nil {
		return nil, lists, nil, err
	}
	defer p.answers.give()
	if s, err = p.Snapshot(ctx); err == nil {
		f, lists = p.fileOf(s)
	}
	return f, lists, s, err
}

// fileOf is a snapshot of the proxy but for what it has read of the data plane.
func (p *Proxy) fileOf(s *engine.Snapshot) (f *snapshot.File, lists snapshot.Lists) {
	f, settled := p.inputs(s)
	if !settled {
		f.Record(f.Resolve()) // what has just come is resolved and programmed in a moment
	}
	document, services := question.List(p.facts(question.Filter{}), s)
	past, _, changes := p.engine.History().List(history.Filter{})
	f.Status, f.History = document, past
	f.Drift = question.DriftOf(s, "", time.Time{})
	f.Drift.Node, f.Drift.Mode = p.config.NodeName, string(f.Mode)
	return f, snapshot.Lists{Services: services.Each, History: changes}
}

// inputs are the inputs of a snapshot, with the hash of the ports that the proxy has resolved. Unless it
// is settled, a change has come that they do not have yet.
func (p *Proxy) inputs(s *engine.Snapshot) (f *snapshot.File, settled bool) {
	f = &snapshot.File{
		Header: snapshot.Header{
			Format: snapshot.Format, Version: p.version, System: runtime.GOOS, Mode: p.engine.Current().Mode.Name, At: s.At,
			Config: *p.live.Load().Public(), Node: s.Node, Machine: p.machine.now(), Others: s.Others,
			Suspects: s.Suspects,
		},
		Services: make([]*model.Service, len(s.Services)), Slices: append(make([]*model.Slice, 0, len(s.Services)), s.Orphans...),
		CIDRs: s.CIDRs, Routes: s.Routes, Grants: s.Grants,
	}
	if s.Host != nil {
		f.Machine.Listeners = s.Host.Guard.Listeners
	}
	hash := question.HashHost(s.Host)
	settled = s.Settled && s.Host != nil && hash.String() == question.HashHost(resolve.Host(&f.Config, f.Node, f.CIDRs, f.Machine)).String()
	for i, svc := range s.Each() { // once through memory
		f.Services[i], f.Slices = svc.Object, append(f.Slices, svc.Slices...)
		f.KeepReady(s.Services[i : i+1])
		f.KeepSlots(svc.Ports)
		hash.Add(svc.Ports)
	}
	f.Sort()
	f.Ports = hash.String()
	return f, settled
}

// Replays reports whether a snapshot of the inputs of this moment, as it is written and read, means what the
// proxy has resolved; settled is false where it has not resolved them yet. It is for simulations.
func (p *Proxy) Replays(ctx context.Context) (same, settled bool, err error) {
	s, err := p.Snapshot(ctx)
	if err != nil {
		return false, false, err
	}
	f, settled := p.inputs(s)
	var text bytes.Buffer
	if err := snapshot.Write(&text, f); err != nil {
		return false, settled, err
	}
	again, err := snapshot.Read(&text)
	if err != nil {
		return false, settled, err
	}
	return again.Compare(again.Resolve()) == snapshot.Same, settled, nil
}

// read has the engine read the data plane back, as tandem drift does.
func (p *Proxy) read(ctx context.Context) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	if err := p.kernel.take(ctx); err != nil {
		return at, err
	}
	defer p.kernel.give()
	return p.engine.Audit(ctx)
}

// counts are the connections that the data plane has counted, as tandem top shows them; nil where it does
// not count.
func (p *Proxy) counts(ctx context.Context) (*question.Top, error) {
	if _, counted := dataplane.As[dataplane.ConnectionCounter](p.engine.Current().Backend); !counted {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	if err := p.kernel.take(ctx); err != nil {
		return nil, err
	}
	defer p.kernel.give()
	t, err := top(ctx, p, TopRequest{Frontends: true})
	return &t, err
}

// observed are the differences that were found since start, or are not repaired.
func observed(s *engine.Snapshot, start time.Time) (differ []dataplane.Difference) {
	for _, d := range s.Drifts {
		if d.Repaired.IsZero() || d.Found.After(start) {
			differ = append(differ, d.Difference)
		}
	}
	return differ
}

// TraceOf follows a connection through the data plane as it was when a snapshot was taken.
func TraceOf(f *snapshot.File, q oracle.Question) (question.Trace, error) {
	if f.ReadAt.IsZero() {
		return question.Trace{}, fmt.Errorf("the data plane is not in this snapshot: %s", cmp.Or(f.ReadErr, "the snapshot was taken without reading it"))
	}
	r, _, err := Replay(f)
	if err != nil {
		return question.Trace{}, err
	}
	subject := question.Subject{Mode: string(f.Mode), Host: r.Host, Services: r.Services, Gaps: r.Plan.Gaps, Implementation: r.Plan.Implementation}
	t, _, err := question.Follow(subject, q, func(ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
		return r.Plan.Trace(ports, p, f.Observed)
	})
	return t, err
}

// ModeOf is the mode of a snapshot, as its own system has it.
func ModeOf(f *snapshot.File) (dataplane.Mode, error) {
	return named(modesOn(cmp.Or(f.System, runtime.GOOS), noHandover), f.Mode)
}

// Replay resolves and plans a snapshot in its own mode, and compares that with what the
// node had when it was taken.
func Replay(f *snapshot.File) (r *snapshot.Result, likeness snapshot.Likeness, err error) {
	m, err := ModeOf(f)
	if err != nil {
		return nil, snapshot.Differs, err
	}
	r = f.Replay(m)
	return r, f.Compare(r), nil
}

// Explain is the query of tandem explain.
func Explain() Query[oracle.Question, question.Explanation] {
	return Query[oracle.Question, question.Explanation]{Name: "explain", answer: explain}
}

func explain(ctx context.Context, p *Proxy, q oracle.Question) (question.Explanation, error) {
	s, err := p.subject(ctx, func(t *track.Tracker) []*track.View { return concerned(t, q) })
	if err != nil {
		return question.Explanation{}, err
	}
	return question.Explain(s, q)
}

// subject is the running proxy as questions about packets are asked of it: with the
// Services that the answers depend on.
func (p *Proxy) subject(ctx context.Context, pick func(*track.Tracker) []*track.View) (question.Subject, error) {
	s, err := p.snapshotFor(ctx, pick)
	if err != nil {
		return question.Subject{}, err
	}
	track.SortServices(s.Services)
	plane := p.engine.Current()
	return question.Subject{
		Mode: string(plane.Mode.Name), Host: s.Host, Services: s.Services, Gaps: s.Backend.Gaps,
		Failures: s.Backend.Failures, Implementation: plane.Implementation,
	}, nil
}

// concerned returns the Services that an answer depends on: all only where a sender is
// looked for among all endpoints.
func concerned(t *track.Tracker, q oracle.Question) []*track.View {
	host := t.Host()
	if host == nil || q.NeedsEndpoints(host) {
		return t.Unsorted()
	}
	var named []*track.View
	if n, ok := q.Service(); ok {
		named = t.Named(n)
	}
	var ports []*model.Port
	for _, s := range named {
		ports = append(ports, s.Ports...)
	}
	packet, err := q.Packet(host, ports)
	if err != nil {
		return named // the same error without the others
	}
	all := t.Concerned(packet.Proto, packet.Dst)
	for _, s := range named {
		if !slices.ContainsFunc(all, func(o *track.View) bool { return o.Object == s.Object }) {
			all = append(all, s)
		}
	}
	return all
}

// mostQuestions bounds the questions of one request for outcomes.
const mostQuestions = 10000

// Outcomes is the query of tandem test: what must happen to many packets, all by the state that is
// known at one moment. Explanations have no Objects, which take longer than all the rest.
func Outcomes() Query[[]oracle.Question, []question.Explanation] {
	return Query[[]oracle.Question, []question.Explanation]{Name: "outcomes", answer: outcomes}
}

func outcomes(ctx context.Context, p *Proxy, all []oracle.Question) ([]question.Explanation, error) {
	if len(all) > mostQuestions {
		return nil, errors.New("too many questions in one request")
	}
	s, err := p.subject(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return nil, err
	}
	s.Implementation = func([]*model.Port, oracle.Packet) []dataplane.Object { return nil }
	answers := make([]question.Explanation, 0, len(all))
	for _, q := range all {
		e, err := question.Explain(s, q)
		if err != nil {
			return nil, fmt.Errorf("from %s to %s: %w", q.From, q.To, err)
		}
		answers = append(answers, e)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return answers, nil
}

// Trace is the query of tandem trace.
func Trace() Query[oracle.Question, question.Trace] {
	return Query[oracle.Question, question.Trace]{Name: "trace", Reads: true, answer: trace}
}

func trace(ctx context.Context, p *Proxy, q oracle.Question) (question.Trace, error) {
	subject, err := p.subject(ctx, func(t *track.Tracker) []*track.View { return concerned(t, q) })
	if err != nil {
		return question.Trace{}, err
	}
	plane := p.engine.Current()
	t, _, err := question.Follow(subject, q, func(ports []*model.Port, packet oracle.Packet) (t dataplane.Trace, err error) {
		err = p.network.Do(func() error {
			t, err = plane.Trace(ctx, ports, packet)
			return err
		})
		return t, err
	})
	return t, err
}

// Live follows a real packet of a trace through this machine: one that it sends, where
// the node itself is the client, else the next one of any sender, until ctx ends. From
// is the question's.
func Live(ctx context.Context, t question.Trace, from string) (question.Live, error) {
	return thisSystem().live(ctx, t, from)
}

// ServicesRequest is what tandem services asks.
type ServicesRequest struct {
	Service string          `json:"service,omitempty"` // NAMESPACE/NAME; empty for all, without their endpoints
	Filter  question.Filter `json:"filter,omitzero"`   // of all
}

// Services is the query of tandem services.
func Services() Query[ServicesRequest, question.Services] {
	return Query[ServicesRequest, question.Services]{Name: "services", list: services}
}

func services(ctx context.Context, p *Proxy, r ServicesRequest) (any, error) {
	if r.Service != "" {
		return service(ctx, p, r.Service)
	}
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return nil, err
	}
	track.SortServices(s.Services)
	return question.ListServices(s, r.Filter).In(question.Services{Node: s.Host.Name, Mode: p.mode()}, "services"), nil
}

// service is the answer about one.
func service(ctx context.Context, p *Proxy, of string) (out question.Services, err error) {
	name, err := model.ParseServiceName(of)
	if err != nil {
		return out, err
	}
	s, err := p.snapshotFor(ctx, func(t *track.Tracker) []*track.View { return t.Named(name) })
	if err != nil {
		return out, err
	}
	since, err := p.engine.Since(ctx, name)
	if err != nil {
		return out, err
	}
	out, ok := question.ServiceOf(s, name, since)
	if !ok {
		return out, unknownService(name)
	}
	out.Node, out.Mode = s.Host.Name, p.mode()
	return out, nil
}

// ServicesOf answers the question about a snapshot: what its inputs mean, and the state that each
// Service was in.
func ServicesOf(f *snapshot.File, r ServicesRequest) (out question.Services, err error) {
	replayed, _, err := Replay(f)
	if err != nil {
		return out, err
	}
	s := &engine.Snapshot{Host: replayed.Host, Services: replayed.Services, Suspects: f.Suspects, Backend: dataplane.Health{Gaps: replayed.Plan.Gaps}}
	if r.Service == "" {
		out = question.ServicesOf(s, question.Filter{Namespace: r.Filter.Namespace, Name: r.Filter.Name})
	} else {
		name, err := model.ParseServiceName(r.Service)
		if err != nil {
			return out, err
		}
		var ok bool
		if out, ok = question.ServiceOf(s, name, nil); !ok {
			return out, unknownService(name)
		}
	}
	out.Recall(f.Status.Services)
	out.Services = slices.DeleteFunc(out.Services, func(d question.ServiceDetail) bool { return !r.Filter.Match(d.Name, d.State) })
	out.Node, out.Mode = s.Host.Name, string(f.Mode)
	return out, nil
}

func unknownService(name model.ServiceName) error {
	return fmt.Errorf("no Service %s: none of this name was received, or it is labelled for another proxy", name)
}

// DriftRequest is what tandem drift asks.
type DriftRequest struct {
	Service string    `json:"service,omitempty"` // only its objects; empty for all
	Look    bool      `json:"look,omitempty"`    // read the data plane back first
	Since   time.Time `json:"since,omitzero"`    // drift found later counts as found now
}

// Drift is the query of tandem drift.
func Drift() Query[DriftRequest, question.Drift] {
	return Query[DriftRequest, question.Drift]{Name: "drift", Reads: true, answer: drift}
}

// drift has the engine audit, which repairs what it finds; or asks the kernel whether
// another program has written since the last time, where that is certain.
func drift(ctx context.Context, p *Proxy, r DriftRequest) (question.Drift, error) {
	var readAt time.Time
	if r.Look {
		r.Since = time.Now()
		var err error
		if readAt, err = p.engine.Audit(ctx); err != nil {
			return question.Drift{}, err
		}
	}
	s, err := p.snapshotFor(ctx, func(t *track.Tracker) []*track.View {
		name, _ := model.ParseServiceName(r.Service) // driftOf reports an invalid name
		return t.Named(name)
	})
	if err != nil {
		return question.Drift{}, err
	}
	d, err := driftOf(s, r)
	d.Node, d.Mode = s.Host.Name, p.mode()
	if !readAt.IsZero() {
		d.ReadAt = &readAt
	}
	return d, err
}

// driftOf renders the drift of a snapshot. A Service that neither exists nor has
// drifted is an error: "no drift" would be wrong for a mistyped name.
func driftOf(s *engine.Snapshot, r DriftRequest) (question.Drift, error) {
	d := question.DriftOf(s, r.Service, r.Since)
	d.Looked = r.Look
	if r.Service == "" || len(d.Now)+len(d.Before) > 0 {
		return d, nil
	}
	name, err := model.ParseServiceName(r.Service)
	if err != nil {
		return d, err
	}
	if _, ok := question.Find(s, name); !ok {
		return d, unknownService(name)
	}
	return d, nil
}

// Edit is what tandem plan --against-running asks about: Services, EndpointSlices,
// routes and grants that take the place of those of the same names.
type Edit struct {
	Services []*model.Service `json:"services"`
	Slices   []*model.Slice   `json:"slices"`
	Routes   []*model.Route   `json:"routes,omitempty"`
	Grants   []*model.Grant   `json:"grants,omitempty"`
	Prune    bool             `json:"prune,omitempty"` // and all others are deleted
}

// Preview is the query of tandem plan --against-running.
func Preview() Query[Edit, question.Preview] {
	return Query[Edit, question.Preview]{Name: "preview", Reads: true, answer: preview}
}

func preview(ctx context.Context, p *Proxy, edit Edit) (question.Preview, error) {
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return question.Preview{}, err
	}
	deltas, problems := edit.deltas(s, time.Now())
	out := question.PreviewOf(p.engine.Current().Preview(deltas), deltas, problems)
	out.Node, out.Mode = s.Host.Name, p.mode()
	switch {
	case len(deltas) == 0: // of none
	case p.tracked == nil:
		out.Unknown = "this system does not list tracked connections"
	case !p.engine.Current().Mode.Conntrack:
		out.Unknown = "mode " + p.mode() + " does not track connections in the kernel"
	default:
		count := question.CountFlows(s.Host, deltas)
		if err := p.network.Do(func() error { return p.tracked.Each(ctx, count.See) }); err != nil {
			out.Unknown = err.Error()
		}
		count.Add(&out)
	}
	return out, nil
}

// deltas resolves what the edit touches, and returns which ports differ from the
// running ones and the problems of the edited Services.
func (e Edit) deltas(s *engine.Snapshot, now time.Time) (deltas []model.Delta, problems []model.Problem) {
	t := track.Resume(s.Host, s.Services, &model.Objects{Nodes: s.Others, Slices: s.Orphans, Routes: s.Routes, Grants: s.Grants}, s.Suspects, now)
	t.Set(&model.Objects{Services: e.Services, Slices: e.Slices, Routes: e.Routes, Grants: e.Grants})
	if e.Prune {
		e.prune(t, s)
	}
	deltas = t.Flush()
	slices.SortFunc(deltas, func(a, b model.Delta) int { return a.ID().Compare(b.ID()) })
	for _, svc := range e.Services {
		problems = append(problems, t.Service(svc.Name).Problems...)
	}
	return deltas, problems
}

// prune deletes from a tracker what a snapshot has and the edit has not.
func (e Edit) prune(t *track.Tracker, s *engine.Snapshot) {
	keep := map[any]bool{}
	for _, svc := range e.Services {
		keep[svc.Name] = true
	}
	for _, slice := range e.Slices {
		keep[slice.Name] = true
	}
	for _, r := range e.Routes {
		keep[r.Name] = true
	}
	for _, g := range e.Grants {
		keep[g.Name] = true
	}
	for _, svc := range s.Services {
		if !keep[svc.Object.Name] {
			t.DeleteService(svc.Object.Name)
		}
		for _, slice := range svc.Slices {
			if !keep[slice.Name] {
				t.DeleteSlice(slice.Name)
			}
		}
	}
	for _, slice := range s.Orphans {
		if !keep[slice.Name] {
			t.DeleteSlice(slice.Name)
		}
	}
	for _, r := range s.Routes {
		if !keep[r.Name] {
			t.DeleteRoute(r.Name)
		}
	}
	for _, g := range s.Grants {
		if !keep[g.Name] {
			t.DeleteGrant(g.Name)
		}
	}
}

// TopRequest is what tandem top asks. Services without connections are left out.
type TopRequest struct {
	Filter    question.Filter `json:"filter,omitzero"`
	Frontends bool            `json:"frontends,omitempty"` // with the counts of each
	Endpoints bool            `json:"endpoints,omitempty"` // with those of each endpoint
	Bytes     bool            `json:"bytes,omitempty"`     // with what conntrack has counted
}

// Top is the query of tandem top.
func Top() Query[TopRequest, question.Top] {
	return Query[TopRequest, question.Top]{Name: "top", Reads: true, answer: top}
}

func top(ctx context.Context, p *Proxy, r TopRequest) (t question.Top, err error) {
	from := question.TopSources{Mode: p.mode(), At: time.Now(), Frontends: r.Frontends}
	backend := p.engine.Current().Backend
	counter, counted := dataplane.As[dataplane.ConnectionCounter](backend)
	if !counted && !r.Bytes {
		return question.Top{At: from.At, Mode: from.Mode, Services: []question.TopService{}, NotCounted: question.NotCounted(from.Mode)}, nil
	}
	if err := p.network.Do(func() error {
		if counted {
			from.Counts = question.TopCounts{}
			if err := counter.Connections(ctx, from.Counts.Add); err != nil {
				return err
			}
		}
		if r.Endpoints {
			from.Endpoints = question.TopEndpoints{}
			if err := countEndpoints(ctx, backend, from.Endpoints); err != nil {
				return err
			}
		}
		if r.Bytes {
			if p.tracked == nil {
				return errBytesNotCounted
			}
			from.Flows = question.TopFlows{}
			return p.tracked.Traffic(ctx, from.Flows.Add)
		}
		return nil
	}); err != nil {
		return t, err
	}
	s, err := p.snapshotFor(ctx, (*track.Tracker).Unsorted)
	if err != nil {
		return t, err
	}
	for _, a := range p.machine.now().Addresses {
		from.Node = append(from.Node, a.Prefix.Addr())
	}
	return question.TopOf(from, s.Services, r.Filter), nil
}

var errBytesNotCounted = errors.New("--bytes: this system does not count the bytes of connections by their first destination")

var errEndpointsNotCounted = errors.New("connections of endpoints are not counted: mode ipvs counts them, and mode nftables with --count-connections --count-endpoints")

func countEndpoints(ctx context.Context, backend dataplane.Backend, into question.TopEndpoints) error {
	counter, ok := dataplane.As[dataplane.EndpointCounter](backend)
	if !ok {
		return errEndpointsNotCounted
	}
	counted, err := counter.Endpoints(ctx, into.Add)
	if err == nil && !counted {
		return errEndpointsNotCounted
	}
	return err
}

// scraped are the counts of connections as metrics show them. It is safe for concurrent use.
type scraped struct {
	proxy *Proxy

	mu   sync.Mutex
	at   time.Time // of the end of the last reading
	took time.Duration
	last []metrics.ServiceConnections
}

// Reading the counts for metrics takes at most 1/scrapeShare of the time, and waits for
// other readings for scrapeWait: the counts are of the reading before then.
const (
	scrapeShare = 20
	scrapeWait  = time.Second
)

func (s *scraped) now() []metrics.ServiceConnections {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.at) < scrapeShare*s.took {
		return s.last
	}
	ctx, cancel := context.WithTimeout(s.proxy.running, scrapeWait)
	defer cancel()
	if s.proxy.kernel.take(ctx) != nil {
		return s.last
	}
	defer s.proxy.kernel.give()
	begun := time.Now()
	t, err := top(ctx, s.proxy, TopRequest{})
	s.at, s.took = time.Now(), time.Since(begun)
	if err != nil {
		s.proxy.log.Debug("counting connections for metrics failed", "err", err)
		return s.last
	}
	s.last = nil
	for _, x := range t.Services {
		s.last = append(s.last, metrics.ServiceConnections{Service: x.Service, New: x.New})
	}
	return s.last
}
