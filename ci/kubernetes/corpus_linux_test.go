// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/objects"
	"github.com/tandem-proxy/tandem/ci/netns"
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/test/conformance"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
	"github.com/tandem-proxy/tandem/linux/iptables"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// TestCorpus sends scenarios through a real API server to the program with
// the rights of system:kube-proxy. Scenarios share API servers, one after the
// other; what an API server rejects is skipped with its message. A Part has a third
// of them: ci/netns runs all, with another source.
func TestCorpus(t *testing.T) { corpus(t, config.NFTables, netns.Part(t, 3, 1)) }

// TestCorpusIPTables does the same in iptables mode, in a Part with a sixth for each variant.
func TestCorpusIPTables(t *testing.T) {
	for i, v := range []xtables.Variant{xtables.Legacy, xtables.NFT} {
		t.Run(string(v), func(t *testing.T) {
			netns.UseVariant(t, v)
			corpus(t, iptables.Name, netns.Part(t, 6, 3*i))
		})
	}
}

func corpus(t *testing.T, mode config.Mode, dir string) {
	definitions, missing := cluster.FindDefinitions(t.Context(), "gateway")
	if missing != nil {
		t.Logf("scenarios with routes are left out: %v", missing)
	}
	free := make(chan *site, atOnce)
	for range atOnce {
		c := start(t, cluster.Options{})
		kubeconfig, err := c.Kubeconfig("system:kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		if missing == nil {
			if err := c.Gateway(t.Context(), definitions); err != nil {
				t.Fatal(err)
			}
		}
		client, err := c.Dynamic()
		if err != nil {
			t.Fatal(err)
		}
		free <- &site{cluster: c, objects: objects.NewServer(client, missing == nil), kubeconfig: kubeconfig}
	}
	bin := netns.Program(t)
	netns.Corpus(t, dir, func(net *lab.Net, of *conformance.Scenario) (netns.Proxy, error) {
		s := <-free
		return &proxy{site: s, net: net, bin: bin, mode: mode, routed: routed(of), release: sync.OnceFunc(func() { free <- s })}, nil
	})
}

// routed reports whether a scenario has objects of the Gateway API in any step.
func routed(s *conformance.Scenario) bool {
	for _, step := range s.Steps {
		for _, text := range step.Files {
			if bytes.Contains(text, []byte("apiVersion: "+gateway.Group)) {
				return true
			}
		}
	}
	return false
}
