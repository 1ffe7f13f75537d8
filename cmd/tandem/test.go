// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/connectivity"
	"github.com/tandem-proxy/tandem/windows/contract"
)

func newTest() *cobra.Command {
	c := &cobra.Command{
		Use:   "test",
		Short: "Test a proxy with real connections",
		Long: `test makes real connections, in network namespaces of its own unless told otherwise.
See the help of its subcommands.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(newTestConnectivity(), newTestDisrupt(), newTestHNS(contract.Local))
	for _, sub := range c.Commands() {
		sub.Args = runArgs
	}
	return c
}

// runArgs accepts arguments behind -- only: they are those of tandem run.
func runArgs(c *cobra.Command, args []string) error {
	if n := c.ArgsLenAtDash(); n > 0 || n < 0 && len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no argument but flags of tandem run behind --: %q", c.CommandPath(), args[0])}
	}
	return nil
}

// rigFlags select which proxy is tested, and how.
type rigFlags struct {
	mode     string
	families []string
	folder   string
	pods     []string
	inside   bool // the present user namespace is for the test
}

func (f *rigFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.mode, "proxy-mode", string(config.Auto), "the mode of the proxy that is started for the test: "+strings.Join(platform.Names(), ", "))
	complete(c, "proxy-mode", platform.Names()...)
	fs.StringSliceVar(&f.families, "ip-families", []string{model.IPv4.String(), model.IPv6.String()}, "IP families to test")
	complete(c, "ip-families", model.IPv4.String(), model.IPv6.String())
	fs.StringVar(&f.folder, "running", "", "test the tandem that runs on this node instead: the folder of manifests that it follows, where the test's Services are put during the test")
	fs.StringSliceVar(&f.pods, "pod-ranges", nil, "with --running: ranges of addresses that tandem takes for this node's pods, and that none of them has, such as 10.244.1.240/28; without them pods are taken for other machines")
	fs.BoolVar(&f.inside, "inside", false, "run in the current user namespace")
	_ = fs.MarkHidden("inside")
}

// options are the values of the flags.
func (f *rigFlags) options(cmd *cobra.Command, args []string) (o connectivity.Options, err error) {
	if _, err := platform.Find(config.Mode(f.mode)); err != nil {
		return o, usageError{fmt.Errorf("--proxy-mode: %w", err)}
	}
	if f.folder != "" && (cmd.Flags().Changed("proxy-mode") || len(args) > 0) {
		return o, usageError{errors.New("--running tests a tandem as it runs: --proxy-mode and flags of tandem run are for one that is started")}
	}
	o = connectivity.Options{Mode: f.mode, Args: args, Folder: f.folder}
	for _, name := range f.families {
		known := false
		for _, family := range model.Families() {
			if strings.EqualFold(name, family.String()) {
				o.Families, known = append(o.Families, family), true
			}
		}
		if !known {
			return o, usageError{fmt.Errorf("--ip-families %q: must be IPv4 or IPv6", name)}
		}
	}
	if len(o.Families) == 2 && o.Families[0] == o.Families[1] || len(o.Families) == 0 || len(o.Families) > 2 {
		return o, usageError{errors.New("--ip-families: name each once")}
	}
	for _, text := range f.pods {
		p, err := netip.ParsePrefix(text)
		family := model.FamilyOf(p.Addr())
		if most := connectivity.ShortestPods(family); err != nil || p.Bits() > most {
			return o, usageError{fmt.Errorf("--pod-ranges %q: must be a prefix of at most /%d", text, most)}
		}
		o.Pods[family] = p.Masked()
	}
	return o, nil
}

// connectivityFlags are those of tandem test connectivity.
type connectivityFlags struct {
	rigFlags
	existing bool
	cluster  clusterTest
	only     filter
	out      output
}

func newTestConnectivity() *cobra.Command {
	var f connectivityFlags
	c := &cobra.Command{
		Use:   "connectivity [-- FLAGS OF RUN]",
		Short: "Connect to every kind of frontend from every origin, and compare with what must happen",
		Long: `connectivity makes a node, pods, another node and machines outside as network
namespaces, starts a tandem on that node with Services of every policy, and connects
over TCP and UDP: to cluster IPs, external IPs, load balancer IPs and node ports, and to
health check ports; from the node, from a pod, from a pod that is an endpoint itself and
from outside; under the policies Cluster and Local for internal and external traffic,
session affinity and source ranges, with and without endpoints. Each connection is
compared with what tandem explain says: the endpoints that answer, the address that they
see, rejects and drops. It needs no cluster, touches nothing else on this machine, and
where the kernel allows it needs no root.

With --running FOLDER it tests the tandem that runs on this node and follows FOLDER: the
Services are put there for the time of the test, and backends and clients get links to
this node (tandem-t-*, tandem-test*), with addresses that nothing on it uses. That needs
root. A tandem that watches an API server is not tested that way.

With --existing it connects from this node to the TCP frontends of the Services that the
running tandem serves, and closes the connections: on Windows, too, where there are no
network namespaces. What is beyond 5,000 frontends is not tested: select Services then.

With --in-cluster it makes two pods of --image, one of them on this node, and four
Services of type NodePort over TCP in a namespace of their own in the cluster, with the
rights of the user of the kubeconfig: a plain one, one with both traffic policies Local,
one with session affinity and one without endpoints. It connects from this node as with
--existing, and deletes all of it, also when it fails.

The exit code is 0 when everything is as it must be, 1 when something could not be
tested, 3 when a connection fared otherwise.`,
		Example: `  tandem test connectivity --proxy-mode nftables
  tandem test connectivity --proxy-mode iptables -o json -- --masquerade-all
  tandem test connectivity --running /etc/tandem/services
  tandem test connectivity --existing -n kube-system
  tandem test connectivity --in-cluster --image registry.k8s.io/e2e-test-images/agnhost:2.53 -- netexec`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(c)
	c.Flags().BoolVar(&f.existing, "existing", false, "connect from this node to the TCP frontends of the Services that the running tandem serves")
	f.cluster.register(c)
	c.MarkFlagsMutuallyExclusive("in-cluster", "existing")
	c.MarkFlagsMutuallyExclusive("in-cluster", "running")
	f.only.register(c)
	f.out.register(c)
	return c
}

func (f *connectivityFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.only.check(); err != nil {
		return err
	}
	if !f.existing && !f.only.All() {
		return usageError{errors.New("-n and --name select Services with --existing")}
	}
	if f.cluster.on {
		report, err := f.cluster.run(cmd.Context(), args)
		if err != nil {
			return err
		}
		return f.print(cmd, report)
	}
	options, err := f.options(cmd, args)
	switch {
	case err != nil:
		return err
	case f.existing && (f.folder != "" || len(args) > 0):
		return usageError{errors.New("--existing tests the running tandem from this node: choose it or --running")}
	case !f.existing:
		return f.made(cmd, options)
	}
	report, err := connectivity.Existing(cmd.Context(), func(name string) bool { return f.only.Match(name, "") })
	if err != nil {
		return err
	}
	return f.print(cmd, report)
}

// print prints a report, and is its exit code.
func (f *connectivityFlags) print(cmd *cobra.Command, r connectivity.Report) error {
	if err := f.out.print(cmd, report{document: r, text: func(s *screen) error { writeConnectivity(s, r); return nil }}); err != nil {
		return err
	}
	switch {
	case r.Differing > 0:
		return differsError(fmt.Sprintf("%d of %d rows differ from what must happen", r.Differing, len(r.Rows)))
	case r.Untested > 0:
		return fmt.Errorf("%d of %d rows could not be tested", r.Untested, len(r.Rows))
	case r.Omitted > 0:
		return fmt.Errorf("%s beyond the limit of a test not tested: select Services with -n or --name", printable.Count(r.Omitted, "frontend"))
	case len(r.Rows) == 0:
		return errors.New("nothing to test")
	}
	return nil
}

// writeConnectivity prints a report: failures, and sums of the rest; all
// rows when wide.
func writeConnectivity(s *screen, r connectivity.Report) {
	t := table{columns: []column{
		{name: "SERVICE"},
		{name: "FRONTEND"},
		{name: "TO", keep: true},
		{name: "FROM"},
		{name: "CLIENT", wide: true},
		{name: "EXPECTED"},
		{name: "RESULT", keep: true, state: true},
		{name: "DETAIL"},
	}}
	ok, gaps := 0, 0
	for _, x := range r.Rows {
		switch x.Verdict {
		case connectivity.OK:
			ok++
		case connectivity.Gap:
			gaps++
		}
		if s.wide || x.Verdict != connectivity.OK {
			t.add(x.Service, x.Kind, x.To+"/"+x.Protocol, x.From, x.Client, x.Expectation(), string(x.Verdict), x.Detail)
		}
	}
	if len(t.rows) > 0 {
		s.table(t)
		s.printf("\n")
	}
	s.printf("mode %s on %s: %s to Services, %s in %.1f s\n", r.Mode, r.Node, printable.Count(len(r.Rows), "way"), printable.Count(r.Connections, "connection"), r.Seconds)
	s.printf("%d ok, %d differ, %d not tested, %d beyond what the mode can do\n", ok, r.Differing, r.Untested+r.Omitted, gaps)
}
