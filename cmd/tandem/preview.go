// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/platform"
)

// planAgainstRunning is plan --against-running.
func planAgainstRunning(cmd *cobra.Command, flags *configFlags, out *output, prune bool) error {
	c, notes, err := flags.config(needManifests)
	if err != nil {
		return err
	}
	printNotes(cmd, notes)
	found, err := manifests.Read(cmd.Context(), c.Manifests, c.NodePortRange)
	if err != nil {
		return err
	}
	var problems []model.Problem
	for _, p := range found.Problems {
		problems = append(problems, p.Model())
	}
	printProblems(cmd, problems)
	p, err := platform.Preview().Ask(cmd.Context(), platform.Edit{Services: found.Services, Slices: found.Slices, Prune: prune})
	if err != nil {
		return err
	}
	if err := out.print(cmd, reportOf(p)); err != nil || !p.Pending() {
		return err
	}
	return pendingError("the manifests would change the data plane")
}
