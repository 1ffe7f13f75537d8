// SPDX-License-Identifier: Apache-2.0

// Command controllers runs kube-controller-manager's own controllers of Deployments,
// ReplicaSets and EndpointSlices on an API server, and plays what they need: a scheduler
// and the kubelets of all Nodes.
//
//	Deployments, Services ──▶ kube-controller-manager's code ──▶ pods, EndpointSlices
//	                                     ▲                         │
//	       ready, address, gone ─────────┴──── kubelets (here) ◀───┘
//
// A pod without a node gets one of the Nodes that live, becomes ready at once with an
// address of its own, and is gone as soon as it is deleted. A Node with the label "dead"
// is one whose pods become unready and are deleted.
package main

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/replicaset"
)

// deadLabel marks a Node that does not answer any more.
const deadLabel = "dead"

// Settings of kube-controller-manager's, where they matter: its defaults.
const (
	workers          = 5
	maxPerSlice      = 100
	burstReplicas    = 500
	batchPeriod      = 0
	requestsInSecond = 500
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kubeconfig := flag.String("kubeconfig", "", "of an administrator")
	pods := flag.String("pods", "10.128.0.0", "the first address of a pod")
	flag.Parse()
	if err := run(ctx, *kubeconfig, *pods); err != nil {
		fmt.Fprintln(os.Stderr, "controllers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig, pods string) error {
	first, err := netip.ParseAddr(pods)
	if err != nil {
		return err
	}
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	settings.ContentType, settings.QPS, settings.Burst = "application/vnd.kubernetes.protobuf", requestsInSecond, requestsInSecond
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	core := shared.Core().V1()
	deployments, err := deployment.NewDeploymentController(ctx, shared.Apps().V1().Deployments(), shared.Apps().V1().ReplicaSets(), core.Pods(), client)
	if err != nil {
		return err
	}
	replicaSets := replicaset.NewReplicaSetController(ctx, shared.Apps().V1().ReplicaSets(), core.Pods(), client, burstReplicas)
	slices := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), shared.Discovery().V1().EndpointSlices(), maxPerSlice, client, batchPeriod)
	kubelets, err := newKubelets(shared, client, first)
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	var group sync.WaitGroup
	for _, work := range []func(context.Context, int){deployments.Run, replicaSets.Run, slices.Run, kubelets.run} {
		group.Go(func() { work(ctx, workers) })
	}
	group.Wait()
	shared.Shutdown()
	return nil
}

// kubelets are the scheduler and the kubelets of all Nodes.
type kubelets struct {
	client kubernetes.Interface
	pods   cache.SharedIndexInformer
	nodes  cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string] // pods
	first  netip.Addr
	used   atomic.Uint32 // addresses
}

func newKubelets(shared informers.SharedInformerFactory, client kubernetes.Interface, first netip.Addr) (*kubelets, error) {
	k := &kubelets{
		client: client, first: first, pods: shared.Core().V1().Pods().Informer(), nodes: shared.Core().V1().Nodes().Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	changed := func(o any) {
		if key, err := cache.MetaNamespaceKeyFunc(o); err == nil {
			k.queue.Add(key)
		}
	}
	_, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }})
	if err != nil {
		return nil, err
	}
	all := func() {
		for _, o := range k.pods.GetStore().List() {
			changed(o)
		}
	}
	_, err = k.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { all() }, UpdateFunc: func(_, _ any) { all() }})
	return k, err
}

func (k *kubelets) run(ctx context.Context, workers int) {
	cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.nodes.HasSynced)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for k.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	k.queue.ShutDown()
	group.Wait()
}

func (k *kubelets) next(ctx context.Context) bool {
	key, ended := k.queue.Get()
	if ended {
		return false
	}
	defer k.queue.Done(key)
	err := k.sync(ctx, key)
	if err == nil || apierrors.IsNotFound(err) {
		k.queue.Forget(key)
	} else {
		k.queue.AddRateLimited(key)
	}
	return true
}

// sync takes a pod one step further.
func (k *kubelets) sync(ctx context.Context, key string) error {
	o, there, err := k.pods.GetStore().GetByKey(key)
	if err != nil || !there {
		return err
	}
	pod := o.(*corev1.Pod)
	switch dead := k.dead(pod.Spec.NodeName); {
	case pod.DeletionTimestamp != nil:
		return k.remove(ctx, pod)
	case pod.Spec.NodeName == "":
		return k.bind(ctx, pod)
	case dead && ready(pod):
		return k.update(ctx, pod, corev1.ConditionFalse)
	case dead:
		return k.remove(ctx, pod)
	case !ready(pod):
		return k.update(ctx, pod, corev1.ConditionTrue)
	}
	return nil
}

func (k *kubelets) dead(node string) bool {
	o, there, _ := k.nodes.GetStore().GetByKey(node)
	return node != "" && (!there || o.(*corev1.Node).Labels[deadLabel] != "")
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (k *kubelets) remove(ctx context.Context, pod *corev1.Pod) error {
	none := int64(0)
	return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &none})
}

// bind gives a pod one of the Nodes that live, by its name.
func (k *kubelets) bind(ctx context.Context, pod *corev1.Pod) error {
	var live []string
	err := cache.ListAll(k.nodes.GetStore(), labels.Everything(), func(o any) {
		if n := o.(*corev1.Node); n.Labels[deadLabel] == "" {
			live = append(live, n.Name)
		}
	})
	if err != nil || len(live) == 0 {
		return err
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.Name))
	return k.client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
		Target:     corev1.ObjectReference{Kind: "Node", Name: live[int(h.Sum32())%len(live)]},
	}, metav1.CreateOptions{})
}

// update writes a pod's status; one that has no address yet gets the next.
func (k *kubelets) update(ctx context.Context, pod *corev1.Pod, status corev1.ConditionStatus) error {
	pod = pod.DeepCopy()
	if pod.Status.PodIP == "" {
		pod.Status.PodIP = k.address()
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	now := metav1.NewTime(time.Now())
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: now}}
	_, err := k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// address returns an address that no pod has had: of four million.
func (k *kubelets) address() string {
	n := k.used.Add(1) % (1 << 22)
	b := k.first.As4()
	b[1] += byte(n >> 16)
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b).String()
}
