// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// TestOneConnection holds that requests made at once share one connection, and that one
// that waits for it ends with its context.
func TestOneConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var dials atomic.Int32
	dialling, hold := make(chan struct{}), make(chan struct{})
	transport := server.Client().Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			close(dialling)
		}
		<-hold
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	client := http.Client{Transport: newOneAtATime(transport)}
	get := func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := get(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	<-dialling
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := get(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that is not wanted any more: %v", err)
	}
	close(hold)
	group.Wait()
	if n := dials.Load(); n != 1 {
		t.Errorf("8 requests made %d connections, want 1", n)
	}
}

// TestReadWhereUsed holds that the goroutine that reads an event passes it on: each goroutine between the two would
// be woken for every event, which costs more than to decode it.
func TestReadWhereUsed(t *testing.T) {
	w := newWorld(t, apitest.Options{})
	source, err := Open(w.config, slog.New(slog.DiscardHandler), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	var readers sync.Map // goroutines that read answers
	source.client.http.Transport = &bodies{source.client.http.Transport, func() { readers.Store(goroutine(), true) }}
	sink := &goroutines{record: newRecord(), sets: make(chan string, 16)}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = source.Run(ctx, sink) })
	defer group.Wait()
	defer cancel()
	for i := range 2 { // one of the list, one of the watch
		select {
		case id := <-sink.sets:
			if _, reads := readers.Load(id); !reads {
				t.Errorf("Service %d comes from a goroutine that reads no answer", i)
			}
		case <-time.After(time.Minute):
			t.Fatal("no Service within a minute")
		}
		w.server.Put(service("web", 81))
	}
}

// bodies calls a function before each read of an answer.
type bodies struct {
	next   http.RoundTripper
	before func()
}

// WrappedRoundTripper lets client-go find the transport underneath.
func (b *bodies) WrappedRoundTripper() http.RoundTripper { return b.next }

func (b *bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err == nil {
		answer.Body = &body{answer.Body, b.before}
	}
	return answer, err
}

type body struct {
	io.ReadCloser
	before func()
}

func (b *body) Read(p []byte) (int, error) {
	b.before()
	return b.ReadCloser.Read(p)
}

// goroutines notes the goroutines that set Services.
type goroutines struct {
	*record
	sets chan string
}

func (g *goroutines) Set(o model.Object) {
	g.record.Set(o)
	if _, is := o.(*model.Service); is {
		g.sets <- goroutine()
	}
}

// goroutine names the one that calls it.
func goroutine() string {
	var text [64]byte
	line := bytes.Fields(text[:runtime.Stack(text[:], false)])
	return string(line[1])
}
