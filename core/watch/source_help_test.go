// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

const thisNode = "node-1"

// record is a Sink that remembers the state it was brought to, and how often.
type record struct {
	mu       sync.Mutex
	services map[model.ServiceName]*model.Service
	slices   map[model.SliceName]*model.Slice
	node     *model.Node
	others   map[string]*model.Node
	cidrs    map[string]*model.ServiceCIDR
	routes   map[model.RouteName]*model.Route
	grants   map[model.GrantName]*model.Grant
	problems []model.Problem
	synced   []bool
	unread   []model.Unread
	sets     int      // of Services and slices
	deletes  []string // of Services and slices
	early    int      // sets before the first Synced
}

func newRecord() *record {
	return &record{others: map[string]*model.Node{}, services: map[model.ServiceName]*model.Service{}, slices: map[model.SliceName]*model.Slice{}, cidrs: map[string]*model.ServiceCIDR{}, routes: map[model.RouteName]*model.Route{}, grants: map[model.GrantName]*model.Grant{}}
}

func (r *record) Set(o model.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o := o.(type) {
	case *model.Service:
		r.services[o.Name] = o
		r.set()
	case *model.Slice:
		r.slices[o.Name] = o
		r.set()
	case *model.Node:
		if o.Name == thisNode {
			r.node = o
		} else {
			r.others[o.Name] = o
		}
	case *model.ServiceCIDR:
		r.cidrs[o.Name] = o
	case *model.Route:
		r.routes[o.Name] = o
	case *model.Grant:
		r.grants[o.Name] = o
	}
}

func (r *record) set() {
	if r.sets++; len(r.synced) == 0 {
		r.early++
	}
}

func (r *record) Delete(o model.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch o := o.(type) {
	case *model.Service:
		delete(r.services, o.Name)
		r.deletes = append(r.deletes, "service "+o.Name.String())
	case *model.Slice:
		delete(r.slices, o.Name)
		r.deletes = append(r.deletes, "slice "+o.Name.String())
	case *model.Node:
		delete(r.others, o.Name)
	case *model.ServiceCIDR:
		delete(r.cidrs, o.Name)
	case *model.Route:
		delete(r.routes, o.Name)
		r.deletes = append(r.deletes, o.Name.String())
	case *model.Grant:
		delete(r.grants, o.Name)
	}
}

// ranges returns what a ServiceCIDR has; nil where there is none.
func (r *record) ranges(name string) []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.cidrs[name]; c != nil {
		return c.CIDRs
	}
	return nil
}

func (r *record) Problems(ps []model.Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = ps
}

func (r *record) Unread(u model.Unread) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unread = append(r.unread, u)
}

func (r *record) Synced(whole bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = append(r.synced, whole)
}

// state is what a record was brought to, as text.
func (r *record) state() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for n, s := range r.services {
		line := "service " + n.String()
		for _, p := range s.Ports {
			line += fmt.Sprintf(" %d", p.Port)
		}
		lines = append(lines, line)
	}
	for n, s := range r.slices {
		lines = append(lines, fmt.Sprintf("slice %s %d", n, len(s.Endpoints)))
	}
	for n, o := range r.routes {
		lines = append(lines, fmt.Sprintf("%s %d", n, len(o.Backends)))
	}
	for n := range r.grants {
		lines = append(lines, "grant "+n.Name)
	}
	if r.node != nil {
		lines = append(lines, fmt.Sprintf("node %s %s leaving=%t", r.node.Name, r.node.Zone, r.node.Leaving))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

func (r *record) told() (synced []bool, sets int, deletes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.synced), r.sets, slices.Clone(r.deletes)
}

func (r *record) complaints() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, p := range r.problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

func service(name string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Ports: []corev1.ServicePort{{Port: port, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func sliceOf(service string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: service + "-x", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr(int32(8080))}},
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	return s
}

func nodeIn(zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: thisNode, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// world is a source that follows a server, and what it passed on.
type world struct {
	t      *testing.T
	server *apitest.Server
	config *config.Config
	hooks  Hooks
	limits limits
	source *Source
	sink   *record
	logs   *logs
	stop   func()
}

// quick are limits for tests: long enough for a busy machine.
func quick() limits {
	return limits{answer: maxAnswer, silence: 5 * time.Second, stale: 6 * time.Second, nodeWait: time.Second, flush: time.Millisecond, absent: time.Hour, unary: time.Hour}
}

// newWorld starts a server with a Service, its slice and our Node.
func newWorld(t *testing.T, o apitest.Options) *world {
	t.Helper()
	s, err := apitest.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	w := &world{
		t: t, server: s, limits: quick(), sink: newRecord(), logs: &logs{},
		config: &config.Config{NodeName: thisNode},
	}
	w.config.API.Kubeconfig = w.file("kubeconfig", s.Kubeconfig("{token: secret}"))
	s.Put(service("web", 80), sliceOf("web", "10.0.0.1"), nodeIn("a"), serviceCIDR("kubernetes", "10.96.0.0/16"))
	return w
}

const initial = "node node-1 a leaving=false, service default/web 80, slice default/web-x 1"

func (w *world) file(name, text string) string {
	path := filepath.Join(w.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// run runs the source until the test ends.
func (w *world) run() *world {
	w.t.Helper()
	var err error
	if w.source, err = Open(w.config, slog.New(slog.NewTextHandler(w.logs, nil)), w.hooks); err != nil {
		w.t.Fatal(err)
	}
	w.source.limits = w.limits
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.source.Run(ctx, w.sink) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			w.t.Error("Run does not end")
		}
	})
	w.t.Cleanup(w.stop)
	return w
}

// becomes waits until the sink was brought to a state.
func (w *world) becomes(want string) {
	w.t.Helper()
	w.until("the state "+want, func() bool { return w.sink.state() == want })
}

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	w.t.Fatalf("not within a minute: %s\nstate: %s\nproblems: %s\nresources: %+v\nlogs:\n%s",
		what, w.sink.state(), w.sink.complaints(), w.source.Resources(), w.logs)
}

// synced waits until the sink has everything.
func (w *world) synced() {
	w.t.Helper()
	w.until("synced", func() bool { synced, _, _ := w.sink.told(); return len(synced) > 0 })
}

// restarted stops the server, makes changes, and starts it again.
func (w *world) restarted(changes func()) {
	w.t.Helper()
	w.server.Stop()
	changes()
	if err := w.server.Restart(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) resource(name string) Resource {
	for _, r := range w.source.Resources() {
		if r.Name == name {
			return r
		}
	}
	w.t.Fatalf("no resource %s", name)
	return Resource{}
}

// noDeletes fails if anything was ever deleted.
func (w *world) noDeletes() {
	w.t.Helper()
	if _, _, deletes := w.sink.told(); len(deletes) > 0 {
		w.t.Errorf("deleted: %v", deletes)
	}
}

// logs are what was logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func statusError(code int32, reason metav1.StatusReason, retryAfter int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Code: code, Reason: reason, Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter},
	}}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// unknown returns what the sink was told to be unread.
func (r *record) unknown() []model.Unread {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.unread)
}
