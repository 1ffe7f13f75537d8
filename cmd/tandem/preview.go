// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/manifests"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/status"
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
	if prune && len(problems) > 0 {
		return fmt.Errorf("%d manifests were rejected, see above: --prune would delete what they describe", len(problems))
	}
	p, err := platform.Preview().Ask(cmd.Context(), platform.Edit{Services: found.Services, Slices: found.Slices, Routes: found.Routes, Grants: found.Grants, Prune: prune})
	if err != nil {
		return err
	}
	if err := out.print(cmd, reportOf(p)); err != nil {
		return err
	}
	return previewError(len(problems), p)
}

// previewError is the error of a preview: rejections take precedence over changes.
func previewError(rejectedManifests int, p status.Preview) error {
	if err := rejected(rejectedManifests + len(p.Problems)); err != nil || !p.Pending() {
		return err
	}
	return pendingError("the manifests would change the data plane")
}

// runningFlags rejects flags without a meaning together with --against-running, or without it.
func runningFlags(cmd *cobra.Command, running bool) error {
	fs := cmd.Flags()
	if !running {
		if fs.Changed("prune") {
			return usageError{errors.New("--prune needs --against-running")}
		}
		return nil
	}
	for _, name := range []string{"namespace", "name", "snapshot", "part"} {
		if fs.Changed(name) {
			return usageError{fmt.Errorf("--%s does not apply to --against-running", name)}
		}
	}
	if o := fs.Lookup("output"); o != nil && o.Value.String() == "native" {
		return usageError{errors.New("-o native does not apply to --against-running")}
	}
	return nil
}
