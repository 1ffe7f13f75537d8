// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

func newExplain(k *cluster) *cobra.Command {
	var out output
	from := origin{flags: new(configFlags), cluster: k}
	c := &cobra.Command{
		Use:   "explain FROM TO",
		Short: "Explain why a connection goes where it does, or fails: each decision with its reason",
		Long: `explain follows a connection through what the running tandem knows: whose address
it is for, source ranges, traffic policy, endpoints, SNAT, and the objects of the
data plane that implement it. With --manifests it explains those instead, without a
running tandem. It shows what must happen; tandem trace shows what the kernel does.

FROM is host (this node), pod (any pod of this node), outside, or an address, with
%INTERFACE behind it where pods are recognised by their interface.
TO is ADDRESS:PORT, NAMESPACE/SERVICE or NAMESPACE/SERVICE:PORT with the port's name or
number; /udp or /sctp may follow. SERVICE or SERVICE:PORT alone is one of namespace default.`,
		Example: "  tandem explain pod default/web:80\n  tandem explain 198.51.100.7 203.0.113.10:443\n  tandem explain --manifests ./services outside 192.0.2.1:30080",
		Args:    twoArgs, ValidArgsFunction: completeConnection,
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := ask(cmd, &from, question.Explain(), oracle.Question{From: args[0], To: targetArgument(args[1])})
			if err != nil {
				return err
			}
			return out.print(cmd, report{document: e, text: func(s *screen) { writeExplanation(s, &e) }})
		},
	}
	from.register(c)
	out.register(c)
	return c
}

func newTrace(k *cluster) *cobra.Command {
	var out output
	from := origin{flags: new(configFlags), opens: true, cluster: k}
	live, timeout := false, 5*time.Second
	c := &cobra.Command{
		Use:   "trace FROM TO",
		Short: "Follow a connection through the rules that the kernel or HNS really has",
		Long: `trace reads the data plane back and follows a connection through it: what happens,
and, where that is not what tandem explain says, the objects that differ, first those
that alone change the outcome. With --manifests it compares the data plane with
what these mean, with no tandem running; with --snapshot it follows the connection
through the objects that were there when that was taken. It changes nothing. The exit
code is 3 when something else happens than should.

With --live it follows a real packet, too: where FROM is this node, a SYN or an empty
datagram that it sends, else the next first packet of such a connection that a pod or
another machine sends until --timeout. A temporary table (tandem-trace-*) marks that
packet, the kernel reports each nf_tables rule that it traverses, which is shown with its
text, also if it is another program's, and conntrack reports its destination and source,
in all modes. That needs root, and Linux: HNS reports no single packets.

FROM and TO are as for tandem explain.`,
		Example: "  tandem trace pod default/web:80\n  tandem trace outside 192.0.2.1:30080 -o json\n  tandem trace host default/web:80 --live",
		Args:    twoArgs, ValidArgsFunction: completeConnection,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 || timeout > maxLive {
				return usageError{fmt.Errorf("--timeout %s: must be more than 0 and at most %s", timeout, maxLive)}
			}
			t, err := ask(cmd, &from, question.TracePacket(), oracle.Question{From: args[0], To: targetArgument(args[1])})
			if err != nil {
				return err
			}
			if live {
				if err := followLive(cmd, &t, args[0], timeout); err != nil {
					return err
				}
			}
			err = out.print(cmd, report{document: t, text: func(s *screen) { writeTrace(s, &t) }})
			switch {
			case err != nil:
				return err
			case !t.OK():
				return errDiffers
			case live && !t.Live.Seen():
				return fmt.Errorf("no packet from %s to %s was seen within %s", args[0], args[1], timeout)
			}
			return nil
		},
	}
	if k == nil { // a packet of this machine
		c.Flags().BoolVar(&live, "live", live, "follow a real packet, too")
		c.Flags().DurationVar(&timeout, "timeout", timeout, fmt.Sprintf("with --live: how long to wait, up to %s", maxLive))
	}
	from.register(c, "live")
	out.register(c)
	return c
}

// maxLive bounds the time that a packet is waited for.
const maxLive = 10 * time.Minute

// followLive adds the fate of a real packet to a trace.
func followLive(cmd *cobra.Command, t *question.Trace, from string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	defer waiting(cmd, fmt.Sprintf("waiting up to %s for a packet from %s to %s/%s", timeout, from, t.To, t.Protocol))()
	l, err := platform.Live(ctx, *t, from)
	if err != nil {
		return fmt.Errorf("--live: %w", err)
	}
	t.Live = &l
	return nil
}

