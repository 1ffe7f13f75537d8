// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/core/ui"
	"github.com/tandem-proxy/tandem/platform"
)

// tandem ui serves pages of core/ui on loopback: about a snapshot, or about all nodes of a cluster.
//
//	             ┌─ a round over all nodes ─▶ short reports, kept ─▶ the page of all nodes
//	survey ──────┤
//	             └─ a request about a node ─▶ its questions, when they are asked ─▶ that node's pages
//
// Both go through the API server, with the user's rights, as all of kubectl tandem does: see cluster.go.

// newUI is tandem ui; of a cluster, kubectl tandem ui.
func newUI(k *cluster) *cobra.Command {
	var from origin
	var address string
	whole := k != nil
	c := &cobra.Command{
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !at.Addr().IsLoopback() {
				return usageError{fmt.Errorf("--listen %s: must be an address of loopback with a port", address)}
			}
			if whole {
				return serveCluster(cmd, at, k)
			}
			d, err := from.document(cmd)
			if err != nil {
				return err
			}
			if d == nil {
				return usageError{errors.New("--snapshot or --cluster is required; the pages of the running tandem are at /ui of its metrics address")}
			}
			in := ui.InputOf(d)
			file := ui.Of(func(context.Context) (*ui.Input, error) { return in, nil })
			file.Recorded = d.Recorded != nil
			return serveUI(cmd, at, ui.Handler(file), "/ui", 30*time.Second)
		},
	}
	c.Flags().StringVar(&address, "listen", "127.0.0.1:0", "where to serve it; port 0 chooses one")
	if whole {
		c.Use, c.Short = "ui", "Serve pages about all nodes, on this machine"
		c.Long = `ui serves pages on this machine about the tandems of all nodes, until interrupted: versions,
modes, lag, drift and problems of all, and of each node its Services, changes, and
explanations. Nodes are queried through the API server while a page is open, with the same
rights as by the other verbs. While it runs, every user of this machine can read the pages.`
		c.Example = "  kubectl tandem ui\n  kubectl tandem ui --listen 127.0.0.1:8080"
		return c
	}
	c.Use, c.Short = "ui", "Serve pages about a snapshot, or about all nodes of a cluster; a running tandem serves its own at /ui"
	c.Long = `ui serves pages on this machine about the Services, endpoints and changes of a
snapshot, until interrupted; with --cluster about all nodes of a cluster, as kubectl tandem
ui does. Those of the running tandem are at /ui of its metrics address, for this machine
alone: http://127.0.0.1:10249/ui.`
	c.Example = "  tandem ui --snapshot node-1.snapshot\n  tandem ui --cluster --kubeconfig admin.conf"
	from.register(c)
	k = newCluster()
	of := pflag.NewFlagSet("", pflag.ContinueOnError)
	k.register(of)
	c.Flags().BoolVar(&whole, "cluster", false, "serve pages about all nodes of a cluster, asked through its API server")
	c.MarkFlagsMutuallyExclusive("snapshot", "cluster")
	of.VisitAll(func(f *pflag.Flag) {
		f.Usage = "with --cluster: " + f.Usage
		c.Flags().AddFlag(f)
		c.MarkFlagsMutuallyExclusive("snapshot", f.Name)
	})
	complete(c, "via", ways()...)
	return c
}

// serveCluster serves pages about all nodes of a cluster until the command is interrupted.
func serveCluster(cmd *cobra.Command, at netip.AddrPort, k *cluster) error {
	to, err := k.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	s := newSurvey(ctx, k, to)
	defer s.end(cancel)
	if _, err := s.reach(ctx); err != nil { // later it is on the page alone
		return err
	}
	pages := ui.Cluster{Name: to.name, Nodes: s.reports, Node: s.node}
	return serveUI(cmd, at, ui.ClusterHandler(pages), "/ui", 2*k.timeout+3*pageWait) // the list of pods, then three questions or one and a trace
}

// survey keeps what the tandems of a cluster have last reported, and asks them again while a page is open. It is safe
// for concurrent use.
type survey struct {
	k     *cluster
	ctx   context.Context // of rounds, which outlast the request that begins one
	reach func(context.Context) (reached, error)
	turns sleep.Turn    // of requests for the pages of single nodes
	wait  time.Duration // for a round, before what there is is shown
	page  deadline      // for an answer to a page of a node

	rounds sync.WaitGroup

	mu    sync.Mutex
	known map[string]question.NodeReport // by pod
	begun time.Time                      // the last round
	done  chan struct{}                  // closed at its end
	err   error                          // of its list of pods
}

// reached is how the nodes are reached at a moment.
type reached struct {
	session
	pods []pod
}

// The times of a survey.
const (
	roundEvery = 8 * time.Second // at most
	roundWait  = 2 * time.Second // of a page for a round that has begun
	podsAge    = 5 * time.Second // of the list of pods
	pageWait   = 8 * time.Second // for an answer to a page of a node, which asks three times at most; a trace may take longer
)

func newSurvey(ctx context.Context, k *cluster, to session) *survey {
	s := &survey{k: k, ctx: ctx, turns: make(sleep.Turn, maxAsked), wait: roundWait, page: k.deadline(), known: map[string]question.NodeReport{}}
	if pageWait < k.timeout {
		s.page = deadline{pageWait, fmt.Errorf("no answer within %s, as long as this page waits", pageWait)}
	}
	s.reach = health.Shared(func(ctx context.Context) (r reached, err error) { // one at a time
		ctx, cancel := context.WithTimeout(ctx, k.timeout)
		defer cancel()
		if err := k.choose(ctx, &to); err != nil {
			return r, err
		}
		pods, err := k.pods(ctx, to, "")
		return reached{to, pods}, err
	}, podsAge)
	return s
}

