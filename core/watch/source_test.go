// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// servers are the kinds of servers there are: everything ordinary must work on
// each.
func servers() map[string]apitest.Options {
	return map[string]apitest.Options{
		"streaming lists": {},
		"lists":           {NoWatchList: true},
		"pages":           {NoWatchList: true, NoCache: true},
		"plain HTTP":      {Plain: true},
	}
}

func TestFollow(t *testing.T) {
	for name, o := range servers() {
		for _, content := range []string{"", "application/json"} {
			t.Run(name+" "+content, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, o)
				w.config.API.ContentType = content
				follow(w.run())
			})
		}
	}
}

func follow(w *world) {
	w.synced()
	if got := w.sink.state(); got != initial {
		w.t.Fatalf("synced with %s", got)
	}
	w.server.Put(service("db", 5432), sliceOf("web", "10.0.0.1", "10.0.0.2"), nodeIn("b"))
	w.becomes("node node-1 b leaving=false, service default/db 5432, service default/web 80, slice default/web-x 2")
	w.noDeletes()
	w.server.Put(service("db", 5433))
	w.server.Delete(service("web", 80), sliceOf("web"), nodeIn("b"))
	w.becomes("node node-1 b leaving=true, service default/db 5433")
	w.until("the problem with the Node", func() bool { return strings.Contains(w.sink.complaints(), "Node node-1: not found on the API server") })
	if stale := w.source.Stale(time.Now()); len(stale) > 0 {
		w.t.Errorf("stale: %v", stale)
	}
	if synced, _, _ := w.sink.told(); !reflect.DeepEqual(synced, []bool{true}) {
		w.t.Errorf("synced: %v", synced)
	}
}

// What the API server must not send, and what kube-proxy does not ask for.
func TestSelectors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	foreign := service("foreign", 1)
	foreign.Labels = map[string]string{LabelProxyName: "other"}
	headless := sliceOf("headless", "10.0.0.1")
	headless.Labels[corev1.IsHeadlessService] = ""
	other := nodeIn("z")
	other.Name = "node-2"
	w.server.Put(foreign, headless, other)
	w.run().becomes(initial)
	w.synced()
	for resource, want := range map[string]string{
		"services": "!service.kubernetes.io/service-proxy-name", "endpointslices": "!service.kubernetes.io/headless", "nodes": "",
	} {
		for _, r := range w.server.Requests("", resource) {
			if got := r.Query.Get("labelSelector"); got != want {
				t.Errorf("%s: label selector %q", resource, got)
			}
			if r.Query.Get("allowWatchBookmarks") != "true" || r.Query.Get("timeoutSeconds") == "" {
				t.Errorf("%s: %v", resource, r.Query)
			}
			if !strings.HasPrefix(r.Accept, "application/vnd.kubernetes.protobuf") {
				t.Errorf("%s: accepts %s", resource, r.Accept)
			}
		}
	}
	for resource, want := range map[string]string{
		"nodes": "metadata.name=node-1", "services": "spec.clusterIP!=None,spec.type!=ExternalName", "endpointslices": "",
	} {
		if got := w.server.Requests("watch", resource)[0].Query.Get("fieldSelector"); got != want {
			t.Errorf("%s: field selector %q", resource, got)
		}
	}
	// A label makes a Service another proxy's.
	w.server.Put(func() *corev1.Service { s := service("web", 80); s.Labels = foreign.Labels; return s }())
	w.becomes("node node-1 a leaving=false, slice default/web-x 1")
	w.server.Put(service("web", 80))
	w.becomes(initial)
}

