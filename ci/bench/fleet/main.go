// SPDX-License-Identifier: Apache-2.0

// Command fleet plays many nodes for an API server in one process (ci/kubernetes/fleet).
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
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/fleet"
)

// report is the state of all clients.
type report struct {
	Synced  int   // clients that have read everything once
	Reached int   // clients that have the mark in at least the requested version
	Last    int64 // when the last of these got it, in nanoseconds since 1970
	Bytes   int64 // received, TLS included
	Lists   int64 // lists that the server began to send, streamed or not
	Dials   int64 // connections made
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
	kind := flag.String("kind", fleet.Tandem, fleet.Tandem+" or "+fleet.ClientGo)
	n := flag.Int("n", 1, "how many clients")
	atOnce := flag.Int("at-once", 8, "how many may read their first list at once")
	listen := flag.String("listen", "", "the Unix socket for reports")
	kubeconfig := flag.String("kubeconfig", "", "of the API server")
	mark := flag.String("mark", "", "the EndpointSlice, as NAMESPACE/NAME, whose arrival is reported")
	flag.Parse()
	var clients clients
	for i := range *n {
		clients = append(clients, &fleet.Client{Kind: *kind, Node: fmt.Sprintf("node-%d", i), Kubeconfig: *kubeconfig, Mark: *mark})
	}
	l, err := net.Listen("unix", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(clients.serve), ReadHeaderTimeout: time.Minute}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(l) })
	defer func() { _ = server.Close(); group.Wait() }()

	asked := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, *atOnce)
	for _, c := range clients {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		group.Go(func() {
			free := sync.OnceFunc(func() { <-slots })
			defer free()
			group.Go(func() { wait(ctx, c, free) })
			if err := c.Run(ctx); err != nil {
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
func wait(ctx context.Context, c *fleet.Client, free func()) {
	for !c.State().Synced && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	free()
}

// clients are all of this process.
type clients []*fleet.Client

// serve answers with a report; the parameter version is that of the mark to look for.
func (all clients) serve(w http.ResponseWriter, r *http.Request) {
	version, _ := strconv.ParseUint(r.URL.Query().Get("version"), 10, 64)
	var sum report
	for _, c := range all {
		s := c.State()
		sum.Bytes += s.Bytes
		sum.Dials += s.Dials
		sum.Lists += s.Lists
		if !s.Synced {
			continue
		}
		sum.Synced++
		if s.Version >= version {
			sum.Reached++
			sum.Last = max(sum.Last, s.At.UnixNano())
		}
	}
	_ = json.NewEncoder(w).Encode(sum)
}
