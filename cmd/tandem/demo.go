// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newDemo() *cobra.Command {
	var inside bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See a Service work on this machine, without a cluster",
		Long: `demo builds a small network of its own (a node, four pods and a machine outside,
each in a network namespace), runs tandem in it on two manifests, sends
connections through the Service, swaps a pod, and cleans up. It touches nothing
else on this machine and, where the kernel allows it, needs no root.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo(cmd, inside)
		},
	}
	c.Flags().BoolVar(&inside, "inside", false, "run in the present user namespace")
	_ = c.Flags().MarkHidden("inside")
	return c
}
