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
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/metrics"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/wire"
)

// Ask puts a question to the proxy that runs here, over its control socket.
func Ask[P, A any](ctx context.Context, v question.Verb[P, A], parameters P) (a A, err error) {
	body, err := json.Marshal(parameters)
	if err != nil {
		return a, err
	}
	err = call(ctx, "/query/"+v.Name, body, &a)
	return a, err
}

const statusPath = "/status" // on the control socket

// StatusURL is the status with the Services of a filter, for a carrier: see Through.
func StatusURL(only question.Filter) string { return controlURL + statusOf(only) }

func statusOf(only question.Filter) string { return statusPath + "?" + health.Query(only).Encode() }

// Status asks the proxy of another node or network for its status over its control socket. That of the proxy that
// runs here all may read over HTTP.
func Status(ctx context.Context, only question.Filter) (d question.Status, err error) {
	err = call(ctx, statusOf(only), nil, &d)
	return d, err
}

// statusRoute answers Status.
func (p *Proxy) statusRoute() route {
	return route{"POST " + statusPath, health.Status(p.state).ServeHTTP}
}

// readLimit is how long a query that reads the data plane may take, its wait for others
// included, answerLimit any other. A proxy that ends waits for one that reads no longer than readGrace.
const (
	readLimit   = 30 * time.Second
	answerLimit = 30 * time.Second
	readGrace   = 5 * time.Second
)

// maxRequest bounds a question: plan sends manifests.
const maxRequest = 64 << 20

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
		p.answer(bounded{w}, r, r.PathValue("name"), body)
	}}
}

// QueryParameter is the parameter of a query's path on the metrics address that has the query's parameters.
const QueryParameter = "parameters"

// queryPage answers the same queries on the metrics address: GET /query/NAME?parameters=JSON, since reading is all
// that clients of other machines are granted.
func (p *Proxy) queryPage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
			return
		}
		p.answer(w, r, strings.TrimPrefix(r.URL.Path, "/query/"), []byte(r.URL.Query().Get(QueryParameter)))
	})
}

// answer writes the answer to a query.
func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, name string, parameters []byte) {
	kind := wire.Type(r.Header.Get("Accept"))
	begun := false
	last, err := p.ask(r.Context(), name, parameters, kind, func(part []byte) error {
		if !begun {
			w.Header().Set("Content-Type", kind)
			begun = true
		}
		_, err := w.Write(part)
		return err
	})
	if err != nil && begun {
		panic(http.ErrAbortHandler) // so that a part is not taken for the whole answer
	}
	send(w, kind, last, err)
}

// ask finds the query and returns its answer as content of a type: the last part, after send got those before.
// However many clients ask, one answer is made at a time, and beside it one of those that read the data plane: changes
// find a processor. No other query waits for a client that reads its answer.
func (p *Proxy) ask(ctx context.Context, name string, body []byte, kind string, send func([]byte) error) (last []byte, err error) {
	var kernel bool
	all := question.Questions()
	i := slices.IndexFunc(all, func(q question.Question) bool {
		called, reads := q.Called()
		kernel = reads
		return called == name
	})
	if i < 0 {
		return nil, fmt.Errorf("unknown query %.40q: is the running tandem another version?", name)
	}
	turn, limit := p.answers, answerLimit
	if kernel {
		turn, limit = p.kernel, readLimit
	}
	made, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := turn.Take(made); err != nil {
		return nil, fmt.Errorf("busy with other queries: %w", err)
	}
	mine := true
	defer func() {
		if mine {
			turn.Give()
		}
	}()
	found, err := all[i].Reply(made, body, p.Known)
	if err != nil {
		return nil, err
	}
	return wire.Encode(kind, found, func(part []byte) error {
		turn.Give()
		if mine = false; send(part) != nil {
			return errDisconnected
		}
		again, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := turn.Take(again)
		mine = err == nil
		return err
	})
}

var errDisconnected = errors.New("the client has disconnected")

// Known makes what a question needs of a document of the proxy, which must serve: a question.Source.
func (p *Proxy) Known(ctx context.Context, n question.Needs) (d *question.Document, err error) {
	d = &question.Document{
		Facts: question.Facts{Node: p.config.NodeName, Mode: p.mode()}, Plane: p.plane(), History: p.engine.History().List, Begun: time.Now(),
	}
	if n.Events != nil {
		if d.Seen, err = p.watcher.since(*n.Events); err != nil {
			return nil, err
		}
	}
	if n.Services == nil {
		return d, nil
	}
	if n.Audit {
		if d.ReadAt, err = p.engine.Audit(ctx); err != nil {
			return nil, err
		}
	}
	if n.Counts != nil {
		if d.Counts, err = p.count(ctx, n.Counts); err != nil {
			return nil, err
		}
		if d.Counts == nil { // nor is anything else needed
			d.Snapshot = &engine.Snapshot{At: d.Begun}
			return d, nil
		}
	}
	if d.Snapshot, err = p.engine.SnapshotOf(ctx, n.Services); err != nil {
		return nil, err
	}
	if d.Host == nil || !d.Status.SourceSynced {
		return nil, fmt.Errorf("tandem has not yet received everything from %s: %s", p.config.Source(), strings.Join(p.health().Reasons, "; "))
	}
	if n.Sorted {
		track.SortServices(d.Services)
	}
	if n.Since != (model.ServiceName{}) {
		d.Since, err = p.engine.Since(ctx, n.Since)
	}
	return d, err
}

