// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"context"
	"errors"
	"net"
	"sync"
)

// Serve carries out the calls of the test DLLs that connect to l, each
// connection on its own goroutine, until ctx ends; then it closes l.
func (e *Emulator) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		group.Go(func() {
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			defer conn.Close()
			e.converse(conn)
		})
	}
}

// converse answers one connection until it is closed.
func (e *Emulator) converse(conn net.Conn) {
	for {
		r, err := readRequest(conn)
		if err != nil {
			return
		}
		if _, err := conn.Write(encode(e.Do(r))); err != nil {
			return
		}
	}
}
