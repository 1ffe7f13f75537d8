package manifests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch"
)

// convert turns a decoded object into the model's. Its faults start with the
// path of the field they are about and have no line yet.
func convert(c class, typed metav1.Object, nodePorts config.PortRange) *object {
	switch {
	case c.clusterScoped():
		typed.SetNamespace("")
	case typed.GetNamespace() == "":
		typed.SetNamespace(metav1.NamespaceDefault)
	}
	k := key{c, typed.GetNamespace(), typed.GetName()}
	if why := badName(k); why != "" {
		path, _, _ := strings.Cut(why, ":")
		return refused(key{}, fault{path: path, text: why})
	}
	o := &object{key: k}
	var problems []model.Problem
	switch t := typed.(type) {
	case *corev1.Service:
		o.service, problems = watch.Service(t)
		o.confine(t, nodePorts)
		o.advise(t)
	case *discoveryv1.EndpointSlice:
		o.slice, problems = watch.Slice(t)
	case *corev1.Node:
		o.node, problems = watch.Node(t)
	case *networkingv1.ServiceCIDR:
		o.cidr, problems = watch.ServiceCIDR(t)
	}
	for _, p := range problems {
		o.faults = append(o.faults, fault{
			object: p.Object, path: watch.FieldPath(p), text: p.Detail + ": " + p.Why.Text(), why: p.Why,
		})
	}
	return o
}

// confine takes away the node ports, those for health checks among them, that an API
// server would not have let in: they may be somebody else's on this machine.
func (o *object) confine(s *corev1.Service, allowed config.PortRange) {
	if o.service == nil {
		return
	}
	if n := o.service.HealthCheckNodePort; n != 0 && !allowed.Has(n) {
		o.outside("spec.healthCheckNodePort", n, allowed)
		o.service.HealthCheckNodePort = 0
	}
	for i := range o.service.Ports {
		p := &o.service.Ports[i]
		if p.NodePort == 0 || allowed.Has(p.NodePort) {
			continue
		}
		at := slices.IndexFunc(s.Spec.Ports, func(q corev1.ServicePort) bool { return q.NodePort == int32(p.NodePort) })
		o.outside("spec.ports["+strconv.Itoa(at)+"].nodePort", p.NodePort, allowed)
		p.NodePort = 0
	}
}

func (o *object) outside(path string, port uint16, allowed config.PortRange) {
	o.faults = append(o.faults, fault{
		object: o.key.String(), path: path, why: model.WhyInvalid,
		text: fmt.Sprintf("%s: %d is outside %s (--service-node-port-range), left out", path, port, allowed),
	})
}

// advise notes what an API server would have filled in and nobody does here.
func (o *object) advise(s *corev1.Service) {
	_, other := s.Labels[watch.LabelProxyName]
	switch {
	case watch.Served(s) && s.Spec.Type == corev1.ServiceTypeNodePort:
		for i := range s.Spec.Ports {
			if s.Spec.Ports[i].NodePort == 0 {
				o.missing("spec.ports[" + strconv.Itoa(i) + "].nodePort")
			}
		}
	case s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 && s.Spec.Type != corev1.ServiceTypeExternalName && !other:
		o.missing("spec.clusterIP")
	}
}

func (o *object) missing(path string) {
	o.faults = append(o.faults, fault{
		object: o.key.String(), path: path, text: path + ": missing: there is no API server here that would assign one",
	})
}

// findLines gives each fault the line of its field, or of the nearest one
// around it that is there.
func (o *object) findLines(root *yaml.Node) {
	for i := range o.faults {
		o.faults[i].line = lineOfField(root, o.faults[i].path)
	}
	sortFaults(o.faults)
}

// identify returns which object a refused document means, as far as that can be
// told.
func identify(n *yaml.Node, c class) key {
	meta := get(n, "metadata")
	k := key{c, text(meta, "namespace"), text(meta, "name")}
	switch {
	case c.clusterScoped():
		k.namespace = ""
	case k.namespace == "":
		k.namespace = metav1.NamespaceDefault
	}
	if badName(k) != "" {
		return key{}
	}
	return k
}

// badName says what is wrong with an object's name or namespace. Names end up
// in the comments of rules and on terminals, and no API server has looked at
// those in a file.
func badName(k key) string {
	const label = "must be lower-case letters, digits and '-', at most 63 (RFC 1123 label)"
	const subdomain = "must be lower-case letters, digits, '-' and '.', at most 253 (RFC 1123 subdomain)"
	switch {
	case k.name == "":
		return "metadata.name: missing"
	case k.class == service && len(validation.IsDNS1123Label(k.name)) > 0:
		return "metadata.name: " + quoted(k.name) + " " + label
	case k.class != service && len(validation.IsDNS1123Subdomain(k.name)) > 0:
		return "metadata.name: " + quoted(k.name) + " " + subdomain
	case !k.class.clusterScoped() && len(validation.IsDNS1123Label(k.namespace)) > 0:
		return "metadata.namespace: " + quoted(k.namespace) + " " + label
	}
	return ""
}
