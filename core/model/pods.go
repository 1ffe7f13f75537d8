// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"strings"
)

// maxPodName is what the API server admits of the name of a pod.
const maxPodName = 253

// PackPods packs the names of the pods that endpoints are, in their order, empty where an endpoint is none: the beginning that all of
// them share, as those of a ReplicaSet do, and the rest of each, with a slash before it. So a name takes some
// bytes. A reference that cannot be a pod's name counts as none.
func PackPods(names []string) string {
	first, prefix, known := -1, "", 0
	for i, name := range names {
		switch {
		case !podName(name):
			names[i] = ""
			continue
		case first < 0:
			first, prefix = i, name[:len(name)-1] // so that the rest is not empty
		default:
			n := 0
			for n < min(len(prefix), len(name)-1) && prefix[n] == name[n] {
				n++
			}
			prefix = prefix[:n]
		}
		known++
	}
	if known == 0 {
		return ""
	}
	var out strings.Builder
	size := len(prefix) + len(names)
	for _, name := range names {
		size += max(0, len(name)-len(prefix))
	}
	out.Grow(size)
	out.WriteString(prefix)
	for _, name := range names {
		out.WriteByte('/')
		if name != "" {
			out.WriteString(name[len(prefix):])
		}
	}
	return out.String()
}

// podName reports whether a text can be a pod's name, a subdomain of DNS.
func podName(name string) bool {
	return name != "" && len(name) <= maxPodName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// PodsOf are the names of the pods that the endpoints of slices are, by address. Of a snapshot the names may be any.
func PodsOf(all []*Slice) map[netip.Addr]string {
	names := map[netip.Addr]string{}
	for _, s := range all {
		prefix, rest, known := strings.Cut(s.Pods, "/")
		for i := 0; known && i < len(s.Endpoints); i++ {
			var name string
			if name, rest, known = strings.Cut(rest, "/"); name != "" {
				names[s.Endpoints[i].Addr] = prefix + name
			}
		}
	}
	return names
}
