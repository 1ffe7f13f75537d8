// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// starts measures the start of tandem run on an API server that has everything: CPU time and
// memory, not the clock, as the server's own work counts for that, too.
func starts() bench {
	return bench{
		name: "starts", about: "tandem run on an API server: what its first start takes; beside another tandem with -before",
		rows: func(options) []row {
			return []row{
				{What: "CPU from the process's start to everything programmed", of: "cpu", by: median, Unit: seconds},
				{What: "same, least", of: "cpu", by: least, Unit: seconds},
				{What: "time of it", of: "time", by: median, Unit: seconds},
				{What: "peak of resident memory until then", of: "peak", by: median, Unit: memory, Goal: goal{AtMost: 70 << 20}},
				{What: "same, most", of: "peak", by: most, Unit: memory},
				{What: "CPU of that and 8 s more", of: "later cpu", by: median, Unit: seconds},
				{What: "peak of resident memory in these", of: "later peak", by: median, Unit: memory},
				{What: "resident memory then", of: "resident", by: median, Unit: memory, Goal: goal{AtMost: 60 << 20}},
			}
		},
		run: func(ctx context.Context, o options, f *figures) error {
			w := world{services: cmp.Or(o.world.services, 10000), endpoints: 5}
			if o.short {
				w.services = 500
			}
			f.World = w.String() + ", " + o.mode + " mode, tandem run on an API server over TLS"
			if err := ip("link set lo up"); err != nil {
				return err
			}
			server, err := apitest.Start(apitest.Options{})
			if err != nil {
				return err
			}
			defer server.Stop()
			server.Put(node())
			for i := range w.services {
				server.Put(served(i, w.service(i)), served(i, w.slice(i, 0, 0)))
			}
			all := []contender{{name: "tandem", round: func(ctx context.Context, s samples) error { return o.startFrom(ctx, server, s) }}}
			if o.before != "" {
				all = append(all, contender{name: "before", round: func(ctx context.Context, s samples) error { return o.withBefore().startFrom(ctx, server, s) }})
			}
			return inRounds(ctx, cmp.Or(o.rounds, 3), all, f)
		},
	}
}

// served completes a Service or a slice as an API server has it, where a good part of an object
// says who wrote it.
func served[T metav1.Object](i int, o T) T {
	const fields = `{"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"%s\"}":{}}},` +
		`"f:addressType":{},"f:endpoints":{},"f:ports":{},"f:spec":{"f:internalTrafficPolicy":{},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`
	created := metav1.NewTime(time.Unix(1.8e9+int64(i), 0))
	uid := types.UID(fmt.Sprintf("%08x-0f0f-4d4d-8a8a-%012x", i, i))
	o.SetUID(uid)
	o.SetCreationTimestamp(created)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(fields, uid)),
	}})
	switch o := any(o).(type) {
	case *corev1.Service:
		single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
		o.Spec.Type, o.Spec.SessionAffinity = corev1.ServiceTypeClusterIP, cmp.Or(o.Spec.SessionAffinity, corev1.ServiceAffinityNone)
		o.Spec.IPFamilies, o.Spec.IPFamilyPolicy, o.Spec.InternalTrafficPolicy = []corev1.IPFamily{corev1.IPv4Protocol}, &single, &cluster
	case *discoveryv1.EndpointSlice:
		owner := o.Labels[discoveryv1.LabelServiceName]
		o.GenerateName, o.Labels["app"], o.Labels[discoveryv1.LabelManagedBy] = owner+"-", owner, "endpointslice-controller.k8s.io"
		o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: created.UTC().Format(time.RFC3339)}
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: owner, UID: uid, Controller: new(true), BlockOwnerDeletion: new(true)}}
		for e := range o.Endpoints {
			o.Endpoints[e].TargetRef.UID = uid
		}
	}
	return o
}

// startFrom starts a tandem where nothing is programmed, and ends it.
func (o options) startFrom(ctx context.Context, server *apitest.Server, s samples) (err error) {
	begin := time.Now()
	p, err := o.follow(server)
	if err != nil {
		return err
	}
	defer func() {
		p.stop()
		err = errors.Join(err, o.cleanup())
	}()
	if err := until(ctx, 3*time.Minute, 5*time.Millisecond, func() (bool, error) { return healthy(ctx), p.ended() }); err != nil {
		return fmt.Errorf("%w:\n%s", err, p.said())
	}
	s.add("cpu", preciseCPU(p.pid()))
	s.add("time", time.Since(begin).Seconds())
	s.add("peak", residentPeak(p.pid()))
	sleep(ctx, 8*time.Second) // let memory that start-up needed go back
	s.add("later cpu", preciseCPU(p.pid()))
	s.add("later peak", residentPeak(p.pid()))
	s.add("resident", resident(p.pid()))
	return nil
}
