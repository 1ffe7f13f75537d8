// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/sleep"
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
	fs.StringSliceVar(&f.pods, "pod-ranges", nil, "with --running: unused address ranges to treat as pods of this node, such as 10.244.1.240/28; without them pods count as other machines")
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
	if err := f.out.print(cmd, report{document: r, text: func(s *screen) { writeConnectivity(s, r) }}); err != nil {
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
	s.printf("mode %s on %s: %s to Services, %s in %.1f s\n", r.Mode, r.Node, printable.Count(len(r.Rows), "path"), printable.Count(r.Connections, "connection"), r.Seconds)
	s.printf("%d ok, %d differ, %d not tested, %d unsupported by this mode\n", ok, r.Differing, r.Untested+r.Omitted, gaps)
}

// clusterTest makes backends and four Services (plain, both traffic policies Local, session
// affinity, no endpoints; TCP, with node ports) in a namespace of its own in the cluster,
// with the rights of the user of a kubeconfig, and tests them from this node. All of it
// is deleted at the end, whatever that is.
type clusterTest struct {
	on      bool
	image   string
	port    int
	timeout time.Duration

	cluster   *cluster
	session   session
	namespace string
}

func (k *clusterTest) register(c *cobra.Command) {
	k.cluster = newCluster()
	fs := c.Flags()
	fs.BoolVar(&k.on, "in-cluster", false, "make two pods and four TCP Services (plain, traffic policies Local, session affinity, no endpoints) in a namespace of their own in the cluster, with the rights of the kubeconfig's user, and connect to them from this node")
	fs.StringVar(&k.image, "image", "", "with --in-cluster: the image of the backends, which accepts connections; what follows -- are its arguments")
	fs.IntVar(&k.port, "backend-port", 8080, "with --in-cluster: the port on which the image accepts connections")
	fs.StringVar(&k.cluster.rules.ExplicitPath, "kubeconfig", "", "with --in-cluster: path of the kubeconfig; else $KUBECONFIG or ~/.kube/config")
	fs.DurationVar(&k.timeout, "timeout", 2*time.Minute, "with --in-cluster: how long the backends may take to be served")
}

// run tests with backends whose containers have these arguments.
func (k *clusterTest) run(ctx context.Context, args []string) (r connectivity.Report, err error) {
	if k.image == "" || k.port < 1 || k.port > 65535 {
		return r, usageError{errors.New("--in-cluster needs the --image of the backends, and a --backend-port from 1 to 65535")}
	}
	here, err := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
	if err != nil {
		return r, err
	}
	if k.session, err = k.cluster.open(); err != nil {
		return r, err
	}
	k.namespace = "tandem-test-" + strings.ToLower(rand.Text()[:8])
	defer func() { err = errors.Join(err, k.clear(context.WithoutCancel(ctx))) }()
	for _, o := range k.objects(here.Node, args) {
		if err := k.create(ctx, o); err != nil {
			return r, err
		}
	}
	if err := k.await(ctx); err != nil {
		return r, err
	}
	return connectivity.Existing(ctx, k.own)
}

// own reports whether a Service is of the test.
func (k *clusterTest) own(service string) bool { return strings.HasPrefix(service, k.namespace+"/") }

// object is an object to be created, and where.
type object struct {
	kind string // in the plural
	body map[string]any
}

const clusterTestLabel = "app.kubernetes.io/name"

// objects are the namespace, two backends, of which one is on this node, and the
// Services.
func (k *clusterTest) objects(node string, args []string) []object {
	labels := map[string]any{clusterTestLabel: "tandem-test"}
	pod := func(name, node string) object {
		spec := map[string]any{
			"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"tolerations": []any{map[string]any{"operator": "Exists"}},
			"containers":  []any{map[string]any{"name": "backend", "image": k.image, "args": args, "ports": []any{map[string]any{"containerPort": k.port}}}},
		}
		if node != "" {
			spec["nodeName"] = node
		}
		return object{"pods", map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "labels": labels}, "spec": spec}}
	}
	service := func(name string, more map[string]any) object {
		spec := map[string]any{"type": "NodePort", "selector": labels, "ports": []any{map[string]any{"port": 80, "targetPort": k.port}}}
		for key, v := range more {
			spec[key] = v
		}
		return object{"services", map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name}, "spec": spec}}
	}
	return []object{
		{"namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": k.namespace, "labels": labels}}},
		pod("here", node), pod("anywhere", ""),
		service("cluster", nil),
		service("local", map[string]any{"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}),
		service("affinity", map[string]any{"sessionAffinity": "ClientIP"}),
		service(emptyService, map[string]any{"selector": map[string]any{clusterTestLabel: "none"}}),
	}
}

// emptyService has no endpoints.
const emptyService = "empty"