// A server that cannot select Services by their fields sends all of them, whether it
// streams lists or not; what is not served is dropped here.
func TestServerWithoutServiceFields(t *testing.T) {
	t.Parallel()
	for _, o := range []apitest.Options{{OldFields: true}, {OldFields: true, NoWatchList: true}} {
		w := newWorld(t, o)
		headless := service("headless", 1)
		headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		w.server.Put(headless)
		w.run().becomes(initial)
		w.synced()
		refused := 0
		for _, r := range w.server.Requests("", "services") {
			if r.Query.Get("fieldSelector") != "" {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("%+v: %d requests with a field selector, want 1", o, refused)
		}
		w.server.Cut("services")
		w.server.Put(service("late", 81))
		w.becomes(strings.Replace(initial, "service ", "service default/late 81, service ", 1))
	}
}

func TestBecomesHeadless(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{}).run()
	w.synced()
	s := service("web", 80)
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	w.server.Put(s)
	w.becomes("node node-1 a leaving=false, slice default/web-x 1")
	if n := w.resource("services").Objects; n != 0 {
		t.Errorf("%d Services are remembered", n)
	}
}

// Nothing is synced before both lists are complete; the Node is waited for a
// moment only.
func TestSyncedWaits(t *testing.T) {
	for _, slow := range []string{"services", "endpointslices"} {
		t.Run(slow, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			w.limits.nodeWait = 200 * time.Millisecond
			lift := w.server.Fail(apitest.Rule{Resource: slow, Hang: true})
			w.run().until("the other list", func() bool { return w.resource("nodes").Listed && w.sink.state() != "" })
			time.Sleep(300 * time.Millisecond) // longer than the Node is waited for
			if synced, _, _ := w.sink.told(); len(synced) > 0 {
				t.Fatal("synced without " + slow)
			}
			if stale := strings.Join(w.source.Stale(time.Now()), ""); !strings.Contains(stale, slow+" not listed for") {
				t.Errorf("stale: %q", stale)
			}
			lift()
			w.server.Stop()
			if err := w.server.Restart(); err != nil {
				t.Fatal(err)
			}
			w.synced()
			w.becomes(initial)
		})
	}
	t.Run("node", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, apitest.Options{})
		w.server.Delete(nodeIn("a"))
		w.run().synced()
		w.until("the problem", func() bool { return strings.Contains(w.sink.complaints(), "--hostname-override") })
		w.server.Put(nodeIn("c"))
		w.becomes("node node-1 c leaving=false, service default/web 80, slice default/web-x 1")
		w.until("no problem", func() bool { return w.sink.complaints() == "" })
	})
}

// A node whose Node object does not exist is unfit for traffic, as with kube-proxy; one whose Node
// could not be read is not.
func TestNodeThatDoesNotExist(t *testing.T) {
	t.Parallel()
	unfit := func(w *world) (all []bool) {
		w.sink.mu.Lock()
		defer w.sink.mu.Unlock()
		for _, p := range w.sink.problems {
			all = append(all, p.Unfit)
		}
		return all
	}
	w := newWorld(t, apitest.Options{})
	w.limits.nodeWait = 200 * time.Millisecond
	lift := w.server.Fail(apitest.Rule{Resource: "nodes", Status: 503, Reason: metav1.StatusReasonServiceUnavailable})
	w.run().synced()
	w.until("the problem with a Node that is not read", func() bool { return reflect.DeepEqual(unfit(w), []bool{false}) })
	w.server.Delete(nodeIn("a"))
	lift()
	w.until("that there is no Node", func() bool { return reflect.DeepEqual(unfit(w), []bool{true}) })
	w.server.Put(nodeIn("a"))
	w.until("the Node", func() bool { return len(unfit(w)) == 0 })
	w.server.Delete(nodeIn("a"))
	w.until("that it is gone", func() bool { return reflect.DeepEqual(unfit(w), []bool{true}) })
}

