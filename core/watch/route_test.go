// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// routeTo is a TCPRoute of Service web to Services with the same port.
func routeTo(backends ...string) *gateway.TCPRoute {
	r := &gateway.TCPRoute{}
	r.Namespace, r.Name = "default", "split"
	r.Spec.ParentRefs = []gateway.ParentRef{{Group: ptr(""), Kind: ptr("Service"), Name: "web"}}
	rule := gateway.RouteRule{}
	for _, b := range backends {
		rule.BackendRefs = append(rule.BackendRefs, gateway.BackendRef{Name: b, Port: ptr(int32(80))})
	}
	r.Spec.Rules = []gateway.RouteRule{rule}
	return r
}

func grantOf(name string) *gateway.ReferenceGrant {
	return &gateway.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: name},
		Spec: gateway.GrantSpec{
			From: []gateway.GrantFrom{{Group: gateway.Group, Kind: "TCPRoute", Namespace: "default"}},
			To:   []gateway.GrantTo{{Kind: "Service"}},
		},
	}
}

var gatewayResources = []string{"tcproutes", "udproutes", "referencegrants"}

// Routes and grants arrive before Synced, and change and go as all else, in lists of
// every kind, and only where they are requested.
func TestFollowRoutes(t *testing.T) {
	for name, o := range servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, o)
			w.config.GatewayRoutes = true
			w.server.Put(routeTo("a", "b"), grantOf("allow"))
			w.run().synced()
			if got := w.sink.state(); got != "TCPRoute default/split 2, grant allow, "+initial {
				t.Fatalf("synced with %s", got)
			}
			udp := &gateway.UDPRoute{Route: routeTo("c").Route}
			w.server.Put(routeTo("a"), udp)
			w.becomes("TCPRoute default/split 1, UDPRoute default/split 1, grant allow, " + initial)
			gone := routeTo("a") // for a gateway from now on
			gone.Spec.ParentRefs[0] = gateway.ParentRef{Name: "entry"}
			w.server.Put(gone)
			w.becomes("UDPRoute default/split 1, grant allow, " + initial)
			w.server.Delete(udp, grantOf("allow"))
			w.becomes(initial)
		})
	}
	t.Run("off", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, apitest.Options{})
		w.server.Put(routeTo("a"))
		w.run().synced()
		for _, r := range gatewayResources {
			if n := len(w.server.Requests("", r)); n > 0 {
				t.Errorf("%s: %d requests", r, n)
			}
		}
	})
}

// A route that no Service of its own namespace can be the parent of is a problem, and nothing else: whoever may write
// routes must not have the proxy doubt that it knows everything, which keeps what others have left.
func TestRoutesThatAreMoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.config.GatewayRoutes = true
	foreign, nameless := routeTo("a"), routeTo("a")
	foreign.Name, foreign.Spec.ParentRefs[0].Namespace = "foreign", "other"
	nameless.Name, nameless.Spec.ParentRefs[0].Name = "nameless", "No Name"
	w.server.Put(routeTo("a"), foreign, nameless)
	w.run().synced()
	if synced, _, _ := w.sink.told(); !synced[0] {
		t.Error("in doubt for a route that is ignored")
	}
	has := func(name string) bool { return strings.Contains(w.sink.complaints(), "TCPRoute default/"+name) }
	w.until("the problems", func() bool { return has("foreign") && has("nameless") })
	moved := routeTo("a")
	moved.Spec.ParentRefs[0].Namespace = "other"
	w.server.Put(moved)
	w.becomes(initial)
	w.server.Delete(foreign, moved)
	w.until("one problem", func() bool { return !has("foreign") && !has("split") && has("nameless") })
	w.server.Delete(nameless)
	w.until("no problem", func() bool { return w.sink.complaints() == "" })
}

// Servers without the kinds, or that forbid them, are asked a few times and then rarely,
// and all else works. What appears later is found.
func TestRoutesAbsent(t *testing.T) {
	for _, name := range []string{"absent", "forbidden"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := apitest.Options{}
			if name == "absent" {
				o.Absent = gatewayResources
			}
			w := newWorld(t, o)
			w.config.GatewayRoutes, w.limits.absent = true, 2*time.Second
			w.limits.silence, w.limits.stale = time.Minute, 2*time.Minute // all else is requested once
			var lifts []func()
			for _, r := range gatewayResources {
				if name == "forbidden" {
					lifts = append(lifts, w.server.Fail(apitest.Rule{Resource: r, Status: 403, Reason: metav1.StatusReasonForbidden, Message: "no"}))
				}
			}
			w.run().synced()
			w.until("the warnings", func() bool { return strings.Count(w.logs.String(), "continuing without it") == 3 })
			if got := w.sink.state(); got != initial {
				t.Errorf("the state is %s", got)
			}
			if n, most := len(w.server.Requests("", "")), 4+3*2*(startRejections+2); n > most { // two versions of each
				t.Errorf("asked %d times, at most %d are expected", n, most)
			}
			if stale := w.source.Stale(time.Now().Add(time.Second)); len(stale) > 0 {
				t.Errorf("stale: %v", stale)
			}
			w.server.Put(routeTo("a"))
			for _, lift := range lifts {
				lift()
			}
			if name == "absent" {
				w.server.Serve("tcproutes", "v1alpha2")
			}
			w.becomes("TCPRoute default/split 1, " + initial)
		})
	}
}

