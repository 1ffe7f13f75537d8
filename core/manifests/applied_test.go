// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Manifests as people apply them leave fields to the API server, and have no problem by that. What is wrong with them
// is one nevertheless.
func TestReadAsApplied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	text := ""
	for name, spec := range map[string]string{
		"plain":    "{ports: [{port: 80}]}",
		"empty":    `{clusterIP: "", type: NodePort, ports: [{port: 80, nodePort: 0}]}`,
		"dual":     "{ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6], ports: [{port: 80}]}",
		"balanced": "{clusterIP: 10.96.0.1, type: LoadBalancer, ports: [{port: 80}, {name: x, port: 81, nodePort: 30080}]}",
		"without":  "{clusterIP: 10.96.0.2, type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}",
		"local":    "{clusterIP: 10.96.0.4, type: LoadBalancer, externalTrafficPolicy: Local, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}",
		"checked":  "{clusterIP: 10.96.0.5, type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30082, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}",
		"headless": "{clusterIP: None, ports: [{port: 80}]}",
		"external": "{type: ExternalName, externalName: example.com}",
		"whole":    "{clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 30081}]}",
		"wrong":    "{type: NodePort, ports: [{port: 80, nodePort: 80}]}",
	} {
		text += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: %s\n", name, spec)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := ReadAsApplied(t.Context(), path, config.Default().NodePortRange)
	if err != nil || len(found.Problems) != 1 || found.Problems[0].Object != "Service default/wrong" {
		t.Errorf("%v: %v", err, found.Problems)
	}
	got := map[string]string{}
	for _, s := range found.Services {
		got[s.Name.Name] = fmt.Sprint(s.ClusterIPs)
	}
	for _, l := range found.Unassigned {
		got[l.Service.Name] += fmt.Sprint(l.ClusterIPs, l.NodePorts)
	}
	if want := fmt.Sprint(map[string]string{
		"plain": "[0.0.0.0]true false", "empty": "[0.0.0.0]true true", "dual": "[:: 0.0.0.0]true false", "balanced": "[10.96.0.1]false true",
		"without": "[10.96.0.2]", "local": "[10.96.0.4]false false", "checked": "[10.96.0.5]", "whole": "[10.96.0.3]", "wrong": "[0.0.0.0]true false",
	}); fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	again, err := ReadAsApplied(t.Context(), path, config.PortRange{})
	if err != nil || len(again.Problems) != 0 {
		t.Errorf("%v: %v", err, again.Problems)
	}
	if strict, err := Read(t.Context(), path, config.Default().NodePortRange); err != nil || len(strict.Problems) != 4 { // plain, empty, dual, wrong
		t.Errorf("%v: %v", err, strict.Problems)
	}
}

// Of a Service that is there twice the first one counts, and what that one leaves to the API server.
func TestReadAsAppliedTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	text := `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, type: NodePort, ports: [{port: 80}]}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := ReadAsApplied(t.Context(), path, config.PortRange{})
	want := []model.Unassigned{{Service: model.ServiceName{Namespace: "default", Name: "web"}, ClusterIPs: true}}
	if err != nil || len(found.Problems) != 1 || !slices.Equal(found.Unassigned, want) {
		t.Errorf("%v: %v, %+v", err, found.Problems, found.Unassigned)
	}
}
