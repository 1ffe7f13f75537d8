// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/health"
	"github.com/tandem-proxy/tandem/core/printable"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/watch"
)

// kubectlPlugin is the name of this program as a plugin of kubectl.
const kubectlPlugin = "kubectl-tandem"

// newKubectl is what `kubectl tandem` does: the program under that name.
func newKubectl() *cobra.Command {
	k := &cluster{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
	c := &cobra.Command{
		Use:   "kubectl",
		Short: "Compare the nodes of a cluster; as a plugin of kubectl: kubectl tandem",
		Long: `kubectl asks every tandem of a cluster through the API server's proxy of pods, with
the rights of the user of a kubeconfig in the namespace of tandem: list of pods, get
of pods/proxy, and create of serviceaccounts/token for the ServiceAccount tandem-status.
The proxy passes no credentials on, so that each tandem gets a token of that account,
which is good for ten minutes, for reading a status, and for nothing else. The tandems
must serve their status on the pod's address and be allowed to check tokens: value
kubectl.enabled of the chart.

A link to tandem that is called ` + kubectlPlugin + ` in PATH makes it kubectl tandem.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs := c.PersistentFlags()
	fs.StringVar(&k.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig; else $KUBECONFIG or ~/.kube/config")
	fs.StringVar(&k.overrides.CurrentContext, "context", "", "context of the kubeconfig")
	fs.StringVar(&k.namespace, "tandem-namespace", "kube-system", "namespace of tandem's pods")
	fs.StringVar(&k.account, "service-account", "tandem-status", "ServiceAccount there that may read the status")
	fs.StringVar(&k.selector, "selector", "app.kubernetes.io/name=tandem", "labels of tandem's pods")
	fs.IntVar(&k.port, "metrics-port", 10249, "port that tandem serves its status on")
	fs.DurationVar(&k.timeout, "timeout", 20*time.Second, "how long a node may take to answer")
	c.AddCommand(newKubectlStatus(k), newKubectlDiff(k))
	return c
}

func newKubectlStatus(k *cluster) *cobra.Command {
	return k.comparison(false, &cobra.Command{
		Use: "status", Short: "One line for each node: version, mode, lag, drift, desired state; exit code 3 when nodes differ",
	}, func(nodes []question.Node, _ []question.NodeDifference) report {
		return report{document: nodes, text: func(s *screen) error { writeNodes(s, nodes); return nil }}
	})
}

func newKubectlDiff(k *cluster) *cobra.Command {
	return k.comparison(true, &cobra.Command{
		Use: "diff", Short: "The Services whose state on some node differs from that on most; exit code 3 when there are any",
	}, func(nodes []question.Node, differences []question.NodeDifference) report {
		return report{document: differences, text: func(s *screen) error { writeDifferences(s, nodes, differences); return nil }}
	})
}

// comparison completes a command that compares all nodes; differences are looked for only
// where they are wanted.
func (k *cluster) comparison(differences bool, c *cobra.Command, of func([]question.Node, []question.NodeDifference) report) *cobra.Command {
	var out output
	c.Args = noArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		nodes, found, err := k.compare(cmd.Context(), differences)
		if err != nil {
			return err
		}
		if err := out.print(cmd, of(nodes, found)); err != nil {
			return err
		}
		return outOfStep(nodes)
	}
	out.register(c)
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
			t.add(n.Node, n.Pod, "-", "-", "unknown", "-", "-", "-", "-", "-", n.Err)
			continue
		}
		health, note := "healthy", ""
		if !n.Healthy {
			health = "not healthy"
		}
		if n.Differs {
			note = "differs from most: kubectl tandem diff"
		}
		t.add(n.Node, n.Pod, n.Version, n.Mode, health, fmt.Sprintf("%.1fs", n.Lag), strconv.FormatUint(n.Drift, 10), strconv.Itoa(n.Services), strconv.Itoa(n.Failing), n.Hash, note)
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

// cluster reaches the tandems of a cluster.
type cluster struct {
	rules                        *clientcmd.ClientConfigLoadingRules
	overrides                    clientcmd.ConfigOverrides
	namespace, account, selector string
	port                         int
	timeout                      time.Duration
}

// session is access to a cluster's API server, and to the tandems behind it.
type session struct {
	*http.Client
	base  *url.URL
	token string // for tandems
}

// The bounds of one request.
const (
	maxAsked       = 8         // nodes
	maxPods        = 16 << 20  // bytes of a page of the list of pods
	maxPages       = 200       // of them
	maxError       = 4096      // bytes of an answer that is an error
	maxToken       = 64 << 10  // bytes of the answer with a token
	maxNode        = 256 << 20 // bytes of a status, which is read as a stream
	maxDifferences = 100_000   // listed; the other nodes that differ are named without what
)

// compare queries all nodes and compares their answers; differences are looked for only where
// they are wanted: for that a node is asked again, one at a time.
func (k *cluster) compare(ctx context.Context, wanted bool) ([]question.Node, []question.NodeDifference, error) {
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &k.overrides).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, nil, err
	}
	// The client adds the user's credentials to every request, to whatever host: a
	// redirect is an answer like others.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, nil, err
	}
	to := session{Client: client, base: base}
	pods, err := k.pods(ctx, to)
	if err != nil {
		return nil, nil, err
	}
	if to.token, err = k.newToken(ctx, to); err != nil {
		return nil, nil, err
	}
	nodes := make([]question.Node, len(pods))
	var group sync.WaitGroup
	turns := make(chan struct{}, maxAsked)
	for i, p := range pods {
		group.Go(func() {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
			case <-ctx.Done(): // which is then the error of asking
			}
			nodes[i] = k.ask(ctx, to, p.Spec.NodeName, p.Metadata.Name, nil)
		})
	}
	group.Wait()
	usual, ok := question.Compare(nodes)
	if !ok || !wanted {
		return nodes, nil, nil
	}
	hashes := func(n question.Node) (map[string]string, error) {
		all := map[string]string{}
		if again := k.ask(ctx, to, n.Node, n.Pod, func(name, hash string) { all[name] = hash }); again.Err != "" {
			return nil, fmt.Errorf("node %s, asked again: %s", n.Node, again.Err)
		}
		return all, nil
	}
	differences, err := differences(nodes, usual, hashes)
	return nodes, differences, err
}

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

// pod holds the fields that are read of a Pod.
type pod struct {
	Metadata struct{ Name string }
	Spec     struct{ NodeName string }
}

// pods lists the pods of tandem that have a node.
func (k *cluster) pods(ctx context.Context, to session) (all []pod, err error) {
	query := url.Values{"labelSelector": {k.selector}, "limit": {"500"}}
	for range maxPages {
		var list struct {
			Metadata struct{ Continue string }
			Items    []pod
		}
		if err := get(ctx, to.Client, to.base.JoinPath("api/v1/namespaces", k.namespace, "pods"), query, maxPods, &list); err != nil {
			return nil, fmt.Errorf("list the pods of tandem in namespace %s: %w", k.namespace, err)
		}
		for _, p := range list.Items {
			if p.Spec.NodeName != "" {
				all = append(all, p)
			}
		}
		if list.Metadata.Continue == "" {
			break
		}
		query.Set("continue", list.Metadata.Continue)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no pods of tandem in namespace %s with labels %s", k.namespace, k.selector)
	}
	return all, nil
}

// tokenSeconds is how long a token is good for, the shortest that the API allows.
const tokenSeconds = 600

// newToken makes a token that is good for tandems and for nothing else: what reaches them is in
// the hands of whoever runs a pod with their labels, and goes over the network in the clear.
func (k *cluster) newToken(ctx context.Context, to session) (string, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"audiences": []string{watch.Audience}, "expirationSeconds": tokenSeconds},
	})
	if err != nil {
		return "", err
	}
	at := to.base.JoinPath("api/v1/namespaces", k.namespace, "serviceaccounts", k.account, "token")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	var answer struct{ Status struct{ Token string } }
	if err := fetch(to.Client, req, maxToken, func(r io.Reader) error { return json.NewDecoder(r).Decode(&answer) }); err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s, which value kubectl.enabled of the chart makes: %w", k.namespace, k.account, err)
	}
	if answer.Status.Token == "" {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: the API server answers without one", k.namespace, k.account)
	}
	return answer.Status.Token, nil
}

// ask asks the tandem of a pod, through the API server.
func (k *cluster) ask(ctx context.Context, to session, node, name string, each func(name, hash string)) question.Node {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	at := to.base.JoinPath("api/v1/namespaces", k.namespace, "pods", name+":"+strconv.Itoa(k.port), "proxy/status")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	var n question.Node
	if err == nil {
		req.Header.Set(health.TokenHeader, to.token)
		err = fetch(to.Client, req, maxNode, func(r io.Reader) (err error) {
			n, err = question.ReadNode(node, name, r, each)
			return err
		})
	}
	if err != nil {
		return question.Node{Node: node, Pod: name, Err: err.Error()}
	}
	return n
}

// get reads a JSON document of so many bytes at most.
func get(ctx context.Context, client *http.Client, at *url.URL, query url.Values, limit int64, answer any) error {
	to := *at
	to.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	return fetch(client, req, limit, func(r io.Reader) error { return json.NewDecoder(r).Decode(answer) })
}

// fetch has an answer of so many bytes at most read.
func fetch(client *http.Client, req *http.Request, limit int64, read func(io.Reader) error) error {
	req.Header.Set("Accept", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
		return apiError(res.StatusCode, text)
	}
	err = read(http.MaxBytesReader(nil, res.Body, limit))
	if errors.As(err, new(*http.MaxBytesError)) {
		return fmt.Errorf("answer larger than %d bytes", limit)
	}
	return err
}

// apiError is the error of an answer: the message of Kubernetes' Status where it is
// one, and what to do.
func apiError(code int, text []byte) error {
	var said struct{ Kind, Message string }
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said.Message = strings.TrimSpace(string(text))
	}
	message := http.StatusText(code) + ": " + said.Message
	switch {
	case code == http.StatusForbidden && said.Kind == "Status": // of the API server, not of the pod
		message += "; the user needs list of pods, get of pods/proxy and create of serviceaccounts/token there"
	case code == http.StatusServiceUnavailable, code == http.StatusBadGateway:
		message += "; does tandem serve its status on the pod's address (metricsBindAddress 0.0.0.0:10249), and may it check tokens (value kubectl.enabled of the chart)?"
	}
	return errors.New(message)
}