// end ends the round that runs, and lets no other begin.
func (s *survey) end(cancel func()) {
	s.mu.Lock()
	cancel() // a round begins under the lock, and none after this
	s.mu.Unlock()
	s.rounds.Wait()
}

// reports are those that there are now, with one for each node that was not asked yet. They are asked for again, and a
// while is waited for that.
func (s *survey) reports(ctx context.Context) ([]question.NodeReport, error) {
	patience := time.NewTimer(s.wait)
	defer patience.Stop()
	select {
	case <-s.round():
	case <-patience.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]question.NodeReport, 0, len(s.known))
	for _, r := range s.known {
		all = append(all, r)
	}
	return all, s.err
}

// round begins to ask all nodes where that is due, and returns when the last round ends.
func (s *survey) round() (done <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := s.done == nil
	select {
	case <-s.done:
		ended = true
	default:
	}
	if !ended || time.Since(s.begun) < roundEvery || s.ctx.Err() != nil {
		return s.done
	}
	end := make(chan struct{})
	s.begun, s.done = time.Now(), end
	s.rounds.Go(func() {
		defer close(end)
		s.ask()
	})
	return end
}

// ask asks all nodes, some at a time.
func (s *survey) ask() {
	now, err := s.reach(s.ctx)
	s.mu.Lock()
	if s.err = err; err == nil {
		known := s.known
		s.known = map[string]question.NodeReport{}
		for _, p := range now.pods {
			r, ok := known[p.Metadata.Name]
			if !ok {
				r.Node = question.Node{Node: p.Spec.NodeName, Pod: p.Metadata.Name}
			}
			s.known[p.Metadata.Name] = r
		}
	}
	s.mu.Unlock()
	atOnce(now.pods, func(p pod) {
		r := s.report(now.session, p)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.known[p.Metadata.Name] = r
	})
}

// report is that of a pod's tandem, or why there is none.
func (s *survey) report(to session, p pod) (r question.NodeReport) {
	node, name := p.Spec.NodeName, p.Metadata.Name
	err := s.k.status(s.ctx, to, p, question.Short(), func(answer io.Reader) (err error) {
		r, err = question.ReportNode(node, name, answer)
		return err
	})
	if err != nil {
		r = question.NodeReport{Node: question.Unanswered(node, name, err)}
	}
	return r
}

// node is the source of a node's pages.
func (s *survey) node(ctx context.Context, name string) (from ui.Source, err error) {
	now, err := s.reach(ctx)
	if err != nil {
		return from, err
	}
	i := slices.IndexFunc(now.pods, func(p pod) bool { return p.Spec.NodeName == name })
	if i < 0 {
		return from, fmt.Errorf("no pod of tandem on node %q", name)
	}
	through := inTurn{carrier{s.k, now.session, now.pods[i], maxEach}, s.turns}
	return ui.Source{
		Status:   asked(through, s.page, platform.Status),
		Services: asked(through, s.page, query(question.ListServices())),
		Changes:  asked(through, s.page, query(question.ListChanges())),
		Explain:  asked(through, s.page, query(question.Explain())),
		Top:      asked(through, s.page, query(question.CountConnections())),
		Trace:    asked(through, s.k.deadline(), query(question.TracePacket())), // reads the data plane, when it is its turn there
	}, nil
}

// query is how the question of a verb is asked.
func query[P, A any](v question.Verb[P, A]) func(context.Context, P) (A, error) {
	return func(ctx context.Context, parameters P) (A, error) { return platform.Ask(ctx, v, parameters) }
}

// asked asks the tandem that a carrier leads to, for which it waits so long, its turn included.
func asked[P, A any](through http.RoundTripper, d deadline, ask func(context.Context, P) (A, error)) func(context.Context, P) (A, error) {
	return func(ctx context.Context, parameters P) (answer A, err error) {
		ctx, cancel := d.limit(platform.Through(ctx, through))
		defer cancel()
		if answer, err = ask(ctx, parameters); err != nil {
			err = cmp.Or(context.Cause(ctx), err)
		}
		return answer, err
	}
}

// inTurn carries so many requests at a time as there are turns. The turn of one ends with the reading of its answer.
type inTurn struct {
	http.RoundTripper
	turns sleep.Turn
}

func (c inTurn) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.turns.Take(req.Context()) != nil {
		return nil, context.Cause(req.Context())
	}
	give := sync.OnceFunc(c.turns.Give)
	res, err := c.RoundTripper.RoundTrip(req)
	if err != nil {
		give()
		return nil, err
	}
	body := res.Body
	res.Body = bodyOf(body, func() error {
		defer give()
		return body.Close()
	})
	return res, nil
}

// serveUI serves pages until the command is interrupted, and prints the address of the first. A page takes so long at most.
func serveUI(cmd *cobra.Command, at netip.AddrPort, pages http.Handler, first string, longest time.Duration) error {
	l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", at.String())
	if err != nil {
		return err
	}
	server := http.Server{
		Handler: health.RejectRebinding(pages), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: longest, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() })
	defer stop()
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s%s\n", l.Addr(), first)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
