// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a TCP connection of a client that goroutines serve, and the one to its
// endpoint. It is safe for concurrent use.
type conn struct {
	*shared
	client     *net.TCPConn
	by         *share
	directions atomic.Int32 // that still run
	lastData   atomic.Int64 // a moment, where the system does not know; see silence

	mu    sync.Mutex
	up    *net.TCPConn // nil while it is dialled
	ended bool         // by a reset
}

// newConn registers a client's connection, so that it can be reset.
func (s *shared) newConn(client *net.TCPConn, by *share) *conn {
	c := &conn{shared: s, client: client, by: by}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if s.ctx.Err() != nil {
		c.reset()
	}
	return c
}

// close unregisters a connection whose sockets are closed.
func (c *conn) close() {
	c.shared.mu.Lock()
	delete(c.conns, c)
	c.shared.mu.Unlock()
	c.dismiss(c.by)
}

// reset closes both sockets with a reset: the goroutines end by that.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	reset(c.client)
	if c.up != nil {
		reset(c.up)
	}
}

// dialAndTransfer serves a client. The caller's goroutine continues with one of the
// two directions, which saves a third goroutine. The first tries to reach an endpoint
// may have been made already.
func (c *conn) dialAndTransfer(to choice, tries int) {
	up, err := c.dial(&to, tries)
	if err != nil {
		c.stats.failed.Add(1)
		c.options.Log.Debug("connection reset: no endpoint reached", "port", c.by.port, "client", to.client, "err", err)
		c.reset()
		c.close()
		return
	}
	c.transfer(up, nil, nil)
}

// transfer carries both directions until that of the endpoint has ended. It does
// not wait for the client's. Some data may have been read already.
func (c *conn) transfer(up *net.TCPConn, fromClient, fromUp []byte) {
	c.mu.Lock()
	c.up = up
	if c.ended {
		reset(up)
	}
	c.mu.Unlock()
	c.lastData.Store(c.moment(time.Now())) // before a sweep may see it
	c.directions.Store(2)
	c.stats.open.Add(1)
	c.work.Go(func() { c.direction(up, c.client, fromClient) })
	c.direction(c.client, up, fromUp)
}

// direction carries all data from src to dst. The end of src is passed on and
// leaves the other direction unchanged; an error ends both.
func (c *conn) direction(dst, src *net.TCPConn, data []byte) {
	var err error
	if len(data) > 0 {
		_, err = dst.Write(data)
	}
	if err == nil {
		err = c.copy(dst, src)
	}
	if err != nil {
		c.reset()
	}
	if c.directions.Add(-1) > 0 {
		_ = dst.CloseWrite() // the direction that ends last closes both instead
		return
	}
	_ = c.client.Close()
	_ = c.up.Close()
	c.stats.open.Add(-1)
	c.close()
}

// copy copies until src ends. It holds a buffer only while there is data, and
// splices what comes faster than it can be copied.
func (c *conn) copy(dst, src *net.TCPConn) error {
	in, err := c.newStream(src, &c.buffers)
	if err != nil {
		return err
	}
	for {
		data, err := in.next()
		if err == nil {
			_, err = dst.Write(data)
		}
		in.done()
		if err == nil && zeroCopy && len(data) == chunkSize {
			err = splice(dst, src)
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		c.lastData.Store(c.moment(time.Now()))
	}
}

// maxSplice is how much is spliced before returning to copying, if the stream is slow
// by then: splice(2) needs a pipe for each connection.
const maxSplice = 8 << 20

func splice(dst, src *net.TCPConn) error {
	if err := src.SetReadDeadline(time.Now().Add(maxPause)); err != nil {
		return err
	}
	_, err := dst.ReadFrom(&io.LimitedReader{R: src, N: maxSplice})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return src.SetReadDeadline(time.Time{})
}

// share implements connection.
func (c *conn) share() *share { return c.by }

// activity implements connection.
func (c *conn) activity(now time.Time) (idle time.Duration, halfClosed bool) {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	if up == nil || c.directions.Load() == 0 {
		return 0, false // being dialled, or about to be closed
	}
	halfClosed = c.directions.Load() == 1
	client, known := silence(c.client)
	endpoint, also := silence(up)
	if !known || !also {
		return now.Sub(c.timeOf(c.lastData.Load())), halfClosed
	}
	return min(client, endpoint), halfClosed
}
