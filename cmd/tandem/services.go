// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/platform"
)

func newServices() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "services [NAMESPACE/NAME]",
		Short: "List the Services of the running tandem; of one, every endpoint and why it is used or not",
		Long: `services lists what the running tandem serves. Of a single Service it shows each
frontend and each endpoint of its EndpointSlices: conditions, since when it takes
connections ("start" is since the start of tandem, or longer), and if it takes none,
why.`,
		Example: "  tandem services\n  tandem services kube-system/kube-dns",
		Args:    atMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := serviceArgument(args)
			if err != nil {
				return err
			}
			s, err := platform.Services().Ask(cmd.Context(), platform.ServicesRequest{Service: serviceText(name)})
			if err != nil {
				return err
			}
			s.One = len(args) > 0
			return out.print(cmd, reportOf(s))
		},
	}
	out.register(c)
	return c
}
