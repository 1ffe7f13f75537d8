// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/platform"
)

func newExplain() *cobra.Command {
	var flags configFlags
	var out output
	var from snapshotFlag
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
number; /udp or /sctp may follow.`,
		Example: "  tandem explain pod default/web:80\n  tandem explain 198.51.100.7 203.0.113.10:443\n  tandem explain --manifests ./services outside 192.0.2.1:30080",
		Args:    twoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := oracle.Question{From: args[0], To: args[1]}
			e, err := askExplain(cmd, &flags, &from, q)
			if err != nil {
				return err
			}
			return out.print(cmd, reportOf(e))
		},
	}
	flags.register(c)
	out.register(c)
	from.register(c)
	c.MarkFlagsMutuallyExclusive("snapshot", "manifests")
	return c
}

// askExplain asks the running tandem, or what manifests or a snapshot mean.
func askExplain(cmd *cobra.Command, flags *configFlags, from *snapshotFlag, q oracle.Question) (question.Explanation, error) {
	file, err := from.read(cmd)
	if err != nil {
		return question.Explanation{}, err
	}
	if file != nil {
		w, _, err := replayed(file)
		if err != nil {
			return question.Explanation{}, err
		}
		return question.Explain(w.subject(), q)
	}
	if !cmd.Flags().Changed("manifests") {
		return platform.Explain().Ask(cmd.Context(), q)
	}
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return question.Explanation{}, err
	}
	printNotes(cmd, notes)
	w, err := readWorld(cmd, c)
	if err != nil {
		return question.Explanation{}, err
	}
	return question.Explain(w.subject(), q)
}

// subject is the world as questions are asked of it.
func (w *world) subject() question.Subject {
	return question.Subject{
		Mode: string(w.mode.Name), Host: w.host, Services: w.services, Gaps: w.plan.Gaps, Implementation: w.plan.Implementation,
	}
}

func newTrace() *cobra.Command {
	var flags configFlags
	var out output
	var from snapshotFlag
	var live bool
	var timeout time.Duration
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
packet, the kernel reports each rule that it meets in nf_tables, and conntrack reports
its destination and source, in all modes. That needs root, and Linux: HNS reports no
single packets.

FROM and TO are as for tandem explain.`,
		Example: "  tandem trace pod default/web:80\n  tandem trace outside 192.0.2.1:30080 -o json\n  tandem trace host default/web:80 --live",
		Args:    twoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout <= 0 || timeout > maxLive {
				return usageError{fmt.Errorf("--timeout %s: must be more than 0 and at most %s", timeout, maxLive)}
			}
			t, err := askTrace(cmd, &flags, &from, oracle.Question{From: args[0], To: args[1]})
			if err != nil {
				return err
			}
			if live {
				if err := followLive(cmd, &t, args[0], timeout); err != nil {
					return err
				}
			}
			err = out.print(cmd, reportOf(t))
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
	flags.register(c)
	from.register(c)
	c.Flags().BoolVar(&live, "live", false, "follow a real packet, too")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Second, fmt.Sprintf("with --live: how long to wait, up to %s", maxLive))
	c.MarkFlagsMutuallyExclusive("snapshot", "manifests")
	c.MarkFlagsMutuallyExclusive("snapshot", "live")
	out.register(c)
	return c
}

// maxLive bounds the time that a packet is waited for.
const maxLive = 10 * time.Minute

// followLive adds the fate of a real packet to a trace.
func followLive(cmd *cobra.Command, t *question.Trace, from string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	l, err := platform.Live(ctx, *t, from)
	if err != nil {
		return fmt.Errorf("--live: %w", err)
	}
	t.Live = &l
	return nil
}

// askTrace asks the running tandem, or a snapshot of one; or reads the data plane of the mode that is
// configured, and compares it with what manifests mean.
func askTrace(cmd *cobra.Command, flags *configFlags, from *snapshotFlag, q oracle.Question) (t question.Trace, err error) {
	if file, err := from.read(cmd); err != nil || file != nil {
		if err == nil {
			t, err = platform.TraceOf(file, q)
		}
		return t, err
	}
	if !cmd.Flags().Changed("manifests") {
		return platform.Trace().Ask(cmd.Context(), q)
	}
	c, notes, err := flags.config(needManifests, needMode)
	if err != nil {
		return t, err
	}
	printNotes(cmd, notes)
	w, err := readWorld(cmd, c)
	if err != nil {
		return t, err
	}
	b, err := w.mode.Open(cmd.Context(), c, slog.New(slog.DiscardHandler))
	if err != nil {
		return t, fmt.Errorf("mode %s: %w", w.mode.Name, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	b.SetHost(w.host)
	for _, p := range w.ports {
		b.Update([]model.Delta{{New: p}})
	}
	t, _, err = question.Follow(w.subject(), q, func(ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
		return b.Trace(cmd.Context(), ports, p)
	})
	return t, err
}

// needMode is what trace needs with --manifests: which data plane to read.
func needMode(c *config.Config) []config.Finding {
	if c.Mode != config.Auto {
		return nil
	}
	return []config.Finding{{Name: "--proxy-mode", Text: "required with --manifests: the mode whose data plane is read"}}
}
