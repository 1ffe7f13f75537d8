// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
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
func askExplain(cmd *cobra.Command, flags *configFlags, from *snapshotFlag, q oracle.Question) (status.Explanation, error) {
	file, err := from.read(cmd)
	if err != nil {
		return status.Explanation{}, err
	}
	if file != nil {
		w, _, err := replayed(file)
		if err != nil {
			return status.Explanation{}, err
		}
		return status.Explain(w.subject(), q)
	}
	if !cmd.Flags().Changed("manifests") {
		return platform.Explain().Ask(cmd.Context(), q)
	}
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return status.Explanation{}, err
	}
	printNotes(cmd, notes)
	w, err := readWorld(cmd, c)
	if err != nil {
		return status.Explanation{}, err
	}
	return status.Explain(w.subject(), q)
}

// subject is the world as questions are asked of it.
func (w *world) subject() status.Subject {
	return status.Subject{
		Mode: string(w.mode.Name), Host: w.host, Services: w.services, Gaps: w.plan.Gaps, Implementation: w.plan.Implementation,
	}
}
