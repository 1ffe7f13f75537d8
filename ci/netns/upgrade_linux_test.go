// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
	lab "github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/linux/xtables"
	"github.com/tandem-proxy/tandem/platform"
)

// upgrade is a site whose proxy is replaced by another while clients connect.
type upgrade struct {
	*site
	api     *apitest.Server // what kube-proxy follows; Tandem reads the folder
	traffic *traffic
	conns   []net.Conn
}

func newUpgrade(t *testing.T) *upgrade {
	t.Helper()
	u := &upgrade{site: newSite(t)}
	err := u.net.Do(lab.Node, func() (err error) {
		u.api, err = apitest.Start(apitest.Options{Plain: true})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.api.Stop)
	u.serve("10.244.1.2", "10.244.1.3")
	return u
}

// serve gives both Services these endpoints, for all proxies.
func (u *upgrade) serve(endpoints ...string) {
	u.t.Helper()
	u.write("", endpoints...)
	text, err := os.ReadFile(u.dir + "/all.yaml")
	if err != nil {
		u.t.Fatal(err)
	}
	u.api.Put(objects(u.t, string(text))...)
}

// follows waits until new connections reach one endpoint alone, of a Service that had
// others before: then the proxy that runs decides, and not what another has left.
func (u *upgrade) follows(what, endpoint string) {
	u.t.Helper()
	u.serve(endpoint)
	want := netip.AddrPortFrom(netip.MustParseAddr(endpoint), 8080)
	for i, call := range calls {
		in := 0
		u.eventually(30*time.Second, fmt.Sprintf("%s: new connections from %s reach %s", what, call.From, endpoint), func() error {
			a, err := u.net.Dial(calls[i])
			if err == nil && a.Server != want {
				err = fmt.Errorf("%s by %s", a.Outcome, a.Server)
			}
			if in++; err != nil {
				in = 0
			} else if in < 10 {
				err = errors.New("only now and then")
			}
			return err
		})
	}
}

// load starts clients: new connections all the time, and long-lived ones.
func (u *upgrade) load() {
	u.t.Helper()
	u.traffic = u.site.traffic()
	u.t.Cleanup(u.traffic.end)
	u.conns = u.longLived()
	u.t.Cleanup(func() { hangUp(u.conns) })
}

// undisturbed reports what clients noticed since the last call.
func (u *upgrade) undisturbed(what string) {
	u.t.Helper()
	made, failed := u.traffic.made.Swap(0), u.traffic.failed.Swap(0)
	broken, example := stillThere(u.conns)
	u.t.Logf("%s: %d of %d new connections failed, %d of %d long-lived ones broke", what, failed, made, broken, len(u.conns))
	if failed > 0 {
		u.t.Errorf("%s: %d of %d new connections failed, the last: %v", what, failed, made, u.traffic.failure())
	}
	if broken > 0 {
		u.t.Errorf("%s: %d of %d long-lived connections broke, one of them: %v", what, broken, len(u.conns), example)
	}
}

// stop ends the proxy as a service manager does.
func (u *upgrade) stop() {
	u.t.Helper()
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		u.t.Error(err)
	}
	_ = u.cmd.Wait()
	u.cmd = nil
}

