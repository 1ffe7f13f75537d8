// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

// mostExisting bounds the frontends of a test.
const mostExisting = 5000

// Existing connects from this node to the TCP frontends of Services that the tandem of
// this node serves, and closes the connections again. It works on every system. Of a
// connection that is refused it is not known whether an endpoint has done so itself.
func Existing(ctx context.Context, match func(service string) bool) (Report, error) {
	begin := time.Now()
	doc, err := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
	if err != nil {
		return Report{}, err
	}
	rows, omitted := existingRows(doc.Services, match)
	report := Report{Node: doc.Node, Mode: doc.Mode, Omitted: omitted}
	slots := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for _, row := range rows {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			row.connect(ctx)
		})
	}
	running.Wait()
	for _, row := range rows {
		report.add(*row)
	}
	report.Seconds = time.Since(begin).Seconds()
	return report, ctx.Err()
}

// existingRows are the TCP frontends of Services up to a limit, and how many there are beyond it.
func existingRows(services []question.ServiceDetail, match func(service string) bool) (rows []*Row, omitted int) {
	for _, s := range services {
		if !match(s.Name) {
			continue
		}
		for _, f := range s.Frontends {
			switch {
			case f.Proto != model.TCP.String():
			case len(rows) == mostExisting:
				omitted++
			default:
				rows = append(rows, &Row{Service: s.Name, Kind: f.Kind, Protocol: f.Proto, From: "node", To: f.Address})
			}
		}
	}
	return rows, omitted
}

// connect tries an existing frontend.
func (r *Row) connect(ctx context.Context) {
	if err := r.resolve(ctx); err != nil {
		r.Verdict, r.Detail = Untested, err.Error()
		return
	}
	got := r.dial(ctx)
	switch {
	case ctx.Err() != nil:
		r.Verdict, r.Detail = Untested, ctx.Err().Error()
	case got == r.Expected || r.Expected == oracle.Pass.String():
		r.Verdict, r.Detail = OK, ""
	case r.Detail != "":
		r.Verdict = Gap
	default:
		r.Verdict, r.Detail = Differs, map[string]string{
			oracle.Forward.String(): "a connection was made",
			oracle.Reject.String():  "the connection was refused, by the proxy or by an endpoint itself",
			oracle.Drop.String():    "no answer within " + dialTime.String(),
		}[got]
	}
}

// resolve completes the address of a node port, and asks what must happen. Detail is set
// to what the mode cannot do.
func (r *Row) resolve(ctx context.Context) error {
	if port, node := strings.CutPrefix(r.To, "*:"); node {
		a, err := mainAddress(ctx, model.IPv4)
		if err != nil {
			a, err = mainAddress(ctx, model.IPv6)
		}
		if err != nil {
			return err
		}
		r.To = net.JoinHostPort(a.String(), port)
	}
	e, err := platform.Ask(ctx, question.Explain(), oracle.Question{From: "host", To: r.To})
	if err != nil {
		return err
	}
	r.Client, r.Expected = e.From, e.Outcome
	for _, t := range e.Endpoints {
		r.Endpoints = append(r.Endpoints, t.Addr.String())
	}
	r.Detail = gap(&e)
	return nil
}

// gap is what the mode cannot do of what is explained; empty for nothing but that it hides
// clients, which does not keep a connection from its endpoint. Other problems of a Service are in
// the explanation's outcome already.
func gap(e *question.Explanation) string {
	var gaps []string
	for _, p := range e.Problems {
		if p.Reason == model.WhyUnsupported.String() {
			gaps = append(gaps, p.Detail)
		}
	}
	if len(gaps) == 0 || len(gaps) == 1 && e.HidesClients {
		return ""
	}
	return gaps[0]
}

// dialTime is how long a connection to an existing frontend may take.
const dialTime = 3 * time.Second

// dial is the fate of a connection.
func (r *Row) dial(ctx context.Context) string {
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", r.To)
	r.Connections++
	switch {
	case err == nil:
		conn.Close()
		return oracle.Forward.String()
	case errors.Is(err, syscall.ECONNREFUSED), strings.Contains(err.Error(), "refused"): // Windows has an error of its own
		return oracle.Reject.String()
	}
	return oracle.Drop.String()
}

// mainAddress is the address of this node that tandem takes for the main one.
func mainAddress(ctx context.Context, f model.Family) (netip.Addr, error) {
	to := map[model.Family]string{model.IPv4: "192.0.2.1:9", model.IPv6: "[2001:db8::1]:9"}[f]
	e, err := platform.Ask(ctx, question.Explain(), oracle.Question{From: "host", To: to})
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(e.From)
}