// plane is the data plane in use, which is read when it is asked.
func (p *Proxy) plane() question.Plane {
	plane := p.engine.Current()
	var listening track.Ask
	if p.listeners != nil { // the engine's goroutine uses that one
		listening = func(places []model.Listener) (found []model.Listener, err error) {
			err = p.network.Do(func() error {
				l, err := p.system.listeners()
				if err != nil {
					return err
				}
				defer l.Close()
				found, err = l.At(places)
				return err
			})
			return found, err
		}
	}
	return question.Plane{
		Listening:      listening,
		Implementation: plane.Implementation, Preview: plane.Preview,
		Trace: func(ctx context.Context, ports []*model.Port, packet oracle.Packet) (t dataplane.Trace, err error) {
			err = p.network.Do(func() error {
				t, err = plane.Trace(ctx, ports, packet)
				return err
			})
			return t, err
		},
		Flows: func(ctx context.Context, each func(flows.Flow)) error {
			switch {
			case p.tracked == nil:
				return errors.New("this system does not list tracked connections")
			case !plane.Mode.Conntrack:
				return errors.New("mode " + string(plane.Mode.Name) + " does not track connections in the kernel")
			}
			return p.network.Do(func() error { return p.tracked.Each(ctx, each) })
		},
	}
}

// count reads what the data plane has counted, and conntrack; nil where neither has anything that is asked for.
func (p *Proxy) count(ctx context.Context, r *question.TopRequest) (from *question.TopSources, err error) {
	from = &question.TopSources{At: time.Now()}
	for _, a := range p.machine.now().Addresses {
		from.Node = append(from.Node, a.Prefix.Addr())
	}
	plane := p.engine.Current()
	backend := plane.Backend
	err = p.network.Do(func() error {
		counts, flows := question.TopCounts{}, r.Bytes
		stands := r.Open && p.tracked != nil && plane.Mode.Conntrack // conntrack, for the data plane
		switch counted, err := backend.Connections(ctx, false, counts.Add); {
		case err != nil:
			return err
		case counted:
			from.Counts = counts
		case !r.Bytes && !stands:
			from = nil
			return nil
		default:
			flows = true
		}
		if r.Endpoints {
			from.Endpoints = question.TopEndpoints{}
			switch counted, err := backend.Connections(ctx, true, from.Endpoints.Add); {
			case err != nil:
				return err
			case counted:
			case stands:
				flows = true
			case r.Open:
				from.Endpoints, from.NoEndpoints = nil, endpointsNotCounted
			default:
				return errors.New(endpointsNotCounted)
			}
		}
		if !flows {
			return nil
		}
		if p.tracked == nil {
			return errBytesNotCounted
		}
		from.Flows = question.TopFlows{}
		if from.NoBytes, err = p.tracked.Traffic(ctx, from.Flows.Add); err == nil && from.NoBytes != "" && r.Bytes {
			err = errors.New(from.NoBytes)
		}
		return err
	})
	return from, err
}

var errBytesNotCounted = errors.New("--bytes: this system does not count the bytes of connections by their first destination")

const endpointsNotCounted = "connections of endpoints are not counted: mode ipvs counts them, and mode nftables with --count-connections --count-endpoints"

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
	if s.proxy.kernel.Take(ctx) != nil {
		return s.last
	}
	defer s.proxy.kernel.Give()
	begun := time.Now()
	t, err := question.CountConnections().Of(ctx, s.proxy.Known, question.TopRequest{})
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
	making := make(sleep.Turn, 1)
	return route{"POST /snapshot", func(w http.ResponseWriter, r *http.Request) {
		if making.Take(r.Context()) != nil {
			return
		}
		defer making.Give()
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

// answerFile makes a snapshot of the present state, one at a time.
func (p *Proxy) answerFile(ctx context.Context) (f *snapshot.File, lists snapshot.Lists, s *engine.Snapshot, err error) {
	if err := p.answers.Take(ctx); err != nil {
		return nil, lists, nil, err
	}
	defer p.answers.Give()
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
	document, services := question.List(p.facts(), question.Filter{}, s)
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
	return inTurn(ctx, p.kernel, p.engine.Audit)
}

// inTurn reads the kernel when it is one's turn.
func inTurn[A any](ctx context.Context, t sleep.Turn, read func(context.Context) (A, error)) (a A, err error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	if err := t.Take(ctx); err != nil {
		return a, err
	}
	defer t.Give()
	return read(ctx)
}

// top counts connections, when it is its turn to read the kernel.
func (p *Proxy) top(ctx context.Context, r question.TopRequest) (t question.Top, err error) {
	return inTurn(ctx, p.kernel, func(ctx context.Context) (question.Top, error) {
		return question.CountConnections().Of(ctx, p.Known, r)
	})
}

// counts are the connections that the data plane has counted, as tandem top shows them; nil where it does
// not count.
func (p *Proxy) counts(ctx context.Context) (*question.Top, error) {
	t, err := p.top(ctx, question.TopRequest{Frontends: true})
	if t.NotCounted != "" {
		return nil, err
	}
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

// Replay resolves and plans a snapshot in its own mode, and compares that with what the
// node had when it was taken.
func Replay(f *snapshot.File) (*question.Document, snapshot.Likeness, error) {
	m, err := named(modesOn(cmp.Or(f.System, runtime.GOOS), noHandover), f.Mode) // as its own system has it
	if err != nil {
		return nil, snapshot.Differs, err
	}
	d, likeness := f.Document(m)
	return d, likeness, nil
}

// Live follows a real packet of a trace through this machine: one that it sends, where
// the node itself is the client, else the next one of any sender, until ctx ends. From
// is the question's.
func Live(ctx context.Context, t question.Trace, from string) (question.Live, error) {
	return thisSystem().live(ctx, t, from)
}
