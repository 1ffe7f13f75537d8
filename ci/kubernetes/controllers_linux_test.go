// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/core/model"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/nftables"
)

var (
	controllersFor  = flag.Duration("controllers", 0, "how long TestControllers changes Deployments")
	controllersMany = flag.Int("deployments", 30, "how many Deployments TestControllers has")
	controllersSeed = flag.Uint64("controllers-seed", 1, "what TestControllers does, in which order")
)

// The world of TestControllers.
const (
	fakeNodes     = 5 // beside the node of the proxy
	mostReplicas  = 8
	changesARound = 15              // between two checkpoints
	settleTime    = 5 * time.Minute // only a test that hangs meets it
	heapAllowance = 2 << 20         // bytes
	heapPercent   = 125             // of the second checkpoint's heap
)

// TestControllers has kube-controller-manager's own controllers (upstream/controllers)
// roll Deployments, scale them to zero and back, and move pods off dead nodes, with
// tandem at work. At each checkpoint what is programmed is what a tandem programs that
// starts from nothing, and its heap after a collection has not grown.
func TestControllers(t *testing.T) {
	if *controllersFor == 0 {
		t.Skip("takes minutes to hours: make soak, or -controllers 3m")
	}
	program, err := cluster.FindControllers(t.Context(), "upstream/controllers")
	if err != nil {
		t.Skip(err)
	}
	c := start(t, cluster.Options{Server: []string{"--disable-admission-plugins=ServiceAccount"}})
	n := newNode(t, c)
	n.run(proxier(t, c))
	w := &workloads{t: t, node: n, random: rand.New(rand.NewPCG(*controllersSeed, 0))}
	w.fill()
	w.startControllers(program)
	var heaps []int
	for end := time.Now().Add(*controllersFor); ; {
		w.settle()
		objects := w.checkpoint()
		heaps = append(heaps, n.heap())
		t.Logf("checkpoint %d: %v; %d objects, as from a fresh start; heap %d KB", len(heaps), w.done, objects, heaps[len(heaps)-1]>>10)
		if time.Now().After(end) {
			break
		}
		for range changesARound {
			w.change()
		}
	}
	// The first round fills caches that stay.
	if first, last := heaps[min(1, len(heaps)-1)], heaps[len(heaps)-1]; last > first*heapPercent/100+heapAllowance {
		t.Errorf("the heap grew from %d to %d KB: %v", first>>10, last>>10, heaps)
	}
}

// workloads are Deployments, each with a Service, and fake nodes.
type workloads struct {
	t      *testing.T
	node   *node
	random *rand.Rand
	dead   string         // a node
	done   map[string]int // changes by kind
}

func workload(i int) string { return fmt.Sprintf("app-%d", i) }

func (w *workloads) fill() {
	w.t.Helper()
	w.done = map[string]int{}
	client := w.node.cluster.Client()
	for i := range fakeNodes {
		_, err := client.CoreV1().Nodes().Create(w.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("fake-%d", i)}}, metav1.CreateOptions{})
		w.must(err)
	}
	for i := range *controllersMany {
		labels := map[string]string{"app": workload(i)}
		replicas := int32(1 + i%mostReplicas)
		_, err := client.CoreV1().Services("default").Create(w.t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: workload(i)},
			Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		w.must(err)
		_, err = client.AppsV1().Deployments("default").Create(w.t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: workload(i)},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "none"}}},
				},
			},
		}, metav1.CreateOptions{})
		w.must(err)
	}
}

func (w *workloads) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// startControllers runs the controllers on the proxy's node, for its link to the API
// server.
func (w *workloads) startControllers(program string) {
	w.t.Helper()
	kubeconfig, err := w.node.cluster.Kubeconfig("admin", "system:masters")
	w.must(err)
	p, err := cluster.Run(w.node.net, lab.Node, filepath.Join(w.t.TempDir(), "controllers.log"), exec.Command(program, "-kubeconfig", kubeconfig))
	w.must(err)
	w.t.Cleanup(func() {
		p.Kill()
		if w.t.Failed() {
			w.t.Logf("log of controllers:\n%s", p.Said(20))
		}
	})
}

// change makes one change, and does not wait for what it leads to.
func (w *workloads) change() {
	w.t.Helper()
	deployments := w.node.cluster.Client().AppsV1().Deployments("default")
	name := workload(w.random.IntN(*controllersMany))
	patch := func(what, text string) {
		w.done[what]++
		_, err := deployments.Patch(w.t.Context(), name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{})
		w.must(err)
	}
	switch n := w.random.IntN(10); {
	case n < 5:
		patch("rolling updates", fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"round":"%d"}}}}}`, w.done["rolling updates"]))
	case n < 7:
		patch("to zero", `{"spec":{"replicas":0}}`)
	case n < 9:
		patch("scaled", fmt.Sprintf(`{"spec":{"replicas":%d}}`, 1+w.random.IntN(mostReplicas)))
	default:
		w.nodeDies()
	}
}

// nodeDies has the dead node, if any, come back and another one die.
func (w *workloads) nodeDies() {
	w.t.Helper()
	mark := func(name, value string) {
		_, err := w.node.cluster.Client().CoreV1().Nodes().Patch(w.t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"labels":{"dead":`+value+`}}}`), metav1.PatchOptions{})
		w.must(err)
	}
	if w.dead != "" {
		mark(w.dead, "null")
	}
	w.done["node deaths"]++
	w.dead = fmt.Sprintf("fake-%d", w.random.IntN(fakeNodes))
	mark(w.dead, `"yes"`)
}

