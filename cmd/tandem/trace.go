// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/status"
	"github.com/tandem-proxy/tandem/platform"
)

func newTrace() *cobra.Command {
	var flags configFlags
	var out output
	c := &cobra.Command{
		Use:   "trace FROM TO",
		Short: "Follow a connection through the rules that the kernel or HNS really has",
		Long: `trace reads the data plane back and follows a connection through it: what happens,
and, where that is not what tandem explain says, the objects that differ, first those
that alone change the outcome. With --manifests it compares the data plane with
what these mean, with no tandem running. It changes nothing. The exit code is 3 when
something else happens than should.

FROM and TO are as for tandem explain.`,
		Example: "  tandem trace pod default/web:80\n  tandem trace outside 192.0.2.1:30080 -o json",
		Args:    twoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := askTrace(cmd, &flags, oracle.Question{From: args[0], To: args[1]})
			if err != nil {
				return err
			}
			if err := out.print(cmd, reportOf(t)); err != nil || t.OK() {
				return err
			}
			return errDiffers
		},
	}
	flags.register(c)
	out.register(c)
	return c
}

// askTrace asks the running tandem; or reads the data plane of the mode that is
// configured, and compares it with what manifests mean.
func askTrace(cmd *cobra.Command, flags *configFlags, q oracle.Question) (t status.Trace, err error) {
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
	b, err := w.mode.Open(c)
	if err != nil {
		return t, fmt.Errorf("mode %s: %w", w.mode.Name, err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	b.SetHost(w.host)
	for _, p := range w.ports {
		b.Update([]model.Delta{{New: p}})
	}
	t, _, err = status.Follow(w.subject(), q, func(ports []*model.Port, p oracle.Packet) (dataplane.Trace, error) {
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
