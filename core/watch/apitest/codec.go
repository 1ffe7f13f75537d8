// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// resource is a kind of objects that is served.
type resource struct {
	name    string // endpointslices
	version schema.GroupVersion
	list    func([]runtime.Object) runtime.Object // a list of objects
	one     func() runtime.Object                 // an empty object
}

// gatewayList is a list of objects of the Gateway API.
type gatewayList[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []T `json:"items"`
}

// DeepCopyObject implements runtime.Object. The copy has the same items, which nothing changes.
func (l *gatewayList[T]) DeepCopyObject() runtime.Object {
	c := *l
	return &c
}

// of makes a list of pointers one of values, as the API's types have them.
func of[T any, P interface {
	*T
	runtime.Object
}](objects []runtime.Object) (items []T) {
	for _, o := range objects {
		items = append(items, *o.(P))
	}
	return items
}

func resources() map[string]*resource {
	all := map[string]*resource{}
	for _, r := range []*resource{
		{
			"services", corev1.SchemeGroupVersion,
			func(os []runtime.Object) runtime.Object {
				return &corev1.ServiceList{Items: of[corev1.Service](os)}
			},
			func() runtime.Object { return &corev1.Service{} },
		},
		{
			"nodes", corev1.SchemeGroupVersion,
			func(os []runtime.Object) runtime.Object { return &corev1.NodeList{Items: of[corev1.Node](os)} },
			func() runtime.Object { return &corev1.Node{} },
		},
		{
			"endpointslices", discoveryv1.SchemeGroupVersion,
			func(os []runtime.Object) runtime.Object {
				return &discoveryv1.EndpointSliceList{Items: of[discoveryv1.EndpointSlice](os)}
			},
			func() runtime.Object { return &discoveryv1.EndpointSlice{} },
		},
		{
			"servicecidrs", networkingv1.SchemeGroupVersion,
			func(os []runtime.Object) runtime.Object {
				return &networkingv1.ServiceCIDRList{Items: of[networkingv1.ServiceCIDR](os)}
			},
			func() runtime.Object { return &networkingv1.ServiceCIDR{} },
		},
		{
			"tcproutes", gateway.RouteVersions()[0],
			func(os []runtime.Object) runtime.Object {
				return &gatewayList[gateway.TCPRoute]{Items: of[gateway.TCPRoute](os)}
			},
			func() runtime.Object { return &gateway.TCPRoute{} },
		},
		{
			"udproutes", gateway.RouteVersions()[0],
			func(os []runtime.Object) runtime.Object {
				return &gatewayList[gateway.UDPRoute]{Items: of[gateway.UDPRoute](os)}
			},
			func() runtime.Object { return &gateway.UDPRoute{} },
		},
		{
			"referencegrants", gateway.GrantVersions()[0],
			func(os []runtime.Object) runtime.Object {
				return &gatewayList[gateway.ReferenceGrant]{Items: of[gateway.ReferenceGrant](os)}
			},
			func() runtime.Object { return &gateway.ReferenceGrant{} },
		},
		{
			"events", eventsv1.SchemeGroupVersion,
			func(os []runtime.Object) runtime.Object { return &eventsv1.EventList{Items: of[eventsv1.Event](os)} },
			func() runtime.Object { return &eventsv1.Event{} },
		},
	} {
		all[r.name] = r
	}
	return all
}

// kindOf returns the name of the resource that an object belongs to.
func kindOf(o runtime.Object) string {
	switch o.(type) {
	case *corev1.Service:
		return "services"
	case *corev1.Node:
		return "nodes"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *networkingv1.ServiceCIDR:
		return "servicecidrs"
	case *gateway.TCPRoute:
		return "tcproutes"
	case *gateway.UDPRoute:
		return "udproutes"
	case *gateway.ReferenceGrant:
		return "referencegrants"
	case *eventsv1.Event:
		return "events"
	}
	panic(fmt.Sprintf("apitest does not serve a %T", o))
}

func newCodecs() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1.AddToScheme(scheme))
	utilruntime.Must(eventsv1.AddToScheme(scheme))
	utilruntime.Must(gateway.AddToScheme(scheme))
	for _, gv := range gateway.RouteVersions() {
		scheme.AddKnownTypeWithName(gv.WithKind("TCPRouteList"), &gatewayList[gateway.TCPRoute]{})
		scheme.AddKnownTypeWithName(gv.WithKind("UDPRouteList"), &gatewayList[gateway.UDPRoute]{})
	}
	for _, gv := range gateway.GrantVersions() {
		scheme.AddKnownTypeWithName(gv.WithKind("ReferenceGrantList"), &gatewayList[gateway.ReferenceGrant]{})
	}
	return serializer.NewCodecFactory(scheme)
}

// format is how one client wants its objects.
type format struct {
	info    runtime.SerializerInfo
	encoder runtime.Encoder // of objects
	events  runtime.Encoder // of events of a stream
	framer  runtime.Framer
}

// formatOf chooses the first media type that the client accepts and we know.
func formatOf(codecs serializer.CodecFactory, r *http.Request, gv schema.GroupVersion) format {
	chosen, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, _, _ := strings.Cut(strings.TrimSpace(accepted), ";")
		if gv.Group == gateway.Group && media != runtime.ContentTypeJSON { // custom resources have no other
			continue
		}
		if info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), media); ok && media != "" && info.StreamSerializer != nil {
			chosen = info
			break
		}
	}
	return format{
		chosen, codecs.EncoderForVersion(chosen.Serializer, gv),
		codecs.EncoderForVersion(chosen.StreamSerializer.Serializer, gv), chosen.StreamSerializer.Framer,
	}
}