// at is where the objects of a kind are.
func (k *clusterTest) at(kind string) *url.URL {
	if kind == "namespaces" {
		return k.session.base.JoinPath("api/v1/namespaces")
	}
	return k.session.base.JoinPath("api/v1/namespaces", k.namespace, kind)
}

// createTries bounds the attempts at an object: a new namespace has its ServiceAccount a
// moment later, without which pods are rejected.
const createTries = 20

func (k *clusterTest) create(ctx context.Context, o object) (err error) {
	text, err := json.Marshal(o.body)
	if err != nil {
		return err
	}
	for range createTries {
		var code int
		if code, err = k.do(ctx, http.MethodPost, k.at(o.kind), text); err == nil || code != http.StatusForbidden || o.kind != "pods" {
			break
		}
		if !sleep.For(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("create %s in namespace %s: %w", o.kind, k.namespace, err)
	}
	return nil
}

// do makes a request, and returns the code of the answer.
func (k *clusterTest) do(ctx context.Context, method string, to *url.URL, body []byte) (code int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	res, err := k.session.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxError)) // of an error
	if res.StatusCode < 300 {
		return res.StatusCode, nil
	}
	var said struct{ Message string }
	_ = json.Unmarshal(text, &said) // else the code alone
	return res.StatusCode, fmt.Errorf("%s: %s", http.StatusText(res.StatusCode), cmp.Or(said.Message, strings.TrimSpace(string(text))))
}

// await waits until the tandem of this node serves all Services as they will be: with
// endpoints, but for the one without.
func (k *clusterTest) await(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	for {
		all, err := platform.Ask(ctx, question.ListServices(), question.ServicesRequest{})
		if err != nil {
			return err
		}
		missing := []string{"cluster", "local", "affinity", emptyService}
		for _, s := range all.Services {
			name, own := strings.CutPrefix(s.Name, k.namespace+"/")
			ready := len(s.Frontends) > 0 && (name == emptyService || s.Frontends[0].Endpoints > 0)
			if own && ready && s.State == "Programmed" {
				missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if !sleep.For(limited, 200*time.Millisecond) {
			return fmt.Errorf("not served within %s: Services %s of namespace %s; does image %s run, and accept connections on port %d?", k.timeout, strings.Join(missing, ", "), k.namespace, k.image, k.port)
		}
	}
}

// clearTime is how long deleting may take.
const clearTime = 30 * time.Second

// clear deletes what was made, and the namespace.
func (k *clusterTest) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clearTime)
	defer cancel()
	var failed []error
	remove := func(at *url.URL) {
		if code, err := k.do(ctx, http.MethodDelete, at, nil); err != nil && code != http.StatusNotFound {
			failed = append(failed, err)
		}
	}
	for _, o := range slices.Backward(k.objects("", nil)) {
		name, _ := o.body["metadata"].(map[string]any)["name"].(string)
		remove(k.at(o.kind).JoinPath(name))
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("delete namespace %s by hand: %w", k.namespace, err)
	}
	return nil
}

// disruptFlags are those of tandem test disrupt.
type disruptFlags struct {
	rigFlags
	load     connectivity.Load
	switchTo string
	during   string
	out      output
}

