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
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/sleep"
	"github.com/tandem-proxy/tandem/platform"
	"github.com/tandem-proxy/tandem/platform/connectivity"
)

// clusterTest makes backends and four Services (plain, both traffic policies Local, session
// affinity, no endpoints; TCP, with node ports) in a namespace of its own in the cluster,
// with the rights of the user of a kubeconfig, and tests them from this node. All of it
// is deleted at the end, whatever that is.
type clusterTest struct {
	rules   *clientcmd.ClientConfigLoadingRules
	on      bool
	image   string
	port    int
	timeout time.Duration

	client    *http.Client
	base      *url.URL
	namespace string
}

func (k *clusterTest) register(c *cobra.Command) {
	k.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	fs := c.Flags()
	fs.BoolVar(&k.on, "in-cluster", false, "make two pods and four TCP Services (plain, traffic policies Local, session affinity, no endpoints) in a namespace of their own in the cluster, with the rights of the kubeconfig's user, and connect to them from this node")
	fs.StringVar(&k.image, "image", "", "with --in-cluster: the image of the backends, which accepts connections; what follows -- are its arguments")
	fs.IntVar(&k.port, "backend-port", 8080, "with --in-cluster: the port on which the image accepts connections")
	fs.StringVar(&k.rules.ExplicitPath, "kubeconfig", "", "with --in-cluster: path of the kubeconfig; else $KUBECONFIG or ~/.kube/config")
	fs.DurationVar(&k.timeout, "timeout", 2*time.Minute, "with --in-cluster: how long the backends may take to be served")
}

// run tests with backends whose containers have these arguments.
func (k *clusterTest) run(ctx context.Context, args []string) (r connectivity.Report, err error) {
	if k.image == "" || k.port < 1 || k.port > 65535 {
		return r, usageError{errors.New("--in-cluster needs the --image of the backends, and a --backend-port from 1 to 65535")}
	}
	here, err := platform.Services().Ask(ctx, platform.ServicesRequest{})
	if err != nil {
		return r, err
	}
	if err := k.connect(); err != nil {
		return r, err
	}
	k.namespace = "tandem-test-" + strings.ToLower(rand.Text()[:8])
	defer func() { err = joined(err, k.clear(context.WithoutCancel(ctx))) }()
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

// joined adds the error of a Close to a result, whose exit code stays.
func joined(err, closing error) error {
	if closing == nil {
		return err
	}
	return errors.Join(err, closing)
}

// own reports whether a Service is of the test.
func (k *clusterTest) own(service string) bool { return strings.HasPrefix(service, k.namespace+"/") }

func (k *clusterTest) connect() error {
	c, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	if k.client, err = rest.HTTPClientFor(c); err != nil {
		return err
	}
	k.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // as for kubectl
	k.base, _, err = rest.DefaultServerUrlFor(c)
	return err
}

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
		return k.base.JoinPath("api/v1/namespaces")
	}
	return k.base.JoinPath("api/v1/namespaces", k.namespace, kind)
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
	res, err := k.client.Do(req)
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
		all, err := platform.Services().Ask(ctx, platform.ServicesRequest{})
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
