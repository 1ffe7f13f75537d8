// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// endpoint answers the first byte of a connection: 'p' with one byte, 'b' with
// bytes without end.
type endpoint struct {
	l    net.Listener
	work sync.WaitGroup
}

const endpointAddr = "198.18.0.1:9000"

func newEndpoint() (*endpoint, error) {
	l, err := net.Listen("tcp", endpointAddr)
	if err != nil {
		return nil, err
	}
	e := &endpoint{l: l}
	e.work.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go serve(c)
			}
		}
	})
	return e, nil
}

func (e *endpoint) close() {
	e.l.Close()
	e.work.Wait()
}

func serve(c net.Conn) {
	defer c.Close()
	var first [1]byte
	for {
		if _, err := c.Read(first[:]); err != nil {
			return
		}
		if first[0] == 'p' {
			if _, err := c.Write(first[:]); err != nil {
				return
			}
			continue
		}
		block := make([]byte, 256<<10)
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	}
}

// workers is how many clients connect at the same time.
const workers = 32

// connections makes connections for a time, each with a question and an answer.
func connections(ctx context.Context, at string, d time.Duration) (made int64, perSecond float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var done, failed atomic.Int64
	var last atomic.Pointer[error]
	var group sync.WaitGroup
	start := time.Now()
	for range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := ask(at); err != nil {
					failed.Add(1)
					last.Store(&err)
					continue
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	if n := failed.Load(); n > done.Load()/1000 {
		return 0, 0, fmt.Errorf("%d of %d connections failed: %w", n, n+done.Load(), *last.Load())
	}
	return done.Load(), float64(done.Load()) / time.Since(start).Seconds(), nil
}

func ask(at string) error {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	return talk(c)
}

func talk(c net.Conn) error {
	b := [1]byte{'p'}
	if _, err := c.Write(b[:]); err != nil {
		return err
	}
	_, err := io.ReadFull(c, b[:])
	return err
}

// streams is how many clients read at the same time.
const streams = 4

// throughput reads as fast as it can for a time.
func throughput(ctx context.Context, at string, d time.Duration) (gigabits float64, err error) {
	var total atomic.Int64
	var group sync.WaitGroup
	errs := make(chan error, streams)
	end := time.Now().Add(d)
	for range streams {
		group.Go(func() {
			c, err := net.Dial("tcp", at)
			if err != nil {
				errs <- err
				return
			}
			defer c.Close()
			c.SetDeadline(end)
			c.Write([]byte{'b'})
			b := make([]byte, 256<<10)
			for ctx.Err() == nil {
				n, err := c.Read(b)
				total.Add(int64(n))
				if err != nil {
					if !errors.Is(err, os.ErrDeadlineExceeded) {
						errs <- err
					}
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		return 0, err
	default:
		return float64(total.Load()) * 8 / d.Seconds() / 1e9, nil
	}
}

// idleConnections returns how much memory of processes an idle connection takes, on
// which something was sent before.
func idleConnections(ctx context.Context, at string, pids []int) (bytes float64, err error) {
	const n = 1000
	sleep(ctx, 2*time.Second) // until earlier connections are closed
	before := resident(pids...)
	for range n {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		if err := talk(c); err != nil {
			return 0, err
		}
	}
	return (resident(pids...) - before) / n, nil
}
