// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/snapshot"
	"github.com/tandem-proxy/tandem/core/status"
)

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
	var counts *status.Top
	var notCounted error
	var counting sync.WaitGroup // meanwhile: most of it is the kernel's work
	counting.Go(func() { counts, notCounted = p.counts(ctx) })
	f, lists, s, err := p.answerFile(ctx)
	counting.Wait()
	if err != nil {
		return nil, lists, err
	}
	if f.Top = counts; notCounted != nil { // like what cannot be read, this hides nothing else
		f.Top = &status.Top{At: f.At, Mode: string(f.Mode), Services: []status.TopService{}, NotCounted: "connections were not counted: " + notCounted.Error()}
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
	document, services := status.List(p.facts(status.Filter{}), s)
	past, _, changes := p.engine.History().List(history.Filter{})
	f.Status, f.History = document, past
	f.Drift = status.DriftOf(s, "", time.Time{})
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
	hash := status.HashHost(s.Host)
	settled = s.Settled && s.Host != nil && hash.String() == status.HashHost(resolve.Host(&f.Config, f.Node, f.CIDRs, f.Machine)).String()
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
func (p *Proxy) counts(ctx context.Context) (*status.Top, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	if err := p.kernel.take(ctx); err != nil {
		return nil, err
	}
	defer p.kernel.give()
	t, err := top(ctx, p, TopRequest{Frontends: true})
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

// TraceOf follows a connection through the data plane as it was when a snapshot was taken.
func TraceOf(f *snapshot.File, q oracle.Question) (status.Trace, error) {
	if f.ReadAt.IsZero() {
		return status.Trace{}, fmt.Errorf("the data plane is not in this snapshot: %s", cmp.Or(f.ReadErr, "the snapshot was taken without reading it"))
	}
	r, _, err := Replay(f)
	if err != nil {
		return status.Trace{}, err
	}
	subject := status.Subject{Mode: string(f.Mode), Host: r.Host, Services: r.Services, Gaps: r.Plan.Gaps, Implementation: r.Plan.Implementation}
	t, _, err := status.Follow(subject, q, func(ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
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
