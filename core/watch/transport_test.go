// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
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
