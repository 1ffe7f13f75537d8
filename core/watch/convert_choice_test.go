// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
)

func TestChoiceAnnotations(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		want       model.Choice
		bad        bool
	}{
		{watch.AnnotationScheduler, "maglev", model.Choice{Scheduler: model.Maglev}, false},
		{watch.AnnotationScheduler, " rr ", model.Choice{Scheduler: model.RoundRobin}, false},
		{watch.AnnotationScheduler, "", model.Choice{}, true},
		{watch.AnnotationScheduler, "wrr", model.Choice{}, true},
		{watch.AnnotationSlowStart, "30", model.Choice{SlowStart: 30 * time.Second}, false},
		{watch.AnnotationSlowStart, "30s", model.Choice{}, true},
		{watch.AnnotationSlowStart, "3601", model.Choice{}, true},
		{watch.AnnotationSlowStart, "-1", model.Choice{}, true},
		{watch.AnnotationSpill, "above=1.5, floor=2", model.Choice{Spill: model.Spill{Above: 1.5, Floor: 2}}, false},
		{watch.AnnotationSpill, "floor=3", model.Choice{Spill: model.Spill{Floor: 3}}, false},
		{watch.AnnotationSpill, "above=0.5", model.Choice{}, true},
		{watch.AnnotationSpill, "above=NaN", model.Choice{}, true},
		{watch.AnnotationSpill, "2", model.Choice{}, true},
		{"example.com/other", "x", model.Choice{}, false},
	} {
		svc, problems := watch.Service(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{tt.key: tt.value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		if svc == nil || svc.Choice != tt.want || len(problems) > 0 != tt.bad {
			t.Errorf("%s=%s: got %+v and %v", tt.key, tt.value, svc, problems)
		}
	}
}

func TestWeightAnnotations(t *testing.T) {
	const tandem, cilium = watch.AnnotationWeight, watch.AnnotationCiliumWeight
	for _, tt := range []struct {
		annotations map[string]string
		weight      uint16
		weighted    bool
		problems    int
	}{
		{nil, 0, false, 0},
		{map[string]string{tandem: "80"}, 80, true, 0},
		{map[string]string{cilium: "20"}, 20, true, 0},
		{map[string]string{tandem: "0", cilium: "20"}, 0, true, 0},
		{map[string]string{tandem: "x", cilium: "20"}, 20, true, 1},
		{map[string]string{cilium: "65536"}, 0, false, 1},
	} {
		slice, problems := watch.Slice(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web-a", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}, Annotations: tt.annotations,
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		})
		if slice.Weight != tt.weight || slice.Weighted != tt.weighted || len(problems) != tt.problems {
			t.Errorf("%v: got %d, %t and %v", tt.annotations, slice.Weight, slice.Weighted, problems)
		}
	}
}