// A definition that serves another version than before is followed in that; routes
// of one that is removed are removed as well, but not while the server only fails.
func TestRoutesVanish(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apitest.Options{})
	w.config.GatewayRoutes, w.limits.absent = true, time.Second
	w.server.Put(routeTo("a"))
	const routed = "TCPRoute default/split 1, " + initial
	w.run().becomes(routed)
	w.server.Serve("tcproutes", "v1alpha2")
	w.until("a watch of the older version", func() bool { return w.server.Streams("tcproutes") == 1 })
	w.server.Put(routeTo("a", "b"))
	w.becomes("TCPRoute default/split 2, " + initial)
	w.noDeletes()

	lift := w.server.Fail(apitest.Rule{Resource: "tcproutes", Status: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "starting"})
	w.server.Cut("tcproutes")
	time.Sleep(300 * time.Millisecond)
	w.noDeletes()
	lift()
	w.server.Serve("tcproutes", "")
	w.becomes(initial)
	w.server.Serve("tcproutes", "v1")
	w.becomes("TCPRoute default/split 2, " + initial)
}

// A 404 of something in front of the server, or for a kind that the server says it has,
// removes nothing, however often it comes; one that the server's list confirms does.
func TestRoutesOutlastFalseAnswers(t *testing.T) {
	for name, rule := range map[string]apitest.Rule{
		"balancer":        {Status: 404, Message: "default backend"},
		"one path":        {Resource: "tcproutes", Status: 404, Message: "404 page not found"},
		"one with Status": {Resource: "tcproutes", Status: 404, Reason: metav1.StatusReasonNotFound, Message: "no"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apitest.Options{})
			w.config.GatewayRoutes, w.limits.absent = true, 100*time.Millisecond
			w.server.Put(routeTo("a"))
			const routed = "TCPRoute default/split 1, " + initial
			w.run().becomes(routed)
			before := len(w.server.Requests("", "tcproutes"))
			lift := w.server.Fail(rule)
			w.server.Cut("tcproutes")
			w.until("many answers", func() bool {
				return len(w.server.Requests("", "tcproutes")) > before+startRejections+1
			})
			w.noDeletes()
			lift()
			w.server.Put(routeTo("a", "b"))
			w.becomes("TCPRoute default/split 2, " + initial)
			w.server.Serve("tcproutes", "")
			w.becomes(initial)
		})
	}
}

// What is wrong with a route or its backends is reported, and the rest counts.
func TestRouteConversion(t *testing.T) {
	for _, tt := range []struct{ spec, want, problems string }{
		{`{"parentRefs":[{"name":"gw"}]}`, "<nil>", ""},
		{`{"parentRefs":[{"group":"","name":"web"}]}`, "<nil>", ""},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web"}]}`, "[{web 0 }] []", ""},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web","namespace":"far"}]}`, "<nil>", "spec.parentRefs[0].namespace: far"},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web","port":70000},{"group":"","kind":"Service","name":"web","port":80,"sectionName":"http"}]}`, "[{web 80 http}] []", "spec.parentRefs[0].port: 70000"},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[{"backendRefs":[{"name":"a","port":1},{"name":"b","namespace":"n","port":2,"weight":0}]},{}]}`, "[{web 0 }] [{x/a 1 1} {n/b 2 0}]", "spec.rules: 2"},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[{"backendRefs":[{"name":"a"}]}]}`, "[{web 0 }] []", "spec.rules[0].backendRefs[0].port"},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[{"backendRefs":[{"name":"a","port":1,"weight":1000001}]}]}`, "[{web 0 }] []", "spec.rules[0].backendRefs[0].weight: 1000001"},
		{`{"parentRefs":[{"group":"","kind":"Service","name":"web"}],"rules":[{"backendRefs":[{"group":"net.example","kind":"Import","name":"a","port":1}]}]}`, "[{web 0 }] []", "spec.rules[0].backendRefs[0].kind: net.example/Import"},
	} {
		var o gateway.TCPRoute
		if err := json.Unmarshal([]byte(`{"metadata":{"namespace":"x","name":"r"},"spec":`+tt.spec+`}`), &o); err != nil {
			t.Fatal(err)
		}
		r, problems := route(model.TCP, &o.Route)
		got := "<nil>"
		if r != nil {
			got = fmt.Sprint(r.Parents, " ", r.Backends)
		}
		text := fmt.Sprint(problems)
		if got != tt.want || (tt.problems == "") != (len(problems) == 0) || !strings.Contains(text, tt.problems) {
			t.Errorf("%s: got %s and %s, want %s and %q", tt.spec, got, text, tt.want, tt.problems)
		}
	}
}
