// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/netns"
	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// node is a node with three servers and a client, on which tandem runs.
type node struct {
	t       *testing.T
	cluster *cluster.Cluster
	net     *lab.Net
	bin     string
	process *cluster.Process
	log     string
}

const clientPod = lab.Place("10.244.1.10")

// clusterIP is the address of the Service web.
var clusterIP = netip.MustParseAddrPort("10.96.0.10:80")

// newNode joins a node to a cluster and gives the cluster its Node object and
// the Service web, with no endpoints yet.
func newNode(t *testing.T, c *cluster.Cluster) *node {
	t.Helper()
	n := &node{t: t, cluster: c, bin: netns.Program(t), log: filepath.Join(t.TempDir(), "tandem.log")}
	plan := lab.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	pods := []string{string(clientPod), "10.244.1.2", "10.244.1.3", "10.244.1.4"}
	for i, ip := range pods {
		plan.Pods = append(plan.Pods, lab.Pod{Place: lab.Place(ip), Interface: fmt.Sprintf("pod%d", i), Addrs: []netip.Addr{netip.MustParseAddr(ip)}})
	}
	var err error
	if n.net, err = lab.New(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	for _, ip := range pods[1:] {
		if _, err := n.net.Serve(lab.Place(ip), netip.MustParseAddrPort(ip+":8080"), model.TCP); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.Join(n.net), n.objects()); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) close() {
	if n.process != nil {
		n.process.Kill()
	}
	if err := n.net.Close(); err != nil {
		n.t.Error(err)
	}
	if n.t.Failed() && n.process != nil {
		n.t.Logf("log of tandem:\n%s", n.process.Said(100))
	}
}

func (n *node) objects() error {
	client := n.cluster.Client().CoreV1()
	if _, err := client.Services("default").Get(n.t.Context(), "web", metav1.GetOptions{}); err == nil {
		return nil // of an earlier test
	}
	_, err := client.Nodes().Create(n.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.Services("default").Create(n.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP.Addr().String(), Ports: []corev1.ServicePort{{Port: int32(clusterIP.Port())}}},
	}, metav1.CreateOptions{})
	return err
}

// write makes some pods the endpoints of web.
func (n *node) write(client kubernetes.Interface, ips ...string) {
	n.t.Helper()
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, ip := range ips {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	all := client.DiscoveryV1().EndpointSlices("default")
	_, err := all.Update(n.t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = all.Create(n.t.Context(), s, metav1.CreateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// run starts tandem with a kubeconfig and further arguments. It does not wait.
func (n *node) run(kubeconfig string, more ...string) {
	n.t.Helper()
	var err error
	args := []string{
		"run", "--kubeconfig=" + kubeconfig,
		"--hostname-override=node-1", "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16", "--profiling",
	}
	n.process, err = cluster.Run(n.net, lab.Node, n.log, exec.Command(n.bin, append(args, more...)...))
	if err != nil {
		n.t.Fatal(err)
	}
}

// reach makes a connection to web, which must not lose a SYN, and returns the endpoint.
func (n *node) reach() (server string, err error) { return n.call(n.net.DialOnce, 30*time.Second) }

// call makes a connection to web in some way, and returns the endpoint.
func (n *node) call(dial func(lab.Call) (lab.Answer, error), limit time.Duration) (server string, err error) {
	a, err := dial(lab.Call{From: clientPod, Proto: model.TCP, To: clusterIP, Timeout: limit})
	if err == nil && a.Outcome != lab.Answered {
		err = errors.New(a.Outcome.String())
	}
	return a.Server.Addr().String(), err
}

// answers waits until an endpoint answers, and returns how long that took.
func (n *node) answers(within time.Duration, ip string) time.Duration {
	n.t.Helper()
	return n.eventually(within, ip+" answers", func() error {
		got, err := n.call(n.net.Dial, 900*time.Millisecond)
		if err == nil && got != ip {
			err = fmt.Errorf("%s answers", got)
		}
		return err
	})
}

// says waits until tandem has logged a line with all of the words.
func (n *node) says(within time.Duration, words ...string) {
	n.t.Helper()
	n.eventually(within, "a line with "+strings.Join(words, ", "), func() error {
		select {
		case <-n.process.Done():
			return errors.New("tandem has ended")
		default:
		}
	lines:
		for line := range strings.Lines(n.process.Said(1000)) {
			for _, w := range words {
				if !strings.Contains(strings.ReplaceAll(line, `\"`, `"`), w) {
					continue lines
				}
			}
			return nil
		}
		return errors.New("not logged")
	})
}

// eventually is netns.Eventually of the node.
func (n *node) eventually(within time.Duration, what string, try func() error) time.Duration {
	n.t.Helper()
	return netns.Eventually(n.t, within, what, try)
}

// load makes new connections all the time, until the function that it returns
// is called; that one returns how many there were. None may fail.
func (n *node) load(ctx context.Context) (stop func() int64) {
	ctx, cancel := context.WithCancel(ctx)
	var made atomic.Int64
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for ctx.Err() == nil {
				if _, err := n.reach(); err != nil {
					n.t.Errorf("a new connection to web: %v", err)
					return
				}
				made.Add(1)
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	return func() int64 {
		cancel()
		workers.Wait()
		return made.Load()
	}
}
