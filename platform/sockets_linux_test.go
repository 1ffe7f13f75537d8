// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// Answers open no sockets and no files but those that the first ones have opened and that stay open: all
// commands are answered while nothing can be opened. When a netfilter socket is closed, the kernel holds up
// the next change for some 10 ms.
func TestAnswersKeepTheirSockets(t *testing.T) {
	const text = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.1.10]}]
`
	lab := newNet(t)
	c := config.Default()
	c.NodeName, c.HTTPAddress, c.HealthAddress, c.Mode, c.Manifests = "n1", "", "", config.NFTables, t.TempDir()
	c.Conntrack, c.OOMScoreAdj, c.CountConnections = config.Conntrack{}, nil, true
	if err := os.WriteFile(filepath.Join(c.Manifests, "web.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var p *platform.Proxy
	if err := lab.Do(netns.Node, func() (err error) {
		needModes(t, c.Mode)
		p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	if !p.Ready(ctx) {
		t.Fatal("not ready")
	}
	packet := oracle.Question{From: "198.51.100.7", To: "default/web:80"}
	edit := question.Edit{Objects: model.Objects{Services: []*model.Service{{Name: model.ServiceName{Namespace: "default", Name: "web"}}}}}
	answers := map[string]func() error{
		"explain": func() error { _, err := question.Explain().Of(ctx, p.Known, packet); return err },
		"trace":   func() error { _, err := question.TracePacket().Of(ctx, p.Known, packet); return err },
		"drift": func() error {
			_, err := question.FindDrift().Of(ctx, p.Known, question.DriftRequest{Look: true})
			return err
		},
		"services": func() error {
			_, err := question.ListServices().Of(ctx, p.Known, question.ServicesRequest{})
			return err
		},
		"history": func() error { _, err := question.ListChanges().Of(ctx, p.Known, history.Filter{}); return err },
		"top": func() error {
			_, err := question.CountConnections().Of(ctx, p.Known, question.TopRequest{})
			return err
		},
		"status": func() error { _, err := p.Document(ctx); return err },
		"plan": func() error {
			found, err := question.PreviewEdit().Of(ctx, p.Known, edit)
			if err == nil && (found.Unknown != "" || len(found.Services) != 1) {
				err = fmt.Errorf("%+v", found)
			}
			return err
		},
	}
	ask := func() {
		t.Helper()
		for name, answer := range answers {
			if err := answer(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	ask()
	limit := func(l unix.Rlimit) (before unix.Rlimit) {
		t.Helper()
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &l, &before); err != nil {
			t.Fatal(err)
		}
		return before
	}
	var now unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &now); err != nil {
		t.Fatal(err)
	}
	limit(unix.Rlimit{Max: now.Max})
	defer limit(now)
	if fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("a socket could be opened: %v", errors.Join(err, unix.Close(fd)))
	}
	for range 3 {
		ask()
	}
}