// writeExplanation shows an explanation to people.
func writeExplanation(s *screen, e *question.Explanation) {
	s.printf("%s -> %s/%s on node %s, mode %s\n\n", e.From, e.To, e.Protocol, e.Node, e.Mode)
	for _, step := range e.Steps {
		s.printf("  %-14s %-17s %s\n", step.About, step.Result, printable.Text(step.Why))
	}
	s.printf("\n%s\n", resultOf(e))
	writeTargets(s, e.Endpoints)
	if len(e.Objects) > 0 {
		s.printf("\nimplemented by %s:\n", printable.Count(len(e.Objects), "object"))
	}
	writeObjects(s, e.Objects)
	if e.Missing {
		s.printf("\nNOT PROGRAMMED: mode %s does not serve this frontend\n", e.Mode)
	}
	if e.Failing != "" {
		s.printf("\nFAILING: this is not programmed: %s\n", printable.Text(e.Failing))
	}
	for _, p := range e.Problems {
		writeProblem(s, p, e.Service)
	}
}

func resultOf(e *question.Explanation) string {
	switch e.Outcome {
	case oracle.Forward.String():
		return "FORWARD: to one of these endpoints:"
	case oracle.Reject.String():
		return "REJECT: the client gets \"connection refused\": " + e.Why
	case oracle.Drop.String():
		return "DROP: the client gets no answer: " + e.Why
	}
	return "PASS: tandem does nothing with it: " + e.Why
}

func writeTargets(s *screen, all []oracle.Target) {
	first(s, all, listed, "  and %d more", func(t oracle.Target) {
		sees := "sees the client"
		if t.SNAT {
			sees = "sees this node (SNAT)"
		}
		if t.Pod != "" {
			sees += ", pod " + printable.Text(t.Pod)
		}
		s.printf("  %-24s %s\n", t.Addr, sees)
	})
}

func writeObjects(s *screen, all []dataplane.Object) {
	first(s, all, listed, "  and %d more (-o json)", func(o dataplane.Object) {
		s.printf("  %s\n", printable.Text(o.Name))
		for part := range strings.SplitSeq(o.Text, "\n") {
			if part != "" && part != o.Name {
				s.printf("      %s\n", printable.Text(part))
			}
		}
	})
}

// writeTrace shows a trace to people.
func writeTrace(s *screen, t *question.Trace) {
	s.printf("%s -> %s/%s on node %s, mode %s: %d objects read back in %.1f ms\n\n", t.From, t.To, t.Protocol, t.Node, t.Mode, t.Objects, t.TookMS)
	s.printf("must:  %s\n", question.Fate(t.Outcome, t.Endpoints))
	s.printf("does:  %s\n", question.Fate(t.Installed, t.Reaches))
	s.printf("\n")
	for _, f := range t.Findings() {
		s.printf("%s\n", printable.Text(f))
	}
	writeTraceDifferences(s, t)
	for _, o := range t.Others {
		s.printf("! %s\n", printable.Text(o))
	}
	if t.Live != nil {
		writeLive(s, t.Live)
	}
	if t.Failing != "" {
		s.printf("FAILING: this is not programmed: %s\n", printable.Text(t.Failing))
	}
}

func writeLive(s *screen, l *question.Live) {
	if !l.Seen() {
		s.printf("\nlive:  no such packet was seen\n")
		return
	}
	s.printf("\nlive:  %s from %s", l.Outcome, l.Client)
	if l.Endpoint != "" {
		s.printf(" to %s, which sees %s", l.Endpoint, l.Sees)
	}
	s.printf(", after %.1f ms\n", l.TookMS)
	for _, p := range l.Path {
		s.printf("       %s\n", printable.Text(p))
	}
}

func writeTraceDifferences(s *screen, t *question.Trace) {
	for i, d := range t.Differences {
		if i == listed {
			s.printf("and %d more objects (-o json)\n", len(t.Differences)-listed)
			return
		}
		decides := ""
		if i < t.Deciding {
			decides = ": this alone changes the outcome"
		}
		writeDifference(s, d, decides)
	}
}

func writeDifference(s *screen, d question.Difference, more string) {
	s.printf("%-10s %s%s\n", d.State, printable.Text(d.Object), more)
	for _, side := range [][2]string{{"wanted", d.Wanted}, {"found", d.Found}} {
		for part := range strings.SplitSeq(side[1], "\n") {
			if part != "" {
				s.printf("           %-7s %s\n", side[0], printable.Text(part))
				side[0] = ""
			}
		}
	}
}
