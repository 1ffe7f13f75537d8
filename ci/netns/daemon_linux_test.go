// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// site is a lab with the real program on its node.
type site struct {
	t   *testing.T
	net *lab.Net
	bin string
	dir string
	cmd *exec.Cmd
	log bytes.Buffer

	source []string        // of tandem run; nil is the folder
	flags  []string        // of it, besides those that all tests need
	wrap   func(*exec.Cmd) // changes how it is started; or nil
}

var (
	nodeIP    = netip.MustParseAddr("192.0.2.1")
	clusterIP = netip.MustParseAddrPort("10.96.0.10:80")
	nodePort  = netip.MustParseAddrPort("192.0.2.1:30080")
	dnsIP     = netip.MustParseAddrPort("10.96.0.53:53")
)

// newSite is a site with three pods that answer.
func newSite(t *testing.T) *site {
	t.Helper()
	plan := lab.Plan{Node: []netip.Addr{nodeIP}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}}
	for i, ip := range []string{"10.244.1.10", "10.244.1.2", "10.244.1.3", "10.244.1.4"} {
		plan.Pods = append(plan.Pods, lab.Pod{Place: lab.Place(ip), Interface: fmt.Sprintf("pod%d", i), Addrs: []netip.Addr{netip.MustParseAddr(ip)}})
	}
	s := newSiteOn(t, plan)
	for _, ip := range []string{"10.244.1.2", "10.244.1.3", "10.244.1.4"} {
		for _, proto := range []model.Proto{model.TCP, model.UDP} {
			if _, err := s.net.Serve(lab.Place(ip), netip.AddrPortFrom(netip.MustParseAddr(ip), 8080), proto); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// newSiteOn is a site on a network of its own, without servers, which ends with the test.
func newSiteOn(t *testing.T, plan lab.Plan) *site {
	t.Helper()
	if err := lab.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skipf("the test changes rules with nft: %v", err)
	}
	var err error
	s := &site{t: t, bin: Program(t), dir: t.TempDir()}
	if s.net, err = lab.New(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.kill()
		if err := s.net.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the program:\n%s", s.log.String())
		}
	})
	return s
}

// write puts a Service with TCP and UDP ports and its endpoints into the folder.
func (s *site) write(extra string, endpoints ...string) {
	s.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports:
  - {name: http, protocol: TCP, port: 80, nodePort: 30080}
---
apiVersion: v1
kind: Service
metadata: {name: dns}
spec:
  clusterIP: 10.96.0.53
%s  ports:
  - {name: dns, protocol: UDP, port: 53}
`, extra)
	for _, svc := range []string{"web", "dns"} {
		port := map[string]string{"web": "{name: http, protocol: TCP, port: 8080}", "dns": "{name: dns, protocol: UDP, port: 8080}"}[svc]
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s-1, labels: {kubernetes.io/service-name: %s}}\naddressType: IPv4\nports: [%s]\nendpoints:", svc, svc, port)
		if len(endpoints) == 0 {
			b.WriteString(" []")
		}
		b.WriteString("\n")
		for _, ip := range endpoints {
			fmt.Fprintf(&b, "- {addresses: [%s], nodeName: node-1, conditions: {ready: true}}\n", ip)
		}
	}
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: %s}]}\n", nodeIP)
	s.put(b.String())
}

func (s *site) put(text string) {
	s.t.Helper()
	tmp := filepath.Join(s.dir, ".new")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, "all.yaml")); err != nil {
		s.t.Fatal(err)
	}
}

// start starts the program and waits until it is healthy.
func (s *site) start() {
	s.t.Helper()
	source := s.source
	if source == nil {
		source = []string{"--manifests", s.dir}
	}
	args := slices.Concat([]string{"run"}, source, []string{"--node", "node-1", "--cluster-cidr", "10.244.0.0/16"}, s.flags)
	s.cmd = exec.Command(s.bin, args...)
	s.cmd.Stderr = &s.log
	if s.wrap != nil {
		s.wrap(s.cmd)
	}
	if err := s.net.Do(lab.Node, s.cmd.Start); err != nil {
		s.t.Fatal(err)
	}
	s.eventually(time.Minute, "healthy", func() error {
		doc, err := s.status()
		if err == nil && !doc.Healthy {
			err = fmt.Errorf("not healthy: %v", doc.Reasons)
		}
		return err
	})
}

// kill ends the program as kill -9 does.
func (s *site) kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// run runs a command on the node and returns what it printed.
func (s *site) run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := s.net.Do(lab.Node, cmd.Run); err != nil {
		return out.String(), fmt.Errorf("%s %v: %w: %s", name, args, err, out.String())
	}
	return out.String(), nil
}

func (s *site) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(name, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// status is what tandem status says, also of a proxy that is not healthy, where it exits with 1.
func (s *site) status() (doc question.Status, err error) {
	out, err := s.run(s.bin, "status", "-o", "json")
	if json.NewDecoder(strings.NewReader(out)).Decode(&doc) == nil {
		return doc, nil
	}
	return doc, cmp.Or(err, fmt.Errorf("status: no document: %s", out))
}

// eventually is Eventually of the site.
func (s *site) eventually(within time.Duration, what string, try func() error) time.Duration {
	s.t.Helper()
	return Eventually(s.t, within, what, try)
}

// reach makes a connection from a pod; no answer is an error. It is for eventually: a busy
// machine may need longer for the answer.
func (s *site) reach(to netip.AddrPort) error {
	return s.call(lab.Call{From: "10.244.1.10", Proto: model.TCP, To: to, Timeout: 300 * time.Millisecond})
}

// call makes a connection; no answer is an error.
func (s *site) call(c lab.Call) error {
	a, err := s.net.Dial(c)
	if err == nil && a.Outcome != lab.Answered {
		err = fmt.Errorf("%s", a.Outcome)
	}
	return err
}

// answers makes a connection from a pod, which must be answered, however long the machine
// takes, and without a SYN that was lost.
func (s *site) answers(to netip.AddrPort) error {
	a, err := s.net.DialOnce(lab.Call{From: "10.244.1.10", Proto: model.TCP, To: to, Timeout: time.Minute})
	if err == nil && a.Outcome != lab.Answered {
		err = fmt.Errorf("%s", a.Outcome)
	}
	return err
}

// udp asks from one and the same source port, so that connection tracking sees
// one and the same flow.
func (s *site) udp(to netip.AddrPort) (server netip.AddrPort, err error) {
	err = s.net.Do("10.244.1.10", func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(10, 244, 1, 10), Port: 20053}}
		conn, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		a, err := lab.Ask(conn, 50*time.Millisecond)
		if err == nil && a.Outcome != lab.Answered {
			err = fmt.Errorf("%s", a.Outcome)
		}
		server = a.Server
		return err
	})
	return server, err
}
