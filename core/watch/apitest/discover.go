// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// discover answers a request for what is served: /apis, or one version of a group. It
// reports whether the path was one of those.
func (s *Server) discover(w http.ResponseWriter, path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	served := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	at := map[string]int{} // in groups
	for _, r := range s.resources {
		version := metav1.GroupVersionForDiscovery{GroupVersion: r.version.String(), Version: r.version.Version}
		i, ok := at[r.version.Group]
		if !ok && r.version.Group != "" {
			i, at[r.version.Group] = len(groups.Groups), len(groups.Groups)
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: r.version.Group})
		}
		if r.version.Group != "" {
			groups.Groups[i].Versions = append(groups.Groups[i].Versions, version)
		}
		if path == "/apis/"+version.GroupVersion {
			served.GroupVersion = version.GroupVersion
			served.APIResources = append(served.APIResources, metav1.APIResource{Name: r.name})
		}
	}
	var answer any = groups
	if path != "/apis" {
		if answer = served; served.GroupVersion == "" {
			return false
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client is gone
	return true
}
