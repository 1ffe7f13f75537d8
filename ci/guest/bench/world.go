package main

import "fmt"

const endpoints = 5

// fill makes Services with five endpoints each, and their node.
func (a *api) fill(services int) {
	a.items["servicecidrs"] = []map[string]any{}
	a.items["nodes"] = []map[string]any{a.object("nodes", map[string]any{
		"metadata": map[string]any{"name": "node-1"},
		"spec":     map[string]any{"podCIDR": "10.244.1.0/24", "podCIDRs": []string{"10.244.1.0/24"}},
		"status":   map[string]any{"addresses": []any{map[string]any{"type": "InternalIP", "address": "192.0.2.1"}}},
	})}
	for i := range services {
		a.items["services"] = append(a.items["services"], a.object("services", map[string]any{
			"metadata": meta(i, ""),
			"spec": map[string]any{
				"type": "ClusterIP", "clusterIP": clusterIP(i), "clusterIPs": []string{clusterIP(i)}, "ipFamilies": []string{"IPv4"},
				"ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
				"ports": []any{map[string]any{"protocol": "TCP", "port": 80, "targetPort": 8080}},
			},
		}))
		a.items["endpointslices"] = append(a.items["endpointslices"], a.object("endpointslices", slice(i, 0)))
	}
}

func meta(i int, suffix string) map[string]any {
	name := fmt.Sprintf("svc-%d", i)
	return map[string]any{
		"name": name + suffix, "namespace": "default", "uid": name + suffix, "creationTimestamp": "2026-01-01T00:00:00Z",
		"labels": map[string]any{"kubernetes.io/service-name": name, "app": name},
	}
}

func clusterIP(i int) string { return fmt.Sprintf("10.96.%d.%d", i>>8, i&255) }

// slice is the EndpointSlice of Service i after so many changes of its first
// endpoint.
func slice(i, changes int) map[string]any {
	var all []any
	for e := range endpoints {
		all = append(all, map[string]any{
			"addresses": []string{endpoint(i, e, changes)}, "nodeName": "node-2",
			"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
		})
	}
	return map[string]any{
		"metadata": meta(i, "-x"), "addressType": "IPv4", "endpoints": all,
		"ports": []any{map[string]any{"name": "", "protocol": "TCP", "port": 8080}},
	}
}

func endpoint(i, e, changes int) string {
	if e == 0 {
		return fmt.Sprintf("10.%d.%d.%d", 128+changes, i>>8, i&255)
	}
	return fmt.Sprintf("10.%d.%d.%d", 10+e, i>>8, i&255)
}
