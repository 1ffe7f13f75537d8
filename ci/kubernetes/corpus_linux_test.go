// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/dynamic"

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

// TestCorpus sends every scenario through a real API server to the program with
// the rights of system:kube-proxy. Scenarios share API servers, one after the
// other; what an API server rejects is skipped with its message.
func TestCorpus(t *testing.T) { corpus(t, config.NFTables, conformance.Corpus(t)) }

// TestCorpusIPTables does the same in iptables mode with a part of the scenarios
// for each variant: ci/netns runs all of them in this mode, with another source.
// TANDEM_TEST_WHOLE_CORPUS makes it all of them here, too.
func TestCorpusIPTables(t *testing.T) {
	for i, v := range []xtables.Variant{xtables.Legacy, xtables.NFT} {
		t.Run(string(v), func(t *testing.T) {
			netns.UseVariant(t, v)
			dir := conformance.Corpus(t)
			if os.Getenv("TANDEM_TEST_WHOLE_CORPUS") == "" {
				dir = part(t, dir, 6, 3*i)
			}
			corpus(t, iptables.Name, dir)
		})
	}
}

// part copies each nth scenario of a folder into another.
func part(t *testing.T, dir string, n, first int) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(all) < n {
		t.Fatal(all, err)
	}
	to := t.TempDir()
	for i := first; i < len(all); i += n {
		text, err := os.ReadFile(all[i])
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(all[i])), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
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
		var routes dynamic.Interface
		if missing == nil {
			if routes, err = c.Gateway(t.Context(), definitions); err != nil {
				t.Fatal(err)
			}
		}
		free <- &site{cluster: c, objects: objects.NewServer(c.Client(), routes), kubeconfig: kubeconfig}
	}
	bin := program(t)
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
