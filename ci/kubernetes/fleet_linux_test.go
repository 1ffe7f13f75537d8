// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/fleet"
)

// The fleet of TestFleet, and what its API server has.
const (
	fleetClients   = 20
	fleetServices  = 40 // and as many headless ones
	fleetKinds     = 4  // Services, EndpointSlices, the Node, ServiceCIDRs
	fleetEndpoints = 20 // of each
)

// TestFleet holds what a node costs an API server, in lists and bytes: each kind is
// listed once, over one connection; headless Services are not sent at all; a change is
// sent once; and a watch whose connection is gone resumes where it ended, without a
// list. A server that was started again may refuse that, as its cache begins with its
// start: how many lists that takes is logged. It measures no time.
func TestFleet(t *testing.T) {
	c := start(t, cluster.Options{})
	f := newTestFleet(t, c)
	served := f.fill()
	f.run()
	f.reached(f.write(1))
	begun := f.total()
	f.atMost("the start", begun, fleet.State{Lists: fleetKinds, Dials: 1, Bytes: served + served/2 + 64<<10})
	t.Logf("a start: %d bytes, of which objects %d", begun.Bytes/fleetClients, served)

	const changes = 10
	var version uint64
	for g := range changes {
		version = f.write(g)
	}
	f.reached(version)
	changed := f.total()
	one := int64(f.slice(0, 0, false).Size())
	f.atMost("ten changes", less(changed, begun), fleet.State{Bytes: changes * (2*one + 1<<10)})

	f.cut()
	f.reached(f.write(0))
	resumed := f.total()
	f.atMost("a lost connection", less(resumed, changed), fleet.State{Dials: 1, Bytes: served / 4})
	t.Logf("a lost connection: %d bytes", (resumed.Bytes-changed.Bytes)/fleetClients)

	c.KillServer()
	if err := c.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.reached(f.write(1))
	again := less(f.total(), resumed)
	t.Logf("a server started again: %d lists and %d bytes of all %d clients", again.Lists, again.Bytes, fleetClients)
}

// atMost holds that a client took no more than so much. A machine that stands still for
// longer than a request may take makes one or the other try again: one in four may.
func (f *testFleet) atMost(what string, took, each fleet.State) {
	f.t.Helper()
	const more = fleetClients / 4
	if took.Lists > fleetClients*each.Lists+more || took.Dials > fleetClients*each.Dials+more || took.Bytes > fleetClients*each.Bytes {
		f.t.Errorf("%s took %d clients %d lists, %d connections and %d bytes; want for each %d, %d and %d",
			what, fleetClients, took.Lists, took.Dials, took.Bytes, each.Lists, each.Dials, each.Bytes)
	}
}

// total is the sum over all clients.
func (f *testFleet) total() (sum fleet.State) {
	for _, s := range f.states() {
		sum.Lists, sum.Dials, sum.Bytes = sum.Lists+s.Lists, sum.Dials+s.Dials, sum.Bytes+s.Bytes
	}
	return sum
}

// less is what came after an earlier state.
func less(s, earlier fleet.State) fleet.State {
	return fleet.State{Lists: s.Lists - earlier.Lists, Dials: s.Dials - earlier.Dials, Bytes: s.Bytes - earlier.Bytes}
}

// testFleet is some clients of one API server.
type testFleet struct {
	t       *testing.T
	cluster *cluster.Cluster
	clients []*fleet.Client

	mu          sync.Mutex
	connections []net.Conn
}

func newTestFleet(t *testing.T, c *cluster.Cluster) *testFleet {
	t.Helper()
	kubeconfig := proxier(t, c)
	settings, err := c.Config("system:kube-proxy") // for its way into the namespace
	if err != nil {
		t.Fatal(err)
	}
	f := &testFleet{t: t, cluster: c}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := settings.Dial(ctx, network, address)
		if err == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.connections = append(f.connections, conn)
		}
		return conn, err
	}
	for i := range fleetClients {
		f.clients = append(f.clients, &fleet.Client{
			Kind: fleet.Tandem, Node: fmt.Sprintf("node-%d", i), Kubeconfig: kubeconfig, Mark: "default/" + f.slice(0, 0, false).Name, Dial: dial,
		})
	}
	return f
}

// slice is that of Service i, with endpoints of some generation.
func (f *testFleet) slice(i, generation int, headless bool) *discoveryv1.EndpointSlice {
	port, service := int32(8080), fmt.Sprintf("web-%d", i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	if headless {
		s.Name, s.Labels[discoveryv1.LabelServiceName], s.Labels[corev1.IsHeadlessService] = "headless-"+s.Name, "headless-"+service, ""
	}
	for e := range fleetEndpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+generation, i, e)}})
	}
	return s
}

// fill writes the objects, and returns how many bytes those have that proxies need.
func (f *testFleet) fill() (served int64) {
	f.t.Helper()
	services, slices := f.cluster.Client().CoreV1().Services("default"), f.cluster.Client().DiscoveryV1().EndpointSlices("default")
	for i := range fleetServices {
		for _, headless := range []bool{false, true} {
			slice := f.slice(i, 0, headless)
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: slice.Labels[discoveryv1.LabelServiceName]},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if headless {
				svc.Spec.ClusterIP = corev1.ClusterIPNone
			}
			svc, err := services.Create(f.t.Context(), svc, metav1.CreateOptions{})
			if err != nil {
				f.t.Fatal(err)
			}
			if slice, err = slices.Create(f.t.Context(), slice, metav1.CreateOptions{}); err != nil {
				f.t.Fatal(err)
			}
			if !headless {
				served += int64(svc.Size() + slice.Size())
			}
		}
	}
	return served
}

// run starts the clients, and waits until all have read everything.
func (f *testFleet) run() {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	f.t.Cleanup(func() { cancel(); group.Wait() })
	for _, c := range f.clients {
		group.Go(func() {
			if err := c.Run(ctx); err != nil && ctx.Err() == nil {
				f.t.Error(err)
			}
		})
	}
	f.wait(func(s fleet.State) bool { return s.Synced })
}

// write changes the mark, and returns its version.
func (f *testFleet) write(generation int) (version uint64) {
	f.t.Helper()
	s, err := f.cluster.Client().DiscoveryV1().EndpointSlices("default").Update(f.t.Context(), f.slice(0, generation, false), metav1.UpdateOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	version, err = strconv.ParseUint(s.ResourceVersion, 10, 64)
	if err != nil {
		f.t.Fatal(err)
	}
	return version
}

// reached waits until all clients have a version of the mark.
func (f *testFleet) reached(version uint64) {
	f.t.Helper()
	f.wait(func(s fleet.State) bool { return s.Version >= version })
}

// wait waits until something is true of all clients. Only a test that hangs meets the
// limit.
func (f *testFleet) wait(done func(fleet.State) bool) {
	f.t.Helper()
	for limit := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left := 0
		for _, s := range f.states() {
			if !done(s) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(limit) {
			f.t.Fatalf("%d of %d clients never got there: %+v", left, len(f.clients), f.states())
		}
	}
}

func (f *testFleet) states() (all []fleet.State) {
	for _, c := range f.clients {
		all = append(all, c.State())
	}
	return all
}

// cut closes all connections, as a load balancer between them does.
func (f *testFleet) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.connections {
		_ = conn.Close()
	}
	f.connections = nil
}
