// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"net/netip"
	"os"
	"testing"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/objects"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestCluster runs the Windows program on a node of a real API server, with the
// rights that kube-proxy has. The node is a network namespace, in which Wine and
// the emulator run.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short, and Wine takes a while")
	}
	n := newMember(t)
	n.apply("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.2=node-2"))
	n.launch()
	n.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	n.sound()

	t.Run("one endpoint replaced", func(t *testing.T) {
		n.rest()
		n.apply("web.yaml", service("web", "10.96.0.10", 8080, "10.244.1.2=node-1", "10.244.2.9=node-2"))
		n.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
		if calls := n.rest(); len(calls) > 8 || len(n.emu.Outages()) > 0 {
			t.Errorf("%d calls, gaps %v", len(calls), n.emu.Outages())
		}
	})
	t.Run("a restart without the API server", func(t *testing.T) { n.restartAlone(t) })
	t.Run("hns diff asks the API server", func(t *testing.T) {
		n.rest()
		var said []byte
		err := n.net.Do(lab.Node, func() (err error) {
			said, err = finish(n.tandem("hns", "diff"))
			return err
		})
		if err != nil {
			t.Errorf("%v\n%s", err, said)
		}
	})
	n.sound()
}

// member is a Windows node of a cluster.
type member struct {
	*node
	net     *lab.Net
	cluster *cluster.Cluster
}

// newMember starts a cluster, and a node of it without the program.
func newMember(t *testing.T) *member {
	if err := lab.Available(); err != nil {
		t.Skip(err)
	}
	binaries, err := cluster.Find(t.Context(), "../kubernetes/upstream")
	if err != nil {
		t.Skipf("skipped: %v", err)
	}
	m := &member{}
	if m.cluster, err = cluster.Start(t.Context(), cluster.Options{Dir: t.TempDir(), Binaries: binaries}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, m.cluster.Close) })
	if m.net, err = lab.New(t.Context(), lab.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, m.net.Close) })
	if err := m.cluster.Join(m.net); err != nil {
		t.Fatal(err)
	}
	p := usable(t, func() (p *prefix, err error) {
		err = m.net.Do(lab.Node, func() error { p, err = openPrefix(); return err })
		return p, err
	})
	must(t, m.net.Do(lab.Node, func() error {
		m.node = newNode(t, p, hnsemu.WS2025)
		return nil
	}))
	kubeconfig, err := m.cluster.Kubeconfig("system:kube-proxy")
	must(t, err)
	m.source = []string{"--kubeconfig", windowsPath(kubeconfig)}
	return m
}

// launch runs the program on the node.
func (m *member) launch() {
	m.Helper()
	must(m, m.net.Do(lab.Node, func() error {
		m.start()
		return nil
	}))
}

// apply brings the API server in line with the folder, after a change.
func (m *member) apply(file, text string) {
	m.Helper()
	m.write(file, text)
	want, err := objects.Read(m.manifests)
	must(m, err)
	client, err := m.cluster.Dynamic()
	must(m, err)
	must(m, objects.NewServer(client, false).Apply(m.Context(), want))
}

// restartAlone starts the program while the API server is gone: nothing is
// known of Services, so that nothing may be taken away.
func (m *member) restartAlone(t *testing.T) {
	m.rest()
	m.cluster.KillServer()
	m.stop((*os.Process).Kill)
	m.launch()
	eventually(t, "it has read HNS", func() bool { return m.emu.Calls("HcnEnumerateLoadBalancers") > 0 })
	m.rest()
	m.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	must(t, m.cluster.StartServer(t.Context()))
	m.apply("api.yaml", service("api", "10.96.0.12", 8080, "10.244.2.9=node-2"))
	m.serves("10.96.0.12", "10.244.2.9")
	m.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	for _, c := range m.rest() {
		if c.Verb == hnsemu.Delete {
			t.Errorf("taken away: %s %s", c.Name, c.ID)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closed(t testing.TB, f func() error) {
	if err := f(); err != nil {
		t.Error(err)
	}
}