// kubeProxy starts kube-proxy and waits until it has programmed everything.
func (u *upgrade) kubeProxy(program, mode string) {
	u.t.Helper()
	u.cmd = exec.Command(program, "--master="+u.api.URL(), "--kube-api-content-type=application/json", "--proxy-mode="+mode,
		"--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=0.0.0.0/0", "--conntrack-max-per-core=0")
	u.cmd.Stderr = &u.log
	if err := u.net.Do(lab.Node, u.cmd.Start); err != nil {
		u.t.Fatal(err)
	}
	synced := regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\S* [1-9]`)
	u.eventually(time.Minute, "kube-proxy has programmed everything", func() error {
		text, err := u.get("127.0.0.1:10249", "/metrics")
		if err == nil && !synced.MatchString(text) {
			err = errors.New("no sync yet")
		}
		return err
	})
}

// get asks a server on the node.
func (u *upgrade) get(at, path string) (text string, err error) {
	var conn net.Conn
	err = u.net.Do(lab.Node, func() (err error) {
		conn, err = net.DialTimeout("tcp", at, time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

// kubeProxyProgram returns the path of kube-proxy, or skips the test.
func kubeProxyProgram(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("KUBE_PROXY"); path != "" {
		return path
	}
	b, err := cluster.Find(t.Context(), "../kubernetes/upstream")
	if err != nil {
		t.Skip(err)
	}
	return b.Proxy
}

// theirs is a way to run kube-proxy.
type theirs struct {
	mode    string
	variant xtables.Variant // of iptables, for both proxies
	left    string          // in `nft list ruleset` or iptables-save while its rules are there
}

func allTheirs() []theirs {
	return []theirs{
		{"nftables", xtables.NFT, "table ip kube-proxy"},
		{"iptables", xtables.NFT, "KUBE-SVC-"},
		{"iptables", xtables.Legacy, "KUBE-SVC-"},
		{"ipvs", xtables.NFT, "KUBE-CLUSTER-IP"},
	}
}

// TestKubeProxyThereAndBack replaces kube-proxy by Tandem and Tandem by kube-proxy,
// as in the guide (core/manual/pages/kubeadm.md), under load, from each mode to
// each: no connection fails or breaks. Modes that use IPVS need a kernel that has it.
func TestKubeProxyThereAndBack(t *testing.T) {
	program := kubeProxyProgram(t)
	for _, from := range allTheirs() {
		for _, to := range []config.Mode{config.NFTables, "iptables", "ipvs"} {
			t.Run(fmt.Sprintf("%s-%s to %s", from.mode, from.variant, to), func(t *testing.T) {
				UseVariant(t, from.variant)
				for _, name := range []config.Mode{config.Mode(from.mode), to} {
					mode, err := platform.Find(name)
					if err == nil {
						err = works(t.Context(), mode)
					}
					if err != nil {
						t.Skip(err)
					}
				}
				u := newUpgrade(t)
				u.kubeProxy(program, from.mode)
				u.load()
				u.undisturbed("kube-proxy alone")
				u.there(program, from, to)
				u.undisturbed("kube-proxy to Tandem")
				u.back(program, from, to)
				u.undisturbed("Tandem to kube-proxy")
				if err := u.left(to); err != nil && to != config.Mode(from.mode) {
					t.Error(err)
				}
			})
		}
	}
}

// there replaces kube-proxy by Tandem.
func (u *upgrade) there(program string, from theirs, to config.Mode) {
	u.t.Helper()
	u.stop()
	u.flags = []string{"--proxy-mode", string(to), "--takeover"}
	u.start()
	if to == config.Mode(from.mode) { // then what was kube-proxy's is Tandem's now
		u.follows("Tandem", "10.244.1.4")
		return
	}
	if from.mode == "ipvs" { // --takeover does not know its virtual servers
		u.must(program, "--cleanup")
	}
	u.eventually(20*time.Second, "kube-proxy's rules go", func() error { return u.without(from.left) })
	u.follows("Tandem", "10.244.1.4")
}

// back replaces Tandem by kube-proxy.
func (u *upgrade) back(program string, from theirs, to config.Mode) {
	u.t.Helper()
	if from.mode == "nftables" && to != config.NFTables {
		// Before it programs anything kube-proxy in this mode removes all its chains of
		// iptables, with which Tandem's share names, and all virtual servers.
		u.must(u.bin, "switch", "--to", string(config.NFTables))
		u.eventually(20*time.Second, "the mode goes", func() error { return u.site.left(to) })
	}
	u.stop()
	u.kubeProxy(program, from.mode)
	u.must(u.bin, "cleanup")
	u.follows("kube-proxy", "10.244.1.3")
}

// without is nil when a text is nowhere in the rules.
func (u *upgrade) without(text string) error {
	tables, err := u.run("nft", "list", "tables")
	rules, err2 := u.run("iptables-save")
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if all := tables + rules; strings.Contains(all, text) {
		return fmt.Errorf("%q is there:\n%s", text, all)
	}
	return nil
}
