package manifests

import "strings"

// class is what a document is to us.
type class uint8

const (
	foreign class = iota // not ours, and no mistake: counted and left alone
	service
	slice
	node
	serviceCIDR
	list
	mistaken // meant to be ours, but not readable as such
)

// String returns the kind of object.
func (c class) String() string {
	return [...]string{"object", "Service", "EndpointSlice", "Node", "ServiceCIDR", "List", "document"}[c]
}

// clusterScoped reports whether objects of the kind are in no namespace.
func (c class) clusterScoped() bool { return c == node || c == serviceCIDR }

var kinds = [...]struct {
	kind, apiVersion string
	class            class
}{
	{"Service", "v1", service},
	{"EndpointSlice", "discovery.k8s.io/v1", slice},
	{"Node", "v1", node},
	{"ServiceCIDR", "networking.k8s.io/v1", serviceCIDR},
	{"List", "v1", list},
	{"ServiceList", "v1", list},
	{"EndpointSliceList", "discovery.k8s.io/v1", list},
	{"NodeList", "v1", list},
	{"ServiceCIDRList", "networking.k8s.io/v1", list},
}

// apiVersionOf returns the version in which we read a kind, for items of typed
// lists, which need not repeat it.
func apiVersionOf(kind string) string {
	for _, k := range kinds {
		if k.kind == kind {
			return k.apiVersion
		}
	}
	return ""
}

// classify tells what a document is. For mistaken ones why says more: which
// field, and what is wrong with it.
func classify(apiVersion, kind string) (c class, field, why string) {
	switch {
	case kind == "" && apiVersion == "":
		return mistaken, "", "no Kubernetes object: it has neither apiVersion nor kind"
	case kind == "":
		return mistaken, "kind", "missing"
	case apiVersion == "":
		return mistaken, "apiVersion", "missing"
	}
	for _, k := range kinds {
		switch {
		case k.kind == kind && k.apiVersion == apiVersion:
			return k.class, "", ""
		case k.kind == kind && ofKubernetes(apiVersion):
			return mistaken, "apiVersion", quoted(apiVersion) + " is not read for kind " + kind + ": use " + k.apiVersion
		case looksLike(kind, k.kind) && ofKubernetes(apiVersion):
			return mistaken, "kind", quoted(kind) + " is unknown: did you mean " + k.kind + "?"
		}
	}
	if kind == "Endpoints" && apiVersion == "v1" {
		return mistaken, "kind", "Endpoints are not read: write an EndpointSlice of discovery.k8s.io/v1"
	}
	return foreign, "", ""
}

// ofKubernetes reports whether an apiVersion is, or looks like, one of
// Kubernetes' own groups. Others have kinds of the same name, such as
// serving.knative.dev/v1 Service.
func ofKubernetes(apiVersion string) bool {
	group, _, grouped := strings.Cut(apiVersion, "/")
	return !grouped || !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// looksLike reports whether two kinds differ only in case or a plural ending.
func looksLike(kind, ours string) bool {
	return kind != ours && strings.EqualFold(strings.TrimSuffix(kind, "s"), ours)
}
