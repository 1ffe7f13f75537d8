// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// client is where connections come from.
type client struct {
	from   string // as rows name it
	origin string // that the proxy must see
	addr   netip.Addr
}

// clients are those of a Service in a family.
func (s *Site) clients(v service, f model.Family) []client {
	all := []client{
		{"node", "host", s.node(f)},
		{"pod", "pod", s.address(f, blockPods, clientPod)},
		{"outside", "outside", s.address(f, blockOutside, outsideOne)},
	}
	if v.here {
		all = append(all, client{"endpoint", "pod", s.address(f, blockPods, endpointHere)})
	}
	if v.ranges {
		all = append(all, client{"outside", "outside", s.address(f, blockOutside, outsideBeside)})
	}
	return all
}

// call is a connection of a client. On the node the kernel chooses the source address.
func (r *Rig) call(c client, proto model.Proto, to netip.AddrPort, limit time.Duration) netns.Call {
	if c.from == "node" {
		return netns.Call{From: netns.Node, Proto: proto, To: to, Timeout: limit}
	}
	place, _ := r.net.PlaceOf(c.addr)
	return netns.Call{From: place, Src: c.addr, Proto: proto, To: to, Timeout: limit}
}

// Test tries every frontend of every Service from every origin.
func (r *Rig) Test(ctx context.Context) (Report, error) {
	begin := time.Now()
	rows := r.rows()
	if err := r.expect(ctx, rows); err != nil {
		return Report{}, err
	}
	slots := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range rows {
		if rows[i].affinity { // connections that start together may each find that there is no endpoint yet
			continue
		}
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rows[i].try(ctx, r)
		})
	}
	running.Wait()
	report := Report{Node: rows[0].explained.Node, Mode: rows[0].explained.Mode}
	for i := range rows {
		if rows[i].affinity {
			rows[i].try(ctx, r)
		}
		report.add(rows[i].Row)
	}
	report.Seconds = time.Since(begin).Seconds()
	return report, ctx.Err()
}

// trial is a Row to be tried.
type trial struct {
	Row
	client   client
	proto    model.Proto
	at       netip.AddrPort
	affinity bool
	health   service // of a health port

	explained question.Explanation // what must happen; not of health ports
}

// expect asks the proxy what must happen.
func (r *Rig) expect(ctx context.Context, rows []*trial) error {
	var asked []*trial
	var questions []oracle.Question
	for _, t := range rows {
		if t.health.name == "" {
			asked = append(asked, t)
			questions = append(questions, oracle.Question{From: t.client.addr.String(), To: t.To + "/" + t.Protocol})
		}
	}
	answers, err := platform.Ask(r.inside(ctx), question.Outcomes(), questions)
	if err != nil {
		return err
	}
	if len(answers) != len(asked) {
		return fmt.Errorf("%d answers to %d questions", len(answers), len(asked))
	}
	for i, e := range answers {
		asked[i].explained = e
	}
	return nil
}

// rows are all trials, by Service.
func (r *Rig) rows() (all []*trial) {
	s := &r.site
	for _, v := range services() {
		for _, f := range s.Families {
			for _, c := range s.clients(v, f) {
				for _, x := range s.frontends(v, f) {
					for _, proto := range protocols() {
						all = append(all, &trial{Row: Row{
							Service: v.fullName(), Policy: v.policy, Kind: x.kind.String(), Protocol: proto.String(), From: c.from, Client: c.addr.String(), To: x.at.String(),
						}, client: c, proto: proto, at: x.at, affinity: v.affinity})
					}
				}
				if v.externalLocal {
					all = append(all, s.healthTrial(v, f, c))
				}
			}
		}
	}
	return all
}

func (s *Site) healthTrial(v service, f model.Family, c client) *trial {
	at := netip.AddrPortFrom(s.node(f), s.healthPort(v))
	return &trial{Row: Row{
		Service: v.fullName(), Policy: v.policy, Kind: "health port", Protocol: model.TCP.String(), From: c.from, Client: c.addr.String(), To: at.String(),
	}, client: c, at: at, health: v}
}

// try tries a row.
func (t *trial) try(ctx context.Context, r *Rig) {
	var wrong string
	var err error
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case t.health.name != "":
		wrong, err = t.askHealth(r)
	default:
		wrong, err = t.connect(r)
	}
	switch {
	case err != nil:
		t.Verdict, t.Detail = Untested, err.Error()
	case wrong != "" && t.Verdict == "":
		t.Verdict, t.Detail = Differs, wrong
	case wrong != "":
		t.Detail += ": " + wrong
	default:
		t.Verdict, t.Detail = OK, ""
	}
}

// patience is the limit for an answer. Where something drops packets, each way takes that long.
const patience = 10 * time.Second

// connect compares the proxy's explanation with real connections. With a gap of the
// mode the Verdict is set.
func (t *trial) connect(r *Rig) (wrong string, err error) {
	e := t.explained
	if e.Service != t.Service || e.Frontend != t.Kind {
		return fmt.Sprintf("tandem takes %s for %q of Service %q", t.To, e.Frontend, e.Service), nil
	}
	if i := slices.IndexFunc(e.Steps, func(s oracle.Step) bool { return s.About == oracle.AboutOrigin }); i < 0 || e.Steps[i].Result != t.client.origin {
		return "", fmt.Errorf("tandem does not classify %s as origin %s: %v", t.client.addr, t.client.origin, e.Steps)
	}
	check := netns.Check{Host: t.client.from == "node", Src: t.client.addr, Proto: t.proto, To: t.at, SessionAffinity: t.affinity}
	check.Patience = patience
	_, check.Real = r.net.PlaceOf(t.at.Addr())
	if check.Want.Fate, err = oracle.ParseFate(e.Outcome); err != nil {
		return "", err
	}
	t.Expected = e.Outcome
	for _, x := range e.Endpoints {
		check.Want.Endpoints = append(check.Want.Endpoints, oracle.Target{Addr: x.Addr, SNAT: x.SNAT || e.HidesClients})
		t.Endpoints = append(t.Endpoints, x.Addr.String())
	}
	if t.Detail = gap(&e); t.Detail != "" {
		t.Verdict = Gap
	}
	wrong, err = check.Run(r.net)
	t.Connections = check.Dials
	return wrong, err
}

// askHealth asks a health port, as load balancers do.
func (t *trial) askHealth(r *Rig) (wrong string, err error) {
	want := http.StatusServiceUnavailable
	if t.health.here {
		want = http.StatusOK
	}
	t.Expected = fmt.Sprint(want)
	const limit = 5 * time.Second
	call := r.call(t.client, model.TCP, t.at, limit)
	client := http.Client{Timeout: limit, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return r.net.Connect(call) },
	}}
	t.Connections = 1
	res, err := client.Get("http://" + t.To + "/healthz")
	if err != nil {
		return "no answer: " + err.Error(), nil
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the server need not abort
	if res.StatusCode != want {
		return fmt.Sprintf("status %d", res.StatusCode), nil
	}
	return "", nil
}
