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
	answer func(context.Context, *Proxy, Request) (Answer, error)
	// list returns the same answer as a wire.Listing; nil where no answer has a long list.
	list func(context.Context, *Proxy, Request) (any, error)
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
func (q Query[Request, Answer]) Of(ctx context.Context, p *Proxy, r Request) (Answer, error) {
	return q.answer(ctx, p, r)
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
	return Query[history.Filter, history.Document]{Name: "history", answer: pastOf, list: listPast}
}

func pastOf(_ context.Context, p *Proxy, f history.Filter) (history.Document, error) {
	if f.Limit < 0 {
		return history.Document{}, errLimit(f.Limit)
	}
	return p.engine.History().Find(f), nil
}

func listPast(_ context.Context, p *Proxy, f history.Filter) (any, error) {
	if f.Limit < 0 {
		return nil, errLimit(f.Limit)
	}
	d, n, each := p.engine.History().List(f)
	return wire.List[history.Entry]{Len: n, Each: each}.In(d, "entries"), nil
}

func errLimit(n int) error { return fmt.Errorf("limit %d: must not be negative", n) }
