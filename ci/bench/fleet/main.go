// SPDX-License-Identifier: Apache-2.0

// Command fleet simulates many nodes for an API server in one process: each
// client has a connection of its own and follows what a proxy follows, with Tandem's
// client (core/watch) or as kube-proxy 1.36 does it (client-go's informers). Objects
// are dropped as soon as the client has decoded them, so that a thousand clients fit
// into a machine; what the API server sees is the same.
//
//	fleet -kind tandem -n 250 -kubeconfig FILE -listen SOCKET -mark NAMESPACE/SLICE
//
// Its state is answered as JSON on a Unix socket: see report.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// report is the state of all clients.
type report struct {
	Synced  int   // clients that have read everything once
	Reached int   // clients that have the mark in at least the requested version
	Last    int64 // when the last of these got it, in nanoseconds since 1970
	Bytes   int64 // received, TLS included
	Lists   int64 // full lists begun, streamed or not
	Dials   int64 // connections made
}

// fleet is all clients of this process.
type fleet struct {
	kubeconfig string
	mark       string // the EndpointSlice that is looked at
	clients    []*client
}

// client is one node's connection.
type client struct {
	node   string
	bytes  atomic.Int64
	dials  atomic.Int64
	lists  func() int64
	synced atomic.Bool

	mu      sync.Mutex
	version uint64    // of the mark
	at      time.Time // when it came
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	f := &fleet{}
	kind := flag.String("kind", "tandem", "tandem or client-go")
	n := flag.Int("n", 1, "how many clients")
	atOnce := flag.Int("at-once", 8, "how many may read their first list at once")
	listen := flag.String("listen", "", "the Unix socket for reports")
	flag.StringVar(&f.kubeconfig, "kubeconfig", "", "of the API server")
	flag.StringVar(&f.mark, "mark", "", "the EndpointSlice, as NAMESPACE/NAME, whose arrival is reported")
	flag.Parse()
	start := map[string]func(context.Context, *client) error{"tandem": f.tandem, "client-go": f.clientGo}[*kind]
	if start == nil {
		return fmt.Errorf("-kind %s: want tandem or client-go", *kind)
	}
	for i := range *n {
		f.clients = append(f.clients, &client{node: fmt.Sprintf("node-%d", i), lists: func() int64 { return 0 }})
	}
	l, err := net.Listen("unix", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(f.serve), ReadHeaderTimeout: time.Second}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(l) })
	defer func() { _ = server.Close(); group.Wait() }()

	asked := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, *atOnce)
	for _, c := range f.clients {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		group.Go(func() {
			free := sync.OnceFunc(func() { <-slots })
			defer free()
			group.Go(func() { c.wait(ctx, free) })
			if err := start(ctx, c); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	if asked.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

// wait frees a client's slot when it has read everything.
func (c *client) wait(ctx context.Context, free func()) {
	for !c.synced.Load() && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	free()
}

// saw notes a version of the mark.
func (c *client) saw(version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version > c.version {
		c.version, c.at = version, time.Now()
	}
}

// dial makes a connection whose bytes are counted.
func (c *client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.dials.Add(1)
	return &counted{conn, &c.bytes}, nil
}

// counted counts what is read.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

// Read implements net.Conn.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// serve answers with a report; the parameter version is that of the mark to look for.
func (f *fleet) serve(w http.ResponseWriter, r *http.Request) {
	version, _ := strconv.ParseUint(r.URL.Query().Get("version"), 10, 64)
	var all report
	for _, c := range f.clients {
		all.Bytes += c.bytes.Load()
		all.Dials += c.dials.Load()
		if !c.synced.Load() {
			continue
		}
		all.Synced++
		all.Lists += c.lists()
		c.mu.Lock()
		if c.version >= version {
			all.Reached++
			all.Last = max(all.Last, c.at.UnixNano())
		}
		c.mu.Unlock()
	}
	_ = json.NewEncoder(w).Encode(all)
}
