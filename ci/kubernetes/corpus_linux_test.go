package kubernetes

import (
	"sync"
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/objects"
	"github.com/tandem-proxy/tandem/ci/netns"
	"github.com/tandem-proxy/tandem/core/conformance"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// TestCorpus tells every scenario through a real API server to the program with
// the rights of system:kube-proxy. Scenarios share API servers, one after the
// other; what an API server does not take is skipped with what it said.
func TestCorpus(t *testing.T) {
	free := make(chan *site, atOnce)
	for range atOnce {
		c := start(t, cluster.Options{})
		kubeconfig, err := c.Kubeconfig("system:kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		free <- &site{cluster: c, objects: objects.NewServer(c.Client()), kubeconfig: kubeconfig}
	}
	bin := program(t)
	netns.Corpus(t, conformance.Corpus(t), func(net *lab.Net, _ *conformance.Scenario) (netns.Proxy, error) {
		s := <-free
		return &proxy{site: s, net: net, bin: bin, release: sync.OnceFunc(func() { free <- s })}, nil
	})
}
