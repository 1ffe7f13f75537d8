// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/question"
)

func newDemo() *cobra.Command {
	var inside bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See a Service work on this machine, without a cluster",
		Long: `demo builds a small network of its own (a node, five pods and a machine outside,
each in a network namespace), runs tandem in it on two manifests, sends
connections through the Service, swaps a pod, and cleans up. It touches nothing
else on this machine and, where the kernel allows it, needs no root.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo(cmd, inside)
		},
	}
	c.Flags().BoolVar(&inside, "inside", false, "run in the current user namespace")
	_ = c.Flags().MarkHidden("inside")
	return c
}

//go:embed demo
var demoManifests embed.FS

// Addresses in the manifests, for the demo's own clients and servers.
var (
	demoClusterIP = netip.MustParseAddrPort("10.96.0.10:80")
	demoNodePort  = netip.MustParseAddrPort("192.0.2.1:30080")
)

const demoConnections = 300

// demoConfig is the configuration of the demo's proxy.
func demoConfig(dir string) *config.Config {
	c := config.Default()
	c.Manifests, c.NodeName, c.HTTPAddress, c.HealthAddress = dir, "demo-node", "", ""
	c.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	c.Complete()
	return &c
}

// demoFolder writes the embedded manifests where they can be watched.
func demoFolder() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "tandem-demo-"); err != nil {
		return "", err
	}
	err = fs.WalkDir(demoManifests, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := demoManifests.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o600)
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// demoPlan replaces the demo where there are no namespaces.
func demoPlan(cmd *cobra.Command, why error) error {
	fmt.Fprintf(cmd.OutOrStdout(), "The demo cannot run here: %v\nThis is what it would program:\n\n", why)
	dir, err := demoFolder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := manifestsDocument(cmd, demoConfig(dir), false)
	if err != nil {
		return err
	}
	plan := question.PlanOf(d, question.Filter{})
	return writePlan(cmd.OutOrStdout(), d, &plan)
}

// chart prints how connections were spread, a bar for each server.
func chart(out io.Writer, title string, hits map[netip.AddrPort]int, took time.Duration) {
	total := 0
	for _, n := range hits {
		total += n
	}
	fmt.Fprintf(out, "\n%s: %d connections in %s\n", title, total, short(took))
	servers := make([]netip.AddrPort, 0, len(hits))
	for s := range hits {
		servers = append(servers, s)
	}
	slices.SortFunc(servers, netip.AddrPort.Compare)
	for _, s := range servers {
		n := hits[s]
		fmt.Fprintf(out, "  %-16s %s %d (%d%%)\n", s, strings.Repeat("█", (n*40+total/2)/total), n, (100*n+total/2)/total)
	}
}

// short is a duration with about three digits.
func short(d time.Duration) string { return history.Short(history.Seconds(d.Seconds())) }