func newTestDisrupt() *cobra.Command {
	var f disruptFlags
	c := &cobra.Command{
		Use:   "disrupt [-- FLAGS OF RUN]",
		Short: "Hold connections and make new ones while the proxy is restarted, upgraded or switched, and count what breaks",
		Long: `disrupt makes backends and clients as test connectivity does, holds TCP and UDP
connections to a Service and makes new ones all the time, while something is done to the
proxy: it is restarted, another program takes its place, it changes its mode, or a
command runs. It counts which connections failed, were reset or slow, and says when. A
held TCP connection must stay with its endpoint; UDP flows may move.

Without --restart, --upgrade, --switch and --during it goes on for --for, or until an
interrupt: disturb the proxy yourself meanwhile. The proxy that is tested is one in
namespaces of its own or, with --running FOLDER, the one that runs here: see test
connectivity.

A userspace proxy relays connections itself: those that it holds end with its process. So
do datagrams: of new connections only those over TCP wait for the next process.

The exit code is 0 when nothing broke, 3 when something did.`,
		Example: `  tandem test disrupt --restart --proxy-mode nftables
  tandem test disrupt --switch iptables --rate 500 --hold 1000
  tandem test disrupt --running /etc/tandem/services --during 'systemctl restart tandem'`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.register(c)
	fs := c.Flags()
	fs.IntVar(&f.load.Rate, "rate", 200, fmt.Sprintf("new connections a second, at most %d", connectivity.MaxRate))
	fs.IntVar(&f.load.Held, "hold", 100, fmt.Sprintf("connections to hold, at most %d", connectivity.MaxHeld))
	fs.DurationVar(&f.load.Slow, "slow", time.Second, "a new connection that takes longer counts as slow")
	fs.DurationVar(&f.load.For, "for", 5*time.Second, fmt.Sprintf("minimum duration, up to %s", connectivity.MaxTime))
	fs.BoolVar(&f.load.Restart, "restart", false, "stop the test's own proxy and start it again")
	fs.StringVar(&f.load.Upgrade, "upgrade", "", "stop the test's own proxy and start this program instead")
	fs.StringVar(&f.switchTo, "switch", "", "change the mode")
	complete(c, "switch", platform.Names()[1:]...)
	fs.StringVar(&f.during, "during", "", "run this command of the shell on the node")
	f.out.register(c)
	return c
}

func (f *disruptFlags) run(cmd *cobra.Command, args []string) error {
	options, err := f.options(cmd, args)
	if err != nil {
		return err
	}
	done := 0
	for _, name := range []string{"restart", "upgrade", "switch", "during"} {
		if cmd.Flags().Changed(name) {
			done++
		}
	}
	switch l := f.load; {
	case done > 1:
		return usageError{errors.New("--restart, --upgrade, --switch, --during: choose one")}
	case l.Rate < 1 || l.Rate > connectivity.MaxRate:
		return usageError{fmt.Errorf("--rate %d: must be from 1 to %d", l.Rate, connectivity.MaxRate)}
	case l.Held < 0 || l.Held > connectivity.MaxHeld:
		return usageError{fmt.Errorf("--hold %d: must be from 0 to %d", l.Held, connectivity.MaxHeld)}
	case l.For < 0 || l.For > connectivity.MaxTime:
		return usageError{fmt.Errorf("--for %s: must be at most %s", l.For, connectivity.MaxTime)}
	case f.folder != "" && (l.Restart || l.Upgrade != ""):
		return usageError{errors.New("--restart and --upgrade are for a proxy that the test starts; the running one is restarted by --during COMMAND")}
	}
	if f.switchTo != "" {
		f.load.Switch = config.Mode(f.switchTo)
		if _, err := platform.Find(f.load.Switch); err != nil || f.load.Switch == config.Auto {
			return usageError{fmt.Errorf("--switch %q: must be one of %v", f.switchTo, platform.Names()[1:])}
		}
	}
	if f.during != "" {
		f.load.Command = []string{"sh", "-c", f.during}
	}
	return f.made(cmd, options)
}

// print prints a result, and is its exit code.
func (f *disruptFlags) print(cmd *cobra.Command, d connectivity.Disruption) error {
	if err := f.out.print(cmd, report{document: d, text: func(s *screen) { writeDisruption(s, d) }}); err != nil {
		return err
	}
	if n := d.Broken(); n > 0 {
		return differsError(printable.Count(n, "connection") + " broke")
	}
	return nil
}

// writeDisruption shows a result to people.
func writeDisruption(s *screen, d connectivity.Disruption) {
	s.printf("mode %s on %s, %.1f s\n", d.Mode, d.Node, d.Seconds)
	for _, x := range d.Disturbances {
		s.printf("at %.1f s: %s, took %.1f s", x.Second, x.What, x.Seconds)
		if x.Error != "" {
			s.printf(": %s", x.Error)
		}
		s.printf("\n")
	}
	s.printf("\n")
	t := table{columns: []column{
		{name: "CONNECTIONS", keep: true}, {name: "MADE"}, {name: "FAILED"}, {name: "RESET"}, {name: "SLOW"}, {name: "P50"}, {name: "P99"}, {name: "MAX"},
	}}
	moved := ""
	for _, n := range d.New {
		ms := func(x float64) string { return short(time.Duration(x * float64(time.Millisecond))) }
		t.add("new, "+n.Protocol, fmt.Sprint(n.Made), fmt.Sprint(n.Failed), fmt.Sprint(n.Reset), fmt.Sprint(n.Slow), ms(n.P50), ms(n.P99), ms(n.Max))
	}
	for _, h := range d.Held {
		t.add("held, "+h.Protocol, fmt.Sprint(h.Held), fmt.Sprint(h.Broken), "-", "-", "-", "-", "-")
		if h.Moved > 0 {
			moved = fmt.Sprintf("%d held UDP flows were moved to another endpoint and went on\n", h.Moved)
		}
	}
	s.table(t)
	s.printf("%s", moved)
	const listed = 10
	for i, x := range d.Failures {
		if i == listed && !s.wide {
			s.printf("and more (-o wide)\n")
			break
		}
		s.printf("! at %.2f s: %s connection from %s to %s/%s: %s\n", x.Second, x.Kind, x.From, x.To, x.Protocol, x.What)
	}
}
