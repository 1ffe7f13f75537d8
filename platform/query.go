// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/history"
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
