// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/watch"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

var apiServer = netip.MustParseAddrPort("192.0.2.200:6443")

// machineFacts are the facts of the simulated machine.
func machineFacts() model.Machine {
	return model.Machine{
		Addresses: []model.LocalAddress{
			{Prefix: netip.MustParsePrefix("192.0.2.1/24")}, {Prefix: netip.MustParsePrefix("2001:db8::1/64")},
		},
		APIServers: []netip.AddrPort{apiServer},
	}
}

// cluster is what the API server has.
type cluster struct {
	server *apitest.Server
	config *config.Config
	rng    *rand.Rand
	now    conformance.Random
	node   *corev1.Node
	ranges *networkingv1.ServiceCIDR
	dir    map[string]runtime.Object // what of now is at the server, by kind and name
}

func newCluster(server *apitest.Server, c *config.Config, rng *rand.Rand) *cluster {
	k := &cluster{server: server, config: c, rng: rng, now: conformance.RandomWorld(rng), dir: map[string]runtime.Object{}}
	k.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: conformance.NodeName, Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
		}},
	}
	k.ranges = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:10:96::/112"}}}
	k.put(k.node)
	k.put(k.ranges)
	for _, s := range k.now.Services {
		k.put(apitest.Service(s))
	}
	for _, s := range k.now.Slices {
		k.put(apitest.Slice(s))
	}
	return k
}

func key(o runtime.Object) string {
	switch o := o.(type) {
	case *corev1.Service:
		return "service " + o.Name
	case *discoveryv1.EndpointSlice:
		return "slice " + o.Name
	case *corev1.Node:
		return "node"
	}
	return "ranges"
}

func (k *cluster) put(o runtime.Object) {
	k.dir[key(o)] = o
	k.server.Put(o)
}

func (k *cluster) remove(o runtime.Object) {
	delete(k.dir, key(o))
	k.server.Delete(o)
}

// change changes one object, and returns the Services that this touches; shaken says
// that it may be all.
func (k *cluster) change(rng *rand.Rand) (touched []model.ServiceName, shaken bool) {
	next := k.now.Change(rng)
	if next.Host != k.now.Host { // this cluster has a Node of its own
		k.changeNode(rng)
		return nil, true
	}
	return k.set(next), false
}

// set puts other Services and slices in the place of those that there are, and returns the
// Services that this touches.
func (k *cluster) set(next conformance.Random) (touched []model.ServiceName) {
	before := k.now
	k.now.Services, k.now.Slices, k.now.Routes = next.Services, next.Slices, next.Routes
	differ(before.Services, next.Services, func(s *model.Service) { k.put(apitest.Service(s)) }, func(s *model.Service) { k.remove(apitest.Service(s)) },
		func(s *model.Service) string {
			return s.Name.Name
		})
	touched = changed(before.Services, next.Services, func(s *model.Service) model.ServiceName { return s.Name })
	differ(before.Slices, next.Slices, func(s *model.Slice) { k.put(apitest.Slice(s)) }, func(s *model.Slice) { k.remove(apitest.Slice(s)) },
		func(s *model.Slice) string {
			return s.Name.Name
		})
	return append(touched, changed(before.Slices, next.Slices, func(s *model.Slice) model.ServiceName {
		return s.Owner()
	})...)
}

// changed returns the Services of what is in one of two lists only.
func changed[T comparable](before, now []T, service func(T) model.ServiceName) (names []model.ServiceName) {
	for _, x := range slices.Concat(before, now) {
		if !slices.Contains(before, x) || !slices.Contains(now, x) {
			names = append(names, service(x))
		}
	}
	return names
}

func differ[T comparable](before, now []T, put, remove func(T), name func(T) string) {
	for _, x := range before {
		if !slices.ContainsFunc(now, func(y T) bool { return name(x) == name(y) }) {
			remove(x)
		}
	}
	for _, x := range now {
		if !slices.Contains(before, x) {
			put(x)
		}
	}
}

// changeNode changes the Node or the ranges of cluster IPs.
func (k *cluster) changeNode(rng *rand.Rand) {
	n := k.node.DeepCopy()
	switch rng.IntN(4) {
	case 0:
		n.Labels = map[string]string{corev1.LabelTopologyZone: []string{"zone-a", "zone-b", ""}[rng.IntN(3)]}
	case 1:
		n.Status.Addresses[0].Address = []string{"192.0.2.1", "192.0.2.9"}[rng.IntN(2)]
	case 2:
		n.Spec.PodCIDRs = [][]string{{"10.244.1.0/24", "fd00:10:244:1::/64"}, {"10.244.1.0/24"}}[rng.IntN(2)]
	case 3:
		r := k.ranges.DeepCopy()
		r.Spec.CIDRs = [][]string{{"10.96.0.0/16"}, {"10.96.0.0/16", "fd00:10:96::/112"}, {"10.96.0.0/24", "fd00:10:96::/112"}}[rng.IntN(3)]
		k.ranges = r
		k.put(r)
		return
	}
	k.node = n
	k.put(n)
}

// world is the cluster's state as the proxy should see it.
type world struct {
	host     *model.Host
	services map[model.ServiceName]*model.Service
	slices   map[model.SliceName]*model.Slice
	ports    []*model.Port

	fresh  decide          // as a fresh start would leave it
	probes []oracle.Packet // of which each look takes others
}

// prepared returns the world with fresh and probes, which take most of a look and are
// made once. The run's own goroutine calls it.
func (w *world) prepared(p plane) *world {
	if w.fresh == nil {
		w.fresh, w.probes = p.fresh(w.host, w.ports), conformance.Probes(w.host, w.ports)
	}
	return w
}

// world resolves everything from scratch.
func (k *cluster) world() *world {
	w := &world{services: map[model.ServiceName]*model.Service{}, slices: map[model.SliceName]*model.Slice{}}
	t := track.New()
	var node *model.Node
	var cidrs []*model.ServiceCIDR
	for _, o := range k.dir {
		switch o := o.(type) {
		case *corev1.Node:
			node, _ = watch.Node(o)
		case *networkingv1.ServiceCIDR:
			c, _ := watch.ServiceCIDR(o)
			cidrs = append(cidrs, c)
		case *corev1.Service:
			if s, _ := watch.Service(o); s != nil {
				w.services[s.Name] = s
				t.Set(s)
			}
		case *discoveryv1.EndpointSlice:
			if s, _ := watch.Slice(o); s != nil {
				w.slices[s.Name] = s
				t.Set(s)
			}
		}
	}
	w.host = resolve.Host(k.config, node, cidrs, machineFacts())
	t.SetHost(w.host)
	t.Flush()
	w.ports = conformance.Ports(t)
	return w
}
