// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// typicalMeta is what a Deployment's Service or its slice carries around, and
// are not needed here.
func typicalMeta(i int, suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", i%200), Name: fmt.Sprintf("service-%d%s", i, suffix),
		UID: types.UID(fmt.Sprintf("3f0b5f3e-7a52-4f0e-9d1c-%012d", i)), CreationTimestamp: metav1.Unix(1_700_000_000, 0),
		Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i), "app.kubernetes.io/managed-by": "Helm"},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`),
		}},
	}
}

func typicalService(i int) *corev1.Service {
	ip := fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255)
	return &corev1.Service{
		ObjectMeta: typicalMeta(i, ""),
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Type: corev1.ServiceTypeClusterIP,
			Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("app-%d", i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

func typicalSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: typicalMeta(i, "-x7k2p"), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	s.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("service-%d", i)
	s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
	for e := range endpoints {
		n := i*endpoints + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)},
			NodeName:   ptr(fmt.Sprintf("node-%d", n%500)), Zone: ptr("zone-a"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("pod-%d", n), UID: types.UID(fmt.Sprintf("%036d", n))},
		})
	}
	return s
}

// scale is what reading a large cluster took.
type scale struct {
	read       time.Duration // from the start to Synced
	live, peak float64       // MB of heap: what stays, and the most that there was meanwhile, garbage included
	event      time.Duration // from the write of a change to the sink, the median of some
}

// servingEnv asks a process of this test binary to be the server: it must not
// share a heap with what is measured. Its value is the number of Services.
const servingEnv = "TANDEM_TEST_SERVICES"

// TestServe is no test but the server of measure: it writes its kubeconfig to
// its output, changes a slice for every byte of its input, and ends with it.
func TestServe(t *testing.T) {
	services, err := strconv.Atoi(os.Getenv(servingEnv))
	if err != nil {
		t.Skip("only as a process of its own: " + servingEnv + " is not set")
	}
	s, err := apitest.Start(apitest.Options{NoWatchList: os.Getenv("TANDEM_TEST_LISTS") != "", NoCache: os.Getenv("TANDEM_TEST_LISTS") == "pages"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	for i := range services {
		s.Put(typicalService(i), typicalSlice(i, 5))
	}
	s.Put(nodeIn("a"))
	s.Compact()
	fmt.Printf("%s\n---\n", s.Kubeconfig("{}"))
	for in, i := bufio.NewReader(os.Stdin), 0; ; i++ {
		if _, err := in.ReadByte(); err != nil {
			return
		}
		s.Put(typicalSlice(i, 4))
	}
}

// serve starts such a process, and returns its kubeconfig and its input.
func serve(t testing.TB, services int, lists string) (kubeconfig string, change io.Writer) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServe$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", servingEnv, services), "TANDEM_TEST_LISTS="+lists)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // killed or not
	})
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "---"; {
		text.WriteString(lines.Text() + "\n")
	}
	if err := os.WriteFile(kubeconfig, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, in
}

// measure follows a server with many Services of 5 endpoints each.
func measure(t testing.TB, services int, lists string) scale {
	c := &config.Config{NodeName: thisNode}
	var change io.Writer
	c.API.Kubeconfig, change = serve(t, services, lists)
	before := liveHeap()
	source, err := Open(c, slog.New(slog.NewTextHandler(io.Discard, nil)), Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	sink := newRecord()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	start := time.Now()
	go func() { done <- source.Run(ctx, sink) }()
	var r scale
	for synced := false; !synced; time.Sleep(time.Millisecond) {
		r.peak = max(r.peak, heap()-before)
		told, _, _ := sink.told()
		synced = len(told) > 0
	}
	r.read = time.Since(start)
	if len(sink.services) != services || len(sink.slices) != services {
		t.Fatalf("%d Services, %d slices", len(sink.services), len(sink.slices))
	}
	r.event = eventTime(t, change, sink)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.live = liveHeap() - before
	runtime.KeepAlive(source)
	runtime.KeepAlive(sink)
	return r
}

// eventTime returns how long a change of a slice takes to arrive.
func eventTime(t testing.TB, change io.Writer, sink *record) time.Duration {
	var all []time.Duration
	for range 101 {
		_, sets, _ := sink.told()
		start := time.Now()
		if _, err := change.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		for now := sets; now == sets; _, now, _ = sink.told() {
			time.Sleep(10 * time.Microsecond)
		}
		all = append(all, time.Since(start))
	}
	return median(all)
}

func heap() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	return heap()
}

// What stays of 10,000 Services with 5 endpoints each, model objects and the
// maps of the sink included, is bounded: the goal for all inputs of the proxy is
// 25 MB.
func TestHeap(t *testing.T) {
	r := measure(t, 10_000, "")
	t.Logf("10,000 Services x 5 endpoints: read in %s, %.1f MB live, %.1f MB at most, a change in %s",
		r.read.Round(time.Millisecond), r.live, r.peak, r.event)
	if r.live > 16 {
		t.Errorf("%.1f MB live", r.live)
	}
}

func BenchmarkStart(b *testing.B) {
	for _, services := range []int{1000, 10_000, 50_000} {
		for _, lists := range []string{"streamed", "whole", "pages"} {
			b.Run(fmt.Sprintf("%d/%s", services, lists), func(b *testing.B) {
				var r scale
				for b.Loop() {
					r = measure(b, services, strings.TrimPrefix(lists, "streamed"))
				}
				b.ReportMetric(0, "ns/op") // that includes making the cluster
				b.ReportMetric(float64(r.read.Milliseconds()), "ms-read")
				b.ReportMetric(r.live, "MB-live")
				b.ReportMetric(r.peak, "MB-peak")
				b.ReportMetric(float64(r.event.Microseconds()), "µs-event")
			})
		}
	}
}
