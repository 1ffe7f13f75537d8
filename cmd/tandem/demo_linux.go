// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// demoTime bounds the whole demo.
const demoTime = time.Minute

// demo runs the demo as root of this machine or of a user namespace, or without
// either shows the plan.
func demo(cmd *cobra.Command, inside bool) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP, syscall.SIGPIPE) // a terminal that is closed, and a pager: folders go then, too
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	denied := netns.Available()
	switch {
	case denied == nil:
		return showDemo(ctx, cmd.OutOrStdout())
	case inside:
		return demoPlan(cmd, denied)
	}
	cmd.SetContext(ctx)
	err := inUserNamespace(cmd)
	if errors.As(err, new(noUserNamespaceError)) {
		return demoPlan(cmd, err)
	}
	return err
}

// stage is the demo's network with its proxy.
type stage struct {
	net   *netns.Net
	proxy *platform.Proxy
	dir   string
	out   io.Writer
	done  chan error // the result of the proxy's Run
}

var (
	demoPods  = []string{"10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"}
	demoSpare = netip.MustParseAddrPort("10.244.1.5:8080") // replaces demoGone
	demoGone  = netip.MustParseAddrPort("10.244.1.3:8080")
)

func showDemo(ctx context.Context, out io.Writer) (err error) {
	s := &stage{out: out, done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		err = errors.Join(err, s.close())
	}()
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"a node, five pods and a machine outside, each in its own network namespace", s.build},
		{"tandem reads the manifests and programs the kernel", s.start},
	} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(out, "%8s  %s\n", short(time.Since(begin)), step.what)
	}
	if err := s.programmed(ctx); err != nil {
		return err
	}
	if err := s.measure(); err != nil {
		return err
	}
	if err := s.swap(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe demo leaves nothing behind. Next: tandem plan --manifests DIR\n")
	return nil
}

// build makes the network and starts a server in each pod but the client's.
func (s *stage) build(ctx context.Context) (err error) {
	plan := netns.Plan{
		Node:    []netip.Addr{demoNodePort.Addr()},
		Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")},
		Pods:    []netns.Pod{{Place: "client", Interface: "pod-client", Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.10")}}},
	}
	for i, ip := range demoPods {
		name := fmt.Sprintf("pod%d", i+1)
		plan.Pods = append(plan.Pods, netns.Pod{Place: netns.Place(name), Interface: name, Addrs: []netip.Addr{netip.MustParseAddr(ip)}})
	}
	if s.net, err = netns.New(ctx, plan); err != nil {
		return err
	}
	for _, ip := range demoPods {
		at := netip.AddrPortFrom(netip.MustParseAddr(ip), 8080)
		place, _ := s.net.PlaceOf(at.Addr())
		if _, err := s.net.Serve(place, at, model.TCP); err != nil {
			return err
		}
	}
	return nil
}

// start runs a whole tandem on the node and waits until it has programmed.
func (s *stage) start(ctx context.Context) (err error) {
	if s.dir, err = demoFolder(); err != nil {
		return err
	}
	run := filepath.Join(s.dir, "run")
	if err := os.Mkdir(run, 0o700); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(s.out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	err = s.net.Do(netns.Node, func() (err error) {
		s.proxy, err = platform.OpenIn(ctx, run, demoConfig(s.dir), versionText(), log)
		return err
	})
	if err != nil {
		return err
	}
	go func() { s.done <- s.proxy.Run(ctx) }()
	for !s.proxy.Status().Synced {
		select {
		case err := <-s.done:
			s.done <- nil // again, for the stop of the demo, which waits for it
			return errors.Join(errors.New("the proxy ended"), err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// programmed describes the objects in the kernel.
func (s *stage) programmed(ctx context.Context) error {
	doc, err := s.proxy.Document(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\nmode %s, %d objects in the kernel:\n", doc.Mode, doc.Objects)
	for _, svc := range doc.Services {
		for _, f := range svc.Frontends {
			fmt.Fprintf(s.out, "  %-12s %-12s %s/%s → %d endpoints\n", svc.Name, f.Kind, f.Address, f.Proto, f.Endpoints)
		}
	}
	return nil
}

// measure sends connections through both kinds of address.
func (s *stage) measure() error {
	for _, way := range []struct {
		title string
		from  netns.Place
		to    netip.AddrPort
	}{
		{"from a pod to the cluster IP " + demoClusterIP.String(), "client", demoClusterIP},
		{"from outside to the node port " + demoNodePort.String(), netns.Outside, demoNodePort},
	} {
		begin := time.Now()
		hits, err := s.dial(way.from, way.to, demoConnections)
		if err != nil {
			return err
		}
		chart(s.out, way.title, hits, time.Since(begin))
	}
	return nil
}

// dial makes n connections and counts them by the answering endpoint.
func (s *stage) dial(from netns.Place, to netip.AddrPort, n int) (map[netip.AddrPort]int, error) {
	hits := map[netip.AddrPort]int{}
	for range n {
		a, err := s.net.Dial(netns.Call{From: from, Proto: model.TCP, To: to, Timeout: 5 * time.Second})
		if err != nil {
			return nil, err
		}
		if a.Outcome != netns.Answered {
			return nil, fmt.Errorf("a connection to %s was %s", to, a.Outcome)
		}
		hits[a.Server]++
	}
	return hits, nil
}

// swap replaces an endpoint in the manifest, as Kubernetes does when a pod is
// replaced, and watches for the first connection to the new one.
func (s *stage) swap(ctx context.Context) error {
	file := filepath.Join(s.dir, "endpoints.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = []byte(strings.Replace(string(text), demoGone.Addr().String(), demoSpare.Addr().String(), 1))
	begin := time.Now()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	for {
		hits, err := s.dial("client", demoClusterIP, 1)
		if err != nil {
			return err
		}
		if hits[demoSpare] > 0 {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the new endpoint never answered: %w", ctx.Err())
		}
	}
	arrived := time.Since(begin)
	hits, err := s.dial("client", demoClusterIP, demoConnections)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%s replaced by %s in the manifest: first connection to it after %s\n", demoGone.Addr(), demoSpare.Addr(), short(arrived))
	chart(s.out, "after the change", hits, time.Since(begin)-arrived)
	if hits[demoGone] > 0 {
		return fmt.Errorf("%d connections still reached %s", hits[demoGone], demoGone)
	}
	return nil
}

// close closes everything that was opened, also after an incomplete start.
func (s *stage) close() error {
	var errs []error
	if s.proxy != nil {
		errs = append(errs, <-s.done)
	}
	if s.net != nil {
		errs = append(errs, s.net.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}
