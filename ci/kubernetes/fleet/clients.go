// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	core "k8s.io/client-go/informers/core/v1"
	discovery "k8s.io/client-go/informers/discovery/v1"
	networking "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
)

// tandem runs Tandem's client until ctx ends.
func (c *Client) tandem(ctx context.Context) error {
	settings := config.Default()
	settings.NodeName, settings.API.Kubeconfig = c.Node, c.Kubeconfig
	source, err := watch.Open(&settings, slog.New(slog.DiscardHandler), watch.Hooks{Dial: c.dial})
	if err != nil {
		return err
	}
	c.lists.Store(&lists{func() (n int64) {
		for _, r := range source.Resources() {
			n += int64(r.Lists)
		}
		return n
	}})
	return source.Run(ctx, &sink{c})
}

// sink drops all changes except those of the mark.
type sink struct{ client *Client }

func (*sink) Delete(model.Object)      {}
func (*sink) Problems([]model.Problem) {}
func (s *sink) Unread(model.Unread)    {}
func (s *sink) Synced(bool)            { s.client.synced.Store(true) }

func (s *sink) Set(o model.Object) {
	if slice, is := o.(*model.Slice); is && slice.Name.String() == s.client.Mark {
		s.client.saw(slice.Version)
	}
}

// resync is kube-proxy's configSyncPeriod.
const resync = 15 * time.Minute

// clientGo follows what kube-proxy 1.37 follows, with its selectors and settings
// (cmd/kube-proxy/app/server.go, pkg/proxy/node.go), until ctx ends. Its store keeps
// keys instead of objects.
func (c *Client) clientGo(ctx context.Context) error {
	settings, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	settings.ContentType, settings.QPS, settings.Burst, settings.Dial = "application/vnd.kubernetes.protobuf", 5, 10, c.dial
	var sent atomic.Int64
	c.lists.Store(&lists{sent.Load})
	settings.Wrap(func(next http.RoundTripper) http.RoundTripper { return &listCounter{next, &sent} })
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return err
	}
	selected := func(label, field string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = label, field }
	}
	none := cache.Indexers{}
	var synced []cache.InformerSynced
	var group sync.WaitGroup
	defer group.Wait()
	for _, i := range []cache.SharedIndexInformer{
		core.NewFilteredNodeInformer(client, resync, none, selected("", "metadata.name="+c.Node)),
		core.NewFilteredServiceInformer(client, "", resync, none, selected("!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None")),
		discovery.NewFilteredEndpointSliceInformer(client, "", resync, none, selected("!"+corev1.IsHeadlessService, "")),
		networking.NewServiceCIDRInformer(client, resync, none),
	} {
		if err := i.SetTransform(c.slim); err != nil {
			return err
		}
		group.Go(func() { i.RunWithContext(ctx) })
		synced = append(synced, i.HasSynced)
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		c.synced.Store(true)
	}
	<-ctx.Done()
	return nil
}

// slim makes a key of an object.
func (c *Client) slim(o any) (any, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	key := m.GetName()
	if m.GetNamespace() != "" {
		key = m.GetNamespace() + "/" + key
	}
	if _, slice := o.(*discoveryv1.EndpointSlice); slice && key == c.Mark {
		if version, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64); err == nil {
			c.saw(version)
		}
	}
	return cache.ExplicitKey(key), nil
}

// listCounter counts the lists that the server began to send.
type listCounter struct {
	next  http.RoundTripper
	lists *atomic.Int64
}

func (l *listCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	paged := q.Get("continue") != ""
	response, err := l.next.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK && !paged && (q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") {
		l.lists.Add(1)
	}
	return response, err
}