// What cannot be decoded changes nothing: the last good version is kept.
func TestBadObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	bad := sliceOf("bad", "10.0.0.9")
	bad.AddressType = "Morse"
	w.server.Put(bad)
	w.run().synced()
	if synced, _, _ := w.sink.told(); synced[0] {
		t.Error("whole, though a slice was rejected")
	}
	if first := w.sink.unknown()[0]; first != (model.Unread{Endpoints: true}) {
		t.Errorf("unread: %q, though a slice was rejected", first)
	}
	w.until("its problem", func() bool {
		return strings.Contains(w.sink.complaints(), "EndpointSlice default/bad-x: addressType: Morse")
	})

	bad.AddressType = discoveryv1.AddressTypeIPv4
	w.server.Put(bad)
	w.until("whole", func() bool { synced, _, _ := w.sink.told(); return synced[len(synced)-1] })
	w.until("no problem", func() bool { return w.sink.complaints() == "" })

	web := service("web", 80)
	web.Spec.ClusterIP, web.Spec.ClusterIPs = "127.0.0.1", []string{"127.0.0.1"}
	w.server.Put(web)
	w.until("the problem of the Service", func() bool { return strings.Contains(w.sink.complaints(), "Service default/web: spec.clusterIPs[0]") })
	if !strings.Contains(w.sink.state(), "service default/web 80") {
		t.Errorf("the last good version is gone: %s", w.sink.state())
	}
	w.noDeletes()
	w.server.Delete(web)
	w.until("gone", func() bool { return w.sink.complaints() == "" && !strings.Contains(w.sink.state(), "service") })
}

func TestServiceCIDRs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.run().synced()
	if got := w.sink.ranges("kubernetes"); len(got) == 0 {
		t.Error("synced before the ranges were passed")
	}
	is := func(name string, want ...string) {
		t.Helper()
		w.until("the ranges", func() bool { return reflect.DeepEqual(w.sink.ranges(name), nets(want...)) })
	}
	is("kubernetes", "10.96.0.0/16")
	w.server.Put(serviceCIDR("more", "fd00:96::/112", "10.8.0.0/16", "10.96.0.0/16"))
	is("more", "fd00:96::/112", "10.8.0.0/16", "10.96.0.0/16")
	w.server.Put(serviceCIDR("more", "fd00:96::/112", "10.8.0.0/33"))
	is("more", "fd00:96::/112")
	w.until("the complaint", func() bool {
		return strings.Contains(w.sink.complaints(), "ServiceCIDR more: spec.cidrs[1]: 10.8.0.0/33")
	})
	w.server.Delete(serviceCIDR("more"))
	is("more")
	is("kubernetes", "10.96.0.0/16")
}

// A server that has no ServiceCIDRs, or does not show them, is fine.
func TestServiceCIDRsMissing(t *testing.T) {
	t.Parallel()
	absent := newWorld(t, apitest.Options{Absent: []string{"servicecidrs"}})
	forbidden := newWorld(t, apitest.Options{})
	forbidden.server.Fail(apitest.Rule{Resource: "servicecidrs", Status: 403, Reason: metav1.StatusReasonForbidden, Message: "no"})
	for _, w := range []*world{absent, forbidden} {
		w.limits.silence, w.limits.stale = time.Minute, 2*time.Minute // all else is requested once
		w.run()
	}
	for _, w := range []*world{absent, forbidden} {
		w.synced()
		w.until("the warning", func() bool { return strings.Contains(w.logs.String(), "continuing without it") })
		time.Sleep(300 * time.Millisecond)
		if n := len(w.server.Requests("", "")); n > 3+startRejections+1 { // what is absent has no name
			t.Errorf("asked %d times", n)
		}
		if stale := w.source.Stale(time.Now().Add(time.Second)); len(stale) > 0 {
			t.Errorf("stale: %v", stale)
		}
	}
}

// Others use the same connection.
func TestClientAndRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.run().synced()
	rest, err := w.source.client.REST(corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	var list corev1.NodeList
	options := &metav1.ListOptions{FieldSelector: "metadata.name=node-1"}
	if err := rest.Get().Resource("nodes").VersionedParams(options, w.source.client.Codec()).Do(t.Context()).Into(&list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 {
		t.Errorf("%d Nodes", len(list.Items))
	}
	if seen := w.server.Requests("", ""); len(seen) != 5 {
		t.Errorf("seen %+v", seen)
	}
}
