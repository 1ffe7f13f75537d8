// SPDX-License-Identifier: Apache-2.0

// Package tracing sends the changes of a history to an OpenTelemetry collector, each as
// a trace: from the moment it was written to the API server until the first packet can
// meet it.
//
//	history.Recorder ──▶ Exporter ──OTLP over HTTP──▶ collector
//	                        ▲
//	                      Synced, after each sync
//
// It reads what the engine records anyway, beside the changes: they cost the same with it.
// Without an endpoint there is no Exporter, and nothing runs.
package tracing

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/sleep"
)

// Options are what an Exporter needs.
type Options struct {
	Endpoint            string // of a collector, such as "http://127.0.0.1:4318"
	Node, Version, Mode string // Mode is the one at the start
	Log                 *slog.Logger
}

// Exporter sends applied changes. It is safe for concurrent use, except Run, which is
// called once.
type Exporter struct {
	options Options
	url     string
	client  *http.Client
	synced  chan struct{} // of one: there may be something to send

	next uint64 // the first change that was not sent; Run's own
}

// The pace of an Exporter, and the bounds of a request.
const (
	gather    = time.Second // after a sync, for what else comes
	lastRetry = time.Minute
	timeout   = 10 * time.Second
	most      = 1000    // changes in a request
	mostText  = 1 << 10 // of an answer, which states why the request was rejected
)

// New returns an Exporter; nil without an endpoint. A URL without a path gets that of the
// specification (OTLP/HTTP).
func New(o Options) (*Exporter, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	at, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("trace endpoint %s: %w", printable.URL(o.Endpoint), printable.WithoutURL(err))
	}
	if at.Path == "" || at.Path == "/" {
		at.Path = "/v1/traces"
	}
	// A redirect is an answer like others: traces name Services.
	client := &http.Client{Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Exporter{options: o, url: at.String(), client: client, synced: make(chan struct{}, 1), next: 1}, nil
}

// Synced reports the end of a sync. It never blocks, and does nothing without an Exporter.
func (x *Exporter) Synced() {
	if x == nil {
		return
	}
	select {
	case x.synced <- struct{}{}:
	default: // Run looks anyway
	}
}

// Run sends what a history has, as it comes, until ctx ends. What a collector does not
// take is sent again, as long as it is in the history.
func (x *Exporter) Run(ctx context.Context, h *history.Recorder) {
	retry := time.Duration(0)
	for {
		if retry == 0 {
			select {
			case <-ctx.Done():
				return
			case <-x.synced:
			}
		}
		if !sleep.For(ctx, cmp.Or(retry, gather)) {
			return
		}
		more, err := x.send(ctx, h)
		switch {
		case err != nil && ctx.Err() == nil:
			if retry == 0 {
				x.options.Log.Warn("sending traces failed; retrying", "endpoint", printable.URL(x.url), "err", err)
			}
			retry = sleep.Longer(retry, gather, lastRetry)
		case more:
			retry = gather
		default:
			retry = 0
		}
	}
}

// send sends applied changes not sent yet, and reports whether there are more.
func (x *Exporter) send(ctx context.Context, h *history.Recorder) (more bool, err error) {
	all := slices.DeleteFunc(h.Find(history.Filter{After: x.next - 1}).Entries, func(e history.Entry) bool { return e.Number == 0 }) // a sync without changes
	if waits := slices.IndexFunc(all, func(e history.Entry) bool { return e.Sync == nil }); waits >= 0 {
		all = all[:waits]
	}
	if len(all) == 0 {
		return false, nil
	}
	if first := all[0].Number; first > x.next {
		x.options.Log.Warn("history overflowed; traces of changes lost", "changes", first-x.next)
	}
	more = len(all) > most
	all = all[:min(len(all), most)]
	b, err := proto.Marshal(x.request(all))
	if err == nil {
		err = x.post(ctx, b)
	}
	if err == nil {
		x.next = all[len(all)-1].Number + 1
	}
	return more, err
}

func (x *Exporter) post(ctx context.Context, b []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("User-Agent", "tandem/"+x.options.Version)
	answer, err := x.client.Do(r)
	if err != nil {
		return printable.WithoutURL(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostText))
	if err == nil && answer.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %q", answer.Status, text)
	}
	return err
}
