// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/platform"
)

// monitorVerb is the name of the verb that asks until it is interrupted.
const monitorVerb = "monitor"

func newMonitor() *cobra.Command {
	var r question.MonitorRequest
	var out output
	var service string
	interval := time.Second
	c := &cobra.Command{
		Use:   monitorVerb,
		Short: "Show each new connection to a Service, and rejected packets, as they come",
		Long: fmt.Sprintf(`monitor shows, until it is interrupted, a line for each new connection to a Service that
passes this node: the client, the frontend, the Service and the endpoint that it got; or
that it was rejected or dropped, and why. Its first line says what the mode in use does
not show. Connections that are open already are not shown.

On Linux conntrack reports connections that begin, and nf_tables which rule rejects a
packet, by a temporary table (tandem-monitor-*). Rules of iptables-legacy and IPVS report
nothing: there that table tells which packets go no further, and the reason is that of
policy; with the sysctl net.ipv4.vs.conntrack=0 nothing is told of what IPVS rejects.
Relays know theirs, after they accept; HNS reports none.

The running tandem looks only while it is asked, and 10 s longer. At most %d lines a
second are kept, of which each namespace has its share: how many are left out is said in
their place. -o wide adds the rule, and -o json prints one document for each answer.`, monitor.Most*int(time.Second/monitor.Every)),
		Example: "  tandem monitor\n  tandem monitor -n shop --verdict reject,drop\n  tandem monitor --service default/web --from 10.244.1.0/24\n  tandem monitor -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := r
			if service != "" {
				name, err := serviceArgument([]string{service})
				if err != nil {
					return err
				}
				r.Filter = question.Filter{Namespace: name.Namespace, Name: name.Name}
			}
			if err := r.Check(); err != nil {
				return usageError{err}
			}
			if interval < shortestInterval || interval > longestInterval {
				return usageError{fmt.Errorf("--interval %s: from %s to %s", interval, shortestInterval, longestInterval)}
			}
			return followConnections(cmd, &out, r, interval)
		},
	}
	fs := c.Flags()
	fs.StringVarP(&r.Filter.Namespace, "namespace", "n", "", "only Services of this namespace")
	fs.StringVar(&service, "service", "", "only this Service: NAMESPACE/NAME, or NAME of namespace default")
	fs.StringVar(&r.From, "from", "", "only this client: an address, or a range such as 10.244.0.0/16")
	fs.StringSliceVar(&r.Verdicts, "verdict", nil, "only these verdicts: "+strings.Join(question.Verdicts(), ", "))
	fs.DurationVar(&interval, "interval", interval, "how often the running tandem is asked")
	c.MarkFlagsMutuallyExclusive("namespace", "service")
	complete(c, "verdict", question.Verdicts()...)
	_ = c.RegisterFlagCompletionFunc("service", completeServices(0))
	out.register(c)
	return c
}

// longestInterval is one in which nothing is forgotten, unless there is too much.
const longestInterval = 5 * time.Second

// followConnections shows events until the context of a verb ends. Once there was an answer, an error is shown like one.
func followConnections(cmd *cobra.Command, out *output, r question.MonitorRequest, interval time.Duration) error {
	s := newScreen(cmd.OutOrStdout())
	var since time.Time // of the answers
	failed := ""
	for ctx := cmd.Context(); ; {
		m, err := platform.Ask(ctx, question.WatchConnections(), r)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && since.IsZero():
			return err
		case err != nil:
			if failed != err.Error() {
				s.printf("%s: %v\n", time.Now().Format(time.TimeOnly), err)
			}
			failed = err.Error()
			err = s.flush()
		default:
			begins := !m.Since.Equal(since)
			since, r.Next, failed = m.Since, m.Next, ""
			if begins || len(m.Events) > 0 || m.Forgotten > 0 {
				err = out.printTo(s, report{document: m, text: func(s *screen) { writeMonitor(s, &m, begins) }})
			}
		}
		if err != nil || !sleep.For(ctx, interval) {
			return err
		}
	}
}

// writeMonitor shows events to people; with what is shown at all where that begins.
func writeMonitor(s *screen, m *question.Monitor, begins bool) {
	if begins {
		s.printf("connections to Services through node %s, mode %s, from %s on", m.Node, m.Mode, m.Since.Local().Format(time.TimeOnly))
		if len(m.NotShown) > 0 {
			s.printf("; not shown: %s", printable.Text(strings.Join(m.NotShown, "; ")))
		}
		s.printf("\n")
	}
	if m.Forgotten > 0 {
		s.printf("%s forgotten before they were asked for: a shorter --interval shows more\n", printable.Count(int(m.Forgotten), "line"))
	}
	for i := range m.Events {
		writeEvent(s, &m.Events[i])
	}
}

func writeEvent(s *screen, e *monitor.Event) {
	at := e.At.Local().Format("15:04:05.000")
	of := "of all namespaces"
	if e.Namespace != "" {
		of = "of namespace " + e.Namespace
	}
	switch {
	case e.Unread:
		s.printf("%s  connections left out: the kernel had more to report than was read\n", at)
		return
	case e.LeftOut > 0:
		s.printf("%s  %s %s left out\n", at, printable.Count(e.LeftOut, "connection"), of)
		return
	}
	s.printf("%s  %-4s %s -> ", at, e.Protocol, e.Client)
	if e.Frontend != "" {
		s.printf("%s ", e.Frontend)
	}
	s.printf("%s", e.Service)
	if e.Port != "" {
		s.printf(":%s", e.Port)
	}
	if e.Kind != "" {
		s.printf(" (%s)", e.Kind)
	}
	switch e.Verdict {
	case oracle.Forward.String():
		s.printf("  %s %s\n", s.paint(green, "FORWARD"), e.Endpoint)
	default:
		s.printf("  %s %s", s.paint(red, strings.ToUpper(e.Verdict)), printable.Text(e.Why))
		if e.Rule != "" && s.wide {
			s.printf(" (%s)", printable.Text(e.Rule))
		}
		s.printf("\n")
	}
}
