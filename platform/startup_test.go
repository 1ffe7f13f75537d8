// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
)

// A slow start logs every few seconds what it waits for.
func TestASlowStartLogsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &Proxy{log: slog.New(slog.NewTextHandler(&out, nil)), engine: engine.New(engine.Options{
			Host: func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return nil, nil },
			Mode: dataplane.Mode{Name: config.NFTables}, Log: slog.New(slog.DiscardHandler),
		})}
		c := config.Default()
		p.live.Store(&c)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { p.logProgress(ctx); close(done) }()
		time.Sleep(2*progressInterval + time.Second)
		stop()
		<-done
		if n := strings.Count(out.String(), `msg="start not finished" since=`); n != 2 || !strings.Contains(out.String(), "the data plane has not been read back yet") {
			t.Errorf("%d lines:\n%s", n, &out)
		}
	})
}

// A source tells that it has delivered everything that there was, once.
func TestDeliveryIsTold(t *testing.T) {
	e := engine.New(engine.Options{
		Host: func(*model.Node, []*model.ServiceCIDR) (*model.Host, []model.Problem) { return nil, nil },
		Mode: dataplane.Mode{Name: config.NFTables}, Log: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(t.Context())
	delivered := 0
	folder := source{folder: &manifests.Source{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}}
	err := folder.run(ctx, e, func() {
		delivered++
		stop()
	})
	if err != nil || delivered != 1 {
		t.Errorf("delivered %d times: %v", delivered, err)
	}
}

// That flows could not be opened is said as soon as a mode is in use that needs them.
func TestFlowsThatCannotBeOpened(t *testing.T) {
	var out bytes.Buffer
	p := &Proxy{log: slog.New(slog.NewTextHandler(&out, nil)), flowsErr: errors.New("no conntrack")}
	for _, mode := range []struct {
		dataplane.Mode
		said int
	}{
		{dataplane.Mode{Name: "userspace"}, 0},
		{dataplane.Mode{Name: "nftables", Conntrack: true}, 1},
		{dataplane.Mode{Name: "iptables", Conntrack: true}, 1},
	} {
		p.logFlowsError(mode.Mode)
		if n := strings.Count(out.String(), "opening conntrack failed"); n != mode.said {
			t.Errorf("%s: said %d times, want %d", mode.Name, n, mode.said)
		}
	}
}
