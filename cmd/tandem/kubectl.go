// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/wire"
	"github.com/tandem-proxy/tandem/platform"
)

// kubectlPlugin is the name of this program as a plugin of kubectl.
const kubectlPlugin = "kubectl-tandem"

// newKubectl is what `kubectl tandem` does: the program under that name.
func newKubectl() *cobra.Command {
	k := newCluster()
	c := &cobra.Command{
		Use:   "kubectl",
		Short: "Ask the nodes of a cluster; as a plugin of kubectl: kubectl tandem",
		Long: `kubectl asks the tandems of a cluster through the API server, with the rights of the
user of a kubeconfig: one of a node with --node, that of the node of a pod, or all, and
then it shows only what differs; top adds up what they count. status and diff compare all
nodes in short.

Two ways lead to a node, and both need list of pods in the namespace of tandem. --via exec
needs no configuration: the API server runs a tandem in the pod, which asks at the control
socket. That needs get and create of pods/exec there, a right to all that the pod may do.
--via proxy is for users who may read only: get of pods/proxy, and create of
serviceaccounts/token for the ServiceAccount tandem-status. The proxy passes no credentials
on, so that each tandem gets a token of that account, which is good for ten minutes, for
reading answers, and for nothing else. The tandems must serve on the pod's address and be
allowed to check tokens: value kubectl.enabled of the chart. snapshot and large manifests
go by exec only. Without --via it is the proxy where a token can be made, else exec, which
follows, too, where the proxy does not reach the pod: a firewall of Windows keeps it out.

A link to tandem that is called ` + kubectlPlugin + ` in PATH makes it kubectl tandem.`,
		Example: `  kubectl tandem status
  kubectl tandem explain -n shop pod/web-0 default/db:5432
  kubectl tandem trace -n shop pod/web-0 default/db:5432
  kubectl tandem services --all-nodes
  kubectl tandem ui
  kubectl tandem drift --node node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	k.register(c.PersistentFlags())
	complete(c, "via", ways()...)
	c.AddCommand(newKubectlStatus(k), newKubectlDiff(k),
		k.asks(newServices(k), "default/web"), k.asks(newExplain(k), "pod default/web:80"), k.asks(newTrace(k), "outside 192.0.2.1:30080"), k.asks(newDrift(k), ""),
		k.asks(newHistory(k), "default/web"), k.asks(newTop(k), ""), k.asks(newMonitor(), "-n shop"), newKubectlPlan(k), k.asks(newSnapshot(k), "> node-1.snapshot"), newUI(k))
	return c
}

// register adds the flags that say which cluster it is, and how its tandems are reached.
func (k *cluster) register(fs *pflag.FlagSet) {
	fs.StringVar(&k.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig; else $KUBECONFIG or ~/.kube/config")
	fs.StringVar(&k.overrides.CurrentContext, "context", "", "context of the kubeconfig")
	fs.StringVar(&k.namespace, "tandem-namespace", "kube-system", "namespace of tandem's pods")
	fs.StringVar(&k.account, "service-account", "tandem-status", "ServiceAccount there that may read the answers")
	fs.StringVar(&k.selector, "selector", "app.kubernetes.io/name=tandem", "labels of tandem's pods")
	fs.IntVar(&k.port, "metrics-port", 10249, "port that tandem serves its status on")
	fs.DurationVar(&k.timeout, "timeout", 30*time.Second, "how long a node may take to answer")
	fs.Var(&choice{&k.via, "way", ways()}, "via", "how to reach a node, one of "+strings.Join(ways(), ", "))
}

func ways() []string { return []string{viaAuto, viaProxy, viaExec} }

// fromPod reports whether a verb is about a connection, whose sender may be a pod of the cluster.
func fromPod(c *cobra.Command) bool { return strings.HasPrefix(c.Use, c.Name()+" FROM TO") }

// asks makes a verb one that is asked of nodes of the cluster: it runs as it does on the node itself, but for where
// its questions go. Of all nodes it runs several times at once.
func (k *cluster) asks(c *cobra.Command, argument string) *cobra.Command {
	run, here := c.RunE, c.Name()
	c.RunE = func(cmd *cobra.Command, args []string) error { return k.ask(cmd, args, run) }
	c.Long = "The tandem of a node is asked, and answers as tandem " + here + " on the node\nitself, whose help says more."
	if c.Args == nil {
		c.Args = noArgs
	}
	one := strings.TrimSpace("  kubectl tandem " + here + " --node node-1 " + argument)
	c.Example = "  " + one
	fs := c.Flags()
	fs.StringVar(&k.node, "node", "", "ask the tandem of this node")
	_ = c.RegisterFlagCompletionFunc("node", k.completes(func(ctx context.Context, to session) ([]string, error) {
		pods, err := k.pods(ctx, to, "")
		return nodesOf(pods), err
	}))
	if here != "snapshot" && here != monitorVerb {
		help, long := "ask all nodes, and show only what differs", `With --all-nodes it shows in which fields of -o json nodes differ from most, but for those
that every node has its own of, such as times and counts; with -o wide the answer of most,
too. The exit code is 3 when some differ, and 1 when some did not answer: they are named.`
		if here == topVerb {
			help, long = "ask all nodes, and add up what they count", `With --all-nodes it adds up what the nodes count of each Service, and says how many of them
do. The exit code is 1 when some did not answer: they are named; and 2 when none counts.`
		}
		fs.BoolVar(&k.all, "all-nodes", false, help)
		c.MarkFlagsMutuallyExclusive("node", "all-nodes")
		if fs.Lookup("watch") != nil {
			c.MarkFlagsMutuallyExclusive("watch", "all-nodes")
		}
		c.Long += "\n\n" + long
		c.Example += "\n  " + strings.Replace(one, "--node node-1", "--all-nodes", 1)
	}
	if fromPod(c) {
		fs.StringVarP(&k.scope, "namespace", "n", "", "namespace of a pod, and of a Service that is named without one; else that of the context")
		c.Long += `

FROM may be pod/NAME, too: a pod of the namespace, by its first address, whose node is asked.`
		c.Example = "  kubectl tandem " + here + " -n shop pod/web-0 default/db:5432\n" + c.Example
	}
	if c.ValidArgsFunction != nil {
		c.ValidArgsFunction = k.completeArguments(fromPod(c))
	}
	return c
}

// ask asks the node that the flags or the sender name, or all, with what a verb runs.
func (k *cluster) ask(cmd *cobra.Command, args []string, run func(*cobra.Command, []string) error) error {
	ctx := cmd.Context()
	to, err := k.open()
	if err != nil {
		return err
	}
	node := k.node
	if fromPod(cmd) {
		if args, node, err = k.connection(ctx, to, args); err != nil {
			return err
		}
	}
	pods, err := k.pods(ctx, to, node)
	if err != nil {
		return err
	}
	if !k.all && pods[0].Spec.NodeName != pods[len(pods)-1].Spec.NodeName {
		return usageError{fmt.Errorf("which node? --node names it, or --all-nodes asks all: %s", few(nodesOf(pods)))}
	}
	if err := k.choose(ctx, &to); err != nil {
		return err
	}
	if k.all {
		return k.everywhere(cmd, args, to, pods, run)
	}
	if cmd.Flags().Lookup("output") != nil && !cmd.Flags().Changed("watch") && cmd.Name() != monitorVerb { // snapshot says itself that it waits
		defer waiting(cmd, "waiting for the tandem of node "+pods[0].Spec.NodeName)()
	}
	cmd.SetContext(platform.Through(ctx, carrier{k, to, pods[0], maxNode}))
	err = run(cmd, args)
	if exitCode(err) != exitFailure {
		return err
	}
	return fmt.Errorf("node %s: %w", pods[0].Spec.NodeName, err)
}

// connection is FROM and TO as the tandem of a node knows them, and the node where FROM is a pod.
func (k *cluster) connection(ctx context.Context, to session, args []string) (_ []string, node string, err error) {
	from, target := args[0], args[1]
	if !strings.Contains(target, "/") && targetArgument(target) != target {
		target = to.scope + "/" + target
	}
	name, ok := strings.CutPrefix(from, "pod/")
	if !ok {
		return []string{from, target}, k.node, nil
	}
	if k.all {
		return nil, "", usageError{fmt.Errorf("%s is on one node: without --all-nodes that is asked", from)}
	}
	p, err := to.find(ctx, name)
	switch {
	case err != nil:
		return nil, "", err
	case k.node != "" && k.node != p.Spec.NodeName:
		return nil, "", usageError{fmt.Errorf("pod %s/%s is on node %s, not on %s", to.scope, name, p.Spec.NodeName, k.node)}
	case p.Spec.HostNetwork:
		return []string{"host", target}, p.Spec.NodeName, nil
	case len(p.Status.PodIPs) == 0:
		return nil, "", fmt.Errorf("pod %s/%s has no address yet", to.scope, name)
	}
	from = p.Status.PodIPs[0].IP
	if at, err := netip.ParseAddrPort(target); err == nil { // which has one family
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == at.Addr().Is4() {
				from = ip.IP
			}
		}
	}
	return []string{from, target}, p.Spec.NodeName, nil
}

// nodesOf are the nodes of pods, each once.
func nodesOf(pods []pod) (all []string) {
	for _, p := range pods {
		all = append(all, p.Spec.NodeName)
	}
	return slices.Compact(all)
}

// few names the first of many.
func few(names []string) string {
	const shown = 5
	return printable.List(names, shown)
}

// each asks some pods at a time, and says on stderr how far that is where it takes a while.
func each(cmd *cobra.Command, pods []pod, ask func(pod) error) {
	var mu sync.Mutex
	asked, failed, under := 0, 0, []string{}
	done := waitingFor(cmd, func() string {
		mu.Lock()
		defer mu.Unlock()
		return progress(asked, failed, len(pods), under)
	})
	defer done()
	atOnce(pods, func(p pod) {
		mu.Lock()
		under = append(under, p.Spec.NodeName)
		mu.Unlock()
		err := ask(p)
		mu.Lock()
		defer mu.Unlock()
		i := slices.Index(under, p.Spec.NodeName)
		under = slices.Delete(under, i, i+1)
		if asked++; err != nil {
			failed++
		}
	})
}

// atOnce calls ask for each pod, at most maxAsked at a time.
func atOnce(pods []pod, ask func(pod)) {
	next := make(chan pod)
	var group sync.WaitGroup
	for range min(maxAsked, len(pods)) {
		group.Go(func() {
			for p := range next {
				ask(p)
			}
		})
	}
	for _, p := range pods {
		next <- p
	}
	close(next)
	group.Wait()
}

// progress is how far asking many nodes is.
func progress(asked, failed, all int, under []string) string {
	return fmt.Sprintf("%d of %d nodes asked, %d without an answer; waiting for %s", asked, all, failed, few(under))
}

// caught is what a verb would show of a node: an io.Writer, as which it is the verb's standard output.
type caught struct {
	report report
	err    error // of the verb, after that
}

func (*caught) Write(p []byte) (int, error) { return len(p), nil }

// maxEach bounds the answer of one of many nodes in bytes: maxAsked of them are in memory.
const maxEach = maxNode / maxAsked

// everywhere runs a verb for each pod's tandem, and shows what becomes of the answers.
func (k *cluster) everywhere(cmd *cobra.Command, args []string, to session, pods []pod, run func(*cobra.Command, []string) error) error {
	out, _ := cmd.Flags().Lookup("output").Value.(*output)
	if out.form == formName && cmd.Name() != topVerb {
		return usageError{errors.New("-o name does not apply to --all-nodes")}
	}
	all := gather(cmd)
	each(cmd, pods, func(p pod) error {
		one, got := *cmd, new(caught)
		one.SetContext(platform.Through(cmd.Context(), carrier{k, to, p, maxEach}))
		one.SetOut(got)
		if one.SetErr(io.Discard); p.Metadata.Name == pods[0].Metadata.Name { // what is said of files is the same for all
			one.SetErr(cmd.ErrOrStderr())
		}
		if got.err = run(&one, args); got.report.document == nil {
			got.err = cmp.Or(got.err, errors.New("no answer"))
			all.fail(p.Spec.NodeName, p.Metadata.Name, got.err)
			return got.err
		}
		all.add(p.Spec.NodeName, p.Metadata.Name, got)
		return nil
	})
	whole, err := all.result()
	return cmp.Or(out.print(cmd, whole), err)
}

// gathering is what becomes of the answers of all nodes to a verb. Answers may come at once.
type gathering interface {
	add(node, pod string, answer *caught)
	fail(node, pod string, why error)
	// result is what is shown, and the error of the verb after that.
	result() (report, error)
}

// gather begins to gather the answers to a verb: counts are added up, all else is compared.
func gather(cmd *cobra.Command) gathering {
	if cmd.Name() == topVerb {
		limit, _ := cmd.Flags().GetInt(limitFlag)
		return &sum{limit: limit}
	}
	return new(comparison)
}

// comparison shows how answers differ.
type comparison struct{ question.Comparison[*caught] }

func (c *comparison) add(node, pod string, answer *caught) {
	c.Add(node, pod, answer, answer.report.document)
}

func (c *comparison) fail(node, pod string, why error) { c.Fail(node, pod, why) }

func (c *comparison) result() (report, error) {
	a, most, ok := c.Result()
	err := acrossError(&a)
	if err == nil && ok {
		err = most.err
	}
	return report{document: a, text: func(s *screen) {
		if s.wide && ok {
			most.report.text(s)
			s.printf("\n")
		}
		writeAcross(s, &a)
	}}, err
}

// sum shows what all nodes count, of so many Services; of all with a limit of 0.
type sum struct {
	question.TopSum
	limit int
}

func (t *sum) add(node, pod string, answer *caught) {
	if top, ok := answer.report.document.(question.Top); ok {
		t.Add(node, pod, &top)
	}
}

func (t *sum) fail(node, pod string, why error) { t.Fail(node, pod, why) }

func (t *sum) result() (report, error) {
	all := t.Result()
	err := topNodesError(&all)
	all.Services = busiest(all.Services, t.limit)
	own := namesOf(all.Services, func(s *question.TopService) string { return s.Service })
	return report{document: all, own: own, text: func(s *screen) { writeTopNodes(s, &all) }}, err
}

// writeTopNodes shows people what nodes count together, how many of them do, and why others do not.
func writeTopNodes(s *screen, all *question.TopNodes) {
	answered := writeSilent(s, answersOf(all.Nodes))
	if answered == 0 {
		return
	}
	has := topHas{}
	counting, tracking := 0, 0
	var reasons []string
	without := map[string][]string{} // nodes by reason
	for i := range all.Nodes {
		n := &all.Nodes[i]
		if n.Err != "" {
			continue
		}
		if n.NotCounted == "" {
			counting++
		}
		if n.Tracked {
			tracking++
			has.bytes = has.bytes || n.BytesNotCounted == ""
		}
		for _, why := range []string{n.NotCounted, n.EndpointsNotCounted, n.BytesNotCounted} {
			if why == "" {
				continue
			}
			if without[why] == nil {
				reasons = append(reasons, why)
			}
			without[why] = append(without[why], n.Node)
		}
	}
	s.printf("counts of %s added up: new connections of %d, open ones of %d\n", printable.Count(answered, "node"), counting, tracking)
	first(s, reasons, listed, "and %d more reasons (-o json)", func(why string) {
		s.printf("%s: %s\n", printable.Text(few(without[why])), printable.Text(why))
	})
	has.counted, has.tracked = counting > 0, tracking > 0
	writeTopServices(s, all.Services, has)
	if all.Unlisted > 0 {
		s.printf("and %s\n", printable.Count(all.Unlisted, "more count"))
	}
}

// topNodesError is the result of adding up as an exit code.
func topNodesError(all *question.TopNodes) error {
	if err := silentError(answersOf(all.Nodes)); err != nil {
		return err
	}
	why := ""
	for _, n := range all.Nodes {
		lacks := n.EndpointsNotCounted
		if !n.Tracked {
			lacks = cmp.Or(lacks, n.NotCounted)
		}
		if lacks == "" {
			return nil
		}
		why = cmp.Or(why, lacks)
	}
	return unsupportedError(why)
}

// answersOf are the answers of nodes, in short.
func answersOf[N interface{ Answer() question.NodeAnswer }](nodes []N) []question.NodeAnswer {
	all := make([]question.NodeAnswer, len(nodes))
	for i := range nodes {
		all[i] = nodes[i].Answer()
	}
	return all
}

// writeSilent shows people which nodes gave no answer, and returns how many did.
func writeSilent(s *screen, nodes []question.NodeAnswer) (answered int) {
	silent := slices.DeleteFunc(slices.Clone(nodes), func(n question.NodeAnswer) bool { return n.Err == "" })
	most := listed
	if s.wide {
		most = len(silent)
	}
	for _, n := range silent[:min(most, len(silent))] {
		s.printf("! %s gave no answer: %s\n", printable.Text(n.Node), printable.Text(n.Err))
	}
	if more := len(silent) - most; more > 0 {
		s.printf("! and %s (-o wide)\n", printable.Count(more, "more node"))
	}
	return len(nodes) - len(silent)
}

// silentError names nodes that gave no answer; nil where all did.
func silentError(nodes []question.NodeAnswer) error {
	var silent []string
	why := ""
	for _, n := range nodes {
		if n.Err != "" {
			silent, why = append(silent, n.Node), cmp.Or(why, n.Err)
		}
	}
	if len(silent) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d nodes gave no answer: %s: %s", len(silent), len(nodes), few(silent), why)
}

// writeAcross shows people how the answers of nodes differ.
func writeAcross(s *screen, a *question.Across) {
	answered := writeSilent(s, answersOf(a.Nodes))
	if answered == 0 {
		return
	}
	differ := 0
	for _, n := range a.Nodes {
		if n.Differs {
			differ++
		}
	}
	s.printf("%d of %s answer alike\n", answered-differ, printable.Count(answered, "node"))
	if len(a.Differences) > 0 {
		s.printf("\n")
		t := table{columns: []column{{name: "NODE"}, {name: "FIELD", keep: true}, {name: "MOST"}, {name: "HERE"}}}
		for _, d := range a.Differences {
			t.add(d.Node, d.Field, cmp.Or(d.Most, "-"), cmp.Or(d.Here, "-"))
		}
		s.table(t)
	}
	if a.Unlisted > 0 {
		s.printf("and %s\n", printable.Count(a.Unlisted, "more difference"))
	}
}

// acrossError is the result of asking all nodes as an exit code.
func acrossError(a *question.Across) error {
	if err := silentError(answersOf(a.Nodes)); err != nil {
		return err
	}
	if slices.ContainsFunc(a.Nodes, func(n question.ComparedNode) bool { return n.Differs }) {
		return differsError("nodes answer differently")
	}
	return nil
}

// newKubectlStatus is status: of all nodes in short, of one as there.
func newKubectlStatus(k *cluster) *cobra.Command {
	c := k.asks(newStatus(k), "")
	c.Short = "One line for each node: version, mode, lag, drift, desired state; or the status of one"
	c.Long = `Without --node and --all-nodes there is one line for each node: version, mode, health, lag of
its inputs, drift, Services, and the hash of the desired state. The exit code is 3 when nodes
differ in that.

` + c.Long
	c.Example = "  kubectl tandem status\n" + c.Example
	asked, out := c.RunE, c.Flags().Lookup("output").Value.(*output)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if k.node != "" || k.all {
			return asked(cmd, args)
		}
		for _, name := range []string{"namespace", "all-namespaces", "name", "state", "all", "watch", "interval"} {
			if cmd.Flags().Changed(name) {
				return usageError{fmt.Errorf("--%s needs --node or --all-nodes", name)}
			}
		}
		nodes, _, err := k.compare(cmd, false)
		if err != nil {
			return err
		}
		own := namesOf(nodes, func(n *question.Node) string { return n.Node })
		if err := out.print(cmd, report{document: nodes, own: own, text: func(s *screen) { writeNodes(s, nodes) }}); err != nil {
			return err
		}
		return outOfStep(nodes)
	}
	return c
}

func newKubectlDiff(k *cluster) *cobra.Command {
	var out output
	c := &cobra.Command{
		Use: "diff", Short: "The Services whose state on some node differs from that on most; exit code 3 when there are any",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, found, err := k.compare(cmd, true)
			if err != nil {
				return err
			}
			if err := out.print(cmd, report{document: found, text: func(s *screen) { writeDifferences(s, nodes, found) }}); err != nil {
				return err
			}
			return outOfStep(nodes)
		},
	}
	out.register(c)
	return c
}

// newKubectlPlan is plan --against-running: what manifests would change on a node.
func newKubectlPlan(k *cluster) *cobra.Command {
	var out output
	var path string
	var prune bool
	c := &cobra.Command{
		Use: "plan", Short: "Show what manifests would change on a node, without changing it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case path == "":
				return usageError{errors.New("--manifests: required: a folder or file of manifests, or - for the standard input")}
			case path == "-" && k.all:
				return usageError{errors.New("--manifests -: the standard input is read once: name a file with --all-nodes")}
			}
			return previewManifests(cmd, &out, path, config.Default().NodePortRange, prune)
		},
	}
	c.Flags().StringVar(&path, "manifests", "", "folder or file of manifests; - for the standard input")
	c.Flags().BoolVar(&prune, "prune", false, "delete what is not in the manifests")
	out.register(c)
	c = k.asks(c, "--manifests ./services")
	c.Long = strings.Replace(c.Long, "as tandem plan", "as tandem plan --against-running", 1)
	return c
}

// outOfStep is the result of a comparison as an exit code.
func outOfStep(nodes []question.Node) error {
	silent, differs := 0, false
	for _, n := range nodes {
		if differs = differs || n.Differs; n.Err != "" {
			silent++
		}
	}
	switch {
	case silent > 0:
		return fmt.Errorf("%d of %d nodes did not answer", silent, len(nodes))
	case differs:
		return differsError("nodes differ in what they know")
	}
	return nil
}

// compare queries all nodes and compares their answers; differences are looked for only where
// they are wanted: for that a node is asked again, one at a time.
func (k *cluster) compare(cmd *cobra.Command, wanted bool) ([]question.Node, []question.NodeDifference, error) {
	ctx := cmd.Context()
	to, err := k.open()
	if err != nil {
		return nil, nil, err
	}
	pods, err := k.pods(ctx, to, "")
	if err != nil {
		return nil, nil, err
	}
	if err := k.choose(ctx, &to); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var nodes []question.Node
	each(cmd, pods, func(p pod) error {
		n, err := k.short(ctx, to, p, nil)
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, n)
		return err
	})
	usual, ok := question.Compare(nodes)
	if !ok || !wanted {
		return nodes, nil, nil
	}
	hashes := func(n question.Node) (map[string]string, error) {
		all := map[string]string{}
		i := slices.IndexFunc(pods, func(p pod) bool { return p.Metadata.Name == n.Pod })
		if _, err := k.short(ctx, to, pods[i], func(s question.NodeService) { all[s.Name] = s.Hash }); err != nil {
			return nil, fmt.Errorf("node %s, asked again: %w", n.Node, err)
		}
		return all, nil
	}
	found, err := differences(nodes, usual, hashes)
	return nodes, found, err
}

// short asks the tandem of a pod for its status, of which little is kept. Each, if any, gets all Services.
func (k *cluster) short(ctx context.Context, to session, p pod, each func(question.NodeService)) (n question.Node, err error) {
	node, name := p.Spec.NodeName, p.Metadata.Name
	defer func() {
		if err != nil {
			n = question.Unanswered(node, name, err)
		}
	}()
	only := question.Short()
	if each != nil {
		only = question.Filter{}
	}
	err = k.status(ctx, to, p, only, func(answer io.Reader) (err error) {
		n, err = question.ReadNode(node, name, answer, each)
		return err
	})
	return n, err
}

// status has the status of a pod's tandem read, as JSON, with the Services of a filter.
func (k *cluster) status(ctx context.Context, to session, p pod, only question.Filter, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, platform.StatusURL(only), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", wire.JSON)
	res, err := carrier{k, to, p, maxNode}.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
		return question.Refusal(cmp.Or(strings.TrimSpace(string(text)), res.Status))
	}
	return read(res.Body)
}

// maxDifferences bounds those that are listed; the other nodes that differ are named without what.
const maxDifferences = 100_000

// differences asks those nodes that differ, and a usual one, for the hashes of their Services.
func differences(nodes []question.Node, usual question.Node, hashes func(question.Node) (map[string]string, error)) (all []question.NodeDifference, err error) {
	var most map[string]string
	for _, n := range nodes {
		if !n.Differs {
			continue
		}
		if len(all) >= maxDifferences {
			all = append(all, question.NodeDifference{Node: n.Node, What: "differs"})
			continue
		}
		if most == nil {
			if most, err = hashes(usual); err != nil {
				return nil, err
			}
		}
		own, err := hashes(n)
		if err != nil {
			return nil, err
		}
		found := question.Differences(n.Node, most, own)
		all = append(all, found[:min(len(found), maxDifferences)]...)
	}
	return all, nil
}

func writeNodes(s *screen, nodes []question.Node) {
	t := table{columns: []column{
		{name: "NODE"},
		{name: "POD", wide: true},
		{name: "VERSION"},
		{name: "MODE"},
		{name: "STATE", keep: true, state: true},
		{name: "LAG", keep: true},
		{name: "DRIFT", keep: true},
		{name: "SERVICES", keep: true},
		{name: "FAILING", keep: true},
		{name: "DESIRED", keep: true},
		{name: "NOTE"},
	}}
	for _, n := range nodes {
		if n.Err != "" {
			t.add(n.Node, n.Pod, "-", "-", n.State(), "-", "-", "-", "-", "-", n.Err)
			continue
		}
		note := strings.Join(n.Reasons, "; ")
		if n.Differs {
			note = "differs from most: kubectl tandem diff"
		}
		t.add(n.Node, n.Pod, n.Version, n.Mode, n.State(), fmt.Sprintf("%.1fs", n.Lag), strconv.FormatUint(n.Drift, 10), strconv.Itoa(n.Services), strconv.Itoa(n.Failing), n.Hash, note)
	}
	s.table(t)
}

func writeDifferences(s *screen, nodes []question.Node, differences []question.NodeDifference) {
	for _, n := range nodes {
		if n.Err != "" {
			s.printf("! %s did not answer: %s\n", printable.Text(n.Node), printable.Text(n.Err))
		}
	}
	if len(differences) == 0 {
		s.printf("all nodes that answered know the same\n")
		return
	}
	t := table{columns: []column{{name: "NODE"}, {name: "SERVICE"}, {name: "WHAT", keep: true}}}
	for _, d := range differences {
		t.add(d.Node, d.Service, d.What)
	}
	s.table(t)
}

// completeWithin is how long a completion may take.
const completeWithin = time.Second

// completes completes with names that the API server has, and is silent where it does not answer.
func (k *cluster) completes(names func(context.Context, session) ([]string, error)) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(c.Context(), completeWithin)
		defer cancel()
		to, err := k.open()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := names(ctx, to)
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeArguments completes Services, and before them senders for a verb about a connection.
func (k *cluster) completeArguments(connection bool) cobra.CompletionFunc {
	services := k.completes(func(ctx context.Context, to session) (names []string, err error) {
		all, err := to.names(ctx, "api/v1/services")
		for _, s := range all {
			names = append(names, s.Namespace+"/"+s.Name)
		}
		return names, err
	})
	senders := k.completes(func(ctx context.Context, to session) ([]string, error) {
		names := []string{"host", "pod", "outside"}
		all, err := to.names(ctx, "api/v1/namespaces/"+url.PathEscape(to.scope)+"/pods")
		for _, p := range all {
			names = append(names, "pod/"+p.Name)
		}
		return names, err
	})
	return func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case connection && len(args) == 0:
			return senders(c, args, begun)
		case connection && len(args) == 1, !connection && len(args) == 0:
			return services(c, args, begun)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
