// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

// TestServersThatCannotStreamLists follows API servers that refuse a streaming
// list: one with the WatchList gate off, and two over an etcd without progress
// requests.
func TestServersThatCannotStreamLists(t *testing.T) {
	for name, options := range map[string]func(*testing.T) cluster.Options{
		"WatchList off": func(*testing.T) cluster.Options {
			return cluster.Options{Audit: true, Server: []string{"--feature-gates=WatchList=false"}}
		},
		"etcd 3.5.7": func(t *testing.T) cluster.Options {
			etcd, err := cluster.FindOldEtcd(t.Context(), "oldetcd")
			return overEtcd(t, etcd, err)
		},
		"etcd 3.4": func(t *testing.T) cluster.Options { // of Debian 12: its modules cannot be built any more
			etcd, err := cluster.FindPackaged(t.Context(), "../setup/unpack", "etcd-server", "3.4", "usr/bin/etcd")
			return overEtcd(t, etcd, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, options(t))
			n := servingNode(t, c)
			n.write(c.Client(), "10.244.1.3")
			n.answers(soon, "10.244.1.3")
			requests, err := c.Requests()
			if err != nil {
				t.Fatal(err)
			}
			listed := map[string]int{}
			for _, r := range requests {
				if r.User.Username == "system:kube-proxy" && r.Verb == "list" {
					listed[r.ObjectRef.Resource]++
				}
			}
			if listed["services"] == 0 || listed["endpointslices"] == 0 {
				t.Errorf("the server did stream lists: lists in pages: %v", listed)
			}
			t.Logf("lists in pages: %v", listed)
		})
	}
}

// overEtcd are the options of a server over an etcd, which may be missing here.
func overEtcd(t *testing.T, etcd string, err error) cluster.Options {
	t.Helper()
	if err != nil {
		t.Skip(err)
	}
	return cluster.Options{Audit: true, Binaries: cluster.Binaries{Etcd: etcd}}
}