// eventually waits for a condition, and fails with what it still lacks.
func (w *workloads) eventually(lacks func() (string, error)) {
	w.t.Helper()
	for limit := time.Now().Add(settleTime); ; time.Sleep(100 * time.Millisecond) {
		text, err := lacks()
		w.must(err)
		if text == "" {
			return
		}
		if time.Now().After(limit) {
			w.t.Fatal(text)
		}
	}
}

// settle waits until the controllers have done what they were asked to.
func (w *workloads) settle() {
	w.t.Helper()
	client := w.node.cluster.Client()
	w.eventually(func() (string, error) {
		all, err := client.AppsV1().Deployments("default").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range all.Items {
			d := &all.Items[i]
			s, want := d.Status, *d.Spec.Replicas
			if s.ObservedGeneration != d.Generation || s.Replicas != want || s.UpdatedReplicas != want || s.AvailableReplicas != want {
				return fmt.Sprintf("Deployment %s: want %d: %+v", d.Name, want, s), nil
			}
		}
		return "", nil
	})
	w.eventually(func() (string, error) {
		pods, err := client.CoreV1().Pods("default").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		ready := map[string]bool{}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Status.PodIP == "" || p.DeletionTimestamp != nil {
				return "pod " + p.Name + " comes or goes", nil
			}
			ready[p.Status.PodIP] = true
		}
		sliced, err := endpointsOf(w.t.Context(), client.DiscoveryV1().EndpointSlices("default").List)
		if err == nil && !maps.Equal(ready, sliced) {
			return fmt.Sprintf("%d pods, %d endpoints", len(ready), len(sliced)), nil
		}
		return "", err
	})
}

// endpointsOf returns the ready endpoints of all slices.
func endpointsOf(ctx context.Context, list func(context.Context, metav1.ListOptions) (*discoveryv1.EndpointSliceList, error)) (map[string]bool, error) {
	all, err := list(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for i := range all.Items {
		for _, e := range all.Items[i].Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				found[e.Addresses[0]] = true
			}
		}
	}
	return found, nil
}

// checkpoint compares the kernel of the proxy with that of one that starts now, and
// returns how many objects there are.
func (w *workloads) checkpoint() (objects int) {
	w.t.Helper()
	var have map[string][]string
	w.t.Run("fresh", func(t *testing.T) {
		fresh := newNode(t, w.node.cluster)
		fresh.run(proxier(t, w.node.cluster))
		here := *w
		here.t = t
		here.eventually(func() (string, error) {
			var there map[string][]string
			var err error
			if have, err = w.node.programmed(t.Context()); err != nil {
				return "", err
			}
			if there, err = fresh.programmed(t.Context()); err != nil {
				return "", err
			}
			return difference(have, there), nil
		})
	})
	for name, all := range have {
		objects += len(all)
		without := maps.Clone(have)
		if delete(without, name); difference(without, have) == "" || difference(have, without) == "" {
			w.t.Errorf("nobody would see that %s is missing", name)
		}
	}
	return objects
}

// programmed returns the objects of a node's tables. Endpoints of a frontend are one
// entry, in any order: which slot an endpoint has depends on the past. So does which
// chains stay a minute longer than they are needed: they are left out.
func (n *node) programmed(ctx context.Context) (map[string][]string, error) {
	var have map[nft.Key]nft.Value
	err := n.net.Do(lab.Node, func() error {
		d, err := nftables.Open(nftables.Options{})
		if err != nil {
			return err
		}
		have, err = d.Objects(ctx)
		return errors.Join(err, d.Close())
	})
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for k, v := range have {
		if k.Kind == nft.KindChain {
			continue
		}
		text := "-"
		if v.Port != 0 {
			text = netip.AddrPortFrom(v.Endpoint(k.Family).Addr(), v.Port).String()
		} else if v.Body != nil {
			text = v.Body.Goto + " " + v.Body.Comment
		}
		k.Slot = 0
		name := fmt.Sprintf("%v", k)
		all[name] = append(all[name], text)
	}
	for _, texts := range all {
		slices.Sort(texts)
	}
	return all, nil
}

// difference names an object that two nodes do not share; none is "".
func difference(here, there map[string][]string) string {
	for name, texts := range here {
		if !slices.Equal(texts, there[name]) {
			return fmt.Sprintf("%s: %v is programmed, a fresh start programs %v", name, texts, there[name])
		}
	}
	for name, texts := range there {
		if _, ok := here[name]; !ok {
			return fmt.Sprintf("%s: is not programmed, a fresh start programs %v", name, texts)
		}
	}
	return ""
}

var heapAlloc = regexp.MustCompile(`(?m)^# HeapAlloc = (\d+)$`)

// heap returns the bytes of tandem's heap after a collection.
func (n *node) heap() int {
	n.t.Helper()
	at := netip.MustParseAddrPort("127.0.0.1:10249")
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return n.net.Connect(lab.Call{From: lab.Node, Proto: model.TCP, To: at, Timeout: 10 * time.Second})
	}}}
	answer, err := client.Get("http://" + at.String() + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		n.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	found := heapAlloc.FindSubmatch(text)
	if found == nil {
		n.t.Fatalf("no heap in %.200s", text)
	}
	bytes, _ := strconv.Atoi(string(found[1]))
	return bytes
}
