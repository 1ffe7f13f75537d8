// SPDX-License-Identifier: Apache-2.0

// Package fleet plays many nodes for an API server: each Client has a connection of
// its own and follows what a proxy follows, with Tandem's client (core/watch) or as
// kube-proxy 1.37 does it (client-go's informers). Objects are dropped as soon as the
// client has decoded them, so that a thousand clients fit into a machine; what the API
// server sees is the same.
package fleet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-proxy/tandem/core/watch"
)

// The kinds of clients.
const (
	Tandem   = "tandem"
	ClientGo = "client-go"
)

// Client is one node's connection. Its fields are set before Run; its other methods
// are safe for concurrent use.
type Client struct {
	Kind       string // Tandem or ClientGo
	Node       string
	Kubeconfig string
	Mark       string       // the EndpointSlice that is looked at, as NAMESPACE/NAME
	Dial       watch.Dialer // nil is the network's

	bytes  atomic.Int64
	dials  atomic.Int64
	lists  atomic.Pointer[lists]
	synced atomic.Bool

	mu      sync.Mutex
	version uint64    // of the mark
	at      time.Time // when it came
}

// lists counts the lists that the server began to send, streamed or not.
type lists struct{ sent func() int64 }

// State is how far a client is.
type State struct {
	Synced  bool      // it has read everything once
	Version uint64    // of the mark; 0 before it has come
	At      time.Time // when that came
	Bytes   int64     // received, TLS included
	Lists   int64     // lists that the server began to send, streamed or not
	Dials   int64     // connections made
}

// Run follows the API server until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	switch c.Kind {
	case Tandem:
		return c.tandem(ctx)
	case ClientGo:
		return c.clientGo(ctx)
	}
	return fmt.Errorf("kind of client %q: want %s or %s", c.Kind, Tandem, ClientGo)
}

// State returns how far the client is.
func (c *Client) State() State {
	s := State{Synced: c.synced.Load(), Bytes: c.bytes.Load(), Dials: c.dials.Load()}
	if l := c.lists.Load(); l != nil {
		s.Lists = l.sent()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Version, s.At = c.version, c.at
	return s
}

// saw notes a version of the mark.
func (c *Client) saw(version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if version > c.version {
		c.version, c.at = version, time.Now()
	}
}

// dialTimeout is that of watch's own connections.
const dialTimeout = 3 * time.Second

// dial makes a connection whose bytes are counted.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	conn, err := dial(ctx, network, address)
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

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}
