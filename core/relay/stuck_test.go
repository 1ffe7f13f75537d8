// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// Close resets connections whose two directions both wait for an endpoint that
// neither reads nor writes.
func TestCloseResetsStuckConnections(t *testing.T) { eachWay(t, closeResetsStuck) }

func closeResetsStuck(t *testing.T, start starter) {
	s := start(t, Options{})
	end := make(chan struct{})
	deaf := newBackend(t, func(*net.TCPConn) { <-end })
	defer close(end)
	c := dial(t, listen(t, s, model.TCP, balance(deaf.at)).Addr())
	c.SetWriteDeadline(time.Now().Add(time.Second)) // by then all buffers are full
	io.Copy(c, endless{})
	closed := make(chan error, 1)
	go func() { closed <- s.Close(0) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Close does not return")
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }
