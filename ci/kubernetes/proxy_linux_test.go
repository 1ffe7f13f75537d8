// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
	"github.com/tandem-proxy/tandem/ci/kubernetes/objects"
	"github.com/tandem-proxy/tandem/ci/netns"
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/watch/gateway"
	"github.com/tandem-proxy/tandem/linux/iptables"
	lab "github.com/tandem-proxy/tandem/linux/netns"
)

// site is an API server that scenarios use one after the other.
type site struct {
	cluster    *cluster.Cluster
	objects    *objects.Server
	kubeconfig string // of system:kube-proxy
}

// proxy is tandem, or a program with the same flags, on the node of a lab. It
// serves what the API server holds, which is the content of a folder.
type proxy struct {
	*site
	net     *lab.Net
	bin     string
	mode    config.Mode
	routed  bool // it follows routes
	relays  bool // node ports on loopback addresses, which are opened after all rules are written
	dir     string
	node    string // its name
	process *cluster.Process
	marks   int
	applied objects.Set
	release func()
}

// Start fills the API server first, so that there is something to list.
func (p *proxy) Start(ctx context.Context, dir string, host config.Config) error {
	if err := p.cluster.Join(p.net); err != nil {
		return err
	}
	for _, proto := range []model.Proto{model.TCP, model.UDP} {
		if _, err := p.net.Serve(lab.Node, markServer, proto); err != nil {
			return err
		}
	}
	p.dir, p.node, p.relays = dir, host.NodeName, host.NodePorts.Localhost || host.NodePorts.Loopback != nil && *host.NodePorts.Loopback
	if err := p.apply(ctx); err != nil {
		return err
	}
	args := append(arguments(p.mode, host), "--kubeconfig="+p.kubeconfig)
	if p.routed {
		args = append(args, "--gateway-routes")
	}
	var err error
	p.process, err = cluster.Run(p.net, lab.Node, filepath.Join(dir, "proxy.log"), exec.Command(p.bin, args...))
	return err
}

// arguments are the flags that kube-proxy has, too, for a scenario's settings.
func arguments(mode config.Mode, host config.Config) []string {
	var words []string
	for word, set := range map[string]bool{"primary": host.NodePorts.Primary, "localhost": host.NodePorts.Localhost, "all": host.NodePorts.All || !host.NodePorts.Set()} {
		if set {
			words = append(words, word)
		}
	}
	if len(host.NodePorts.Prefixes) > 0 {
		words = append(words, join(host.NodePorts.Prefixes))
	}
	args := []string{
		"--hostname-override=" + host.NodeName, "--proxy-mode=" + string(mode), "--nodeport-addresses=" + strings.Join(words, ","),
		"--detect-local-mode=" + string(host.DetectLocal), fmt.Sprintf("--masquerade-all=%t", host.MasqueradeAll),
		fmt.Sprintf("--iptables-localhost-nodeports=%t", host.NodePorts.Loopback != nil && *host.NodePorts.Loopback),
	}
	for flag, value := range map[string]string{
		"cluster-cidr": join(host.ClusterCIDRs), "pod-bridge-interface": host.PodBridge, "pod-interface-name-prefix": host.PodInterfacePrefix,
		config.AllowedExternalIPs: allowed(host.ExternalIPs),
	} {
		if value != "" {
			args = append(args, "--"+flag+"="+value)
		}
	}
	return args
}

// allowed is the setting as the flag spells it.
func allowed(e config.ExternalIPs) string {
	if e.Only {
		return "only," + join(e.Allowed)
	}
	return join(e.Allowed)
}

func join(ps []netip.Prefix) string {
	var words []string
	for _, p := range ps {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// apply brings the API server in line with the folder, and with a mark.
func (p *proxy) apply(ctx context.Context) error {
	want, err := objects.Read(p.dir)
	if err == nil {
		p.applied = want
		err = p.mark(want)
	}
	if err == nil {
		err = p.objects.Apply(ctx, want)
	}
	if errors.As(err, new(*objects.RejectedError)) {
		return &netns.Unfit{Why: err}
	}
	return err
}

// Changed puts a new mark behind everything else and waits until it answers:
// the events of a kind come in the order in which they happened, and a mark has
// a Service and a slice, and of routes one of each kind. Events of the Node and of
// ServiceCIDRs come apart: the mark after them is put when the proxy has them.
func (p *proxy) Changed(ctx context.Context) error {
	before := p.applied
	if err := p.apply(ctx); err != nil {
		return err
	}
	// Tables of iptables are written one after the other, IPv4 first. What comes
	// with a second mark is begun when all is done that came with the first.
	marks := 1
	if p.mode == iptables.Name || p.relays {
		marks = 2
	}
	if !reflect.DeepEqual(before["Node"], p.applied["Node"]) || !reflect.DeepEqual(before["ServiceCIDR"], p.applied["ServiceCIDR"]) {
		if err := p.read(ctx); err != nil {
			return err
		}
	}
	for range marks {
		if err := p.marked(ctx); err != nil {
			return err
		}
	}
	return p.written(ctx)
}

// written waits until the proxy has written all Services that it has: a large one may take several transactions,
// and what is small, such as a mark, does not wait for the last one.
func (p *proxy) written(ctx context.Context) error {
	return p.until(ctx, 10*time.Millisecond, func() (missing string, err error) {
		doc, err := p.status(ctx) // which comes after the sync that is under way
		for _, s := range doc.Services {
			if s.State == question.Pending {
				missing = s.Name + " is not programmed"
			}
		}
		return missing, err
	})
}

// read waits until the proxy's status says that it has its Node and all ServiceCIDRs as
// the API server has them.
func (p *proxy) read(ctx context.Context) error {
	nodes, err := p.cluster.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.node})
	if err != nil {
		return err
	}
	cidrs, err := p.cluster.Client().NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	newest := map[string]uint64{}
	for _, n := range nodes.Items {
		newest["nodes"] = max(newest["nodes"], version(n.ResourceVersion))
	}
	for _, c := range cidrs.Items {
		newest["servicecidrs"] = max(newest["servicecidrs"], version(c.ResourceVersion))
	}
	return p.until(ctx, 10*time.Millisecond, func() (missing string, err error) {
		doc, err := p.status(ctx)
		if err != nil {
			return "", err
		}
		has := func(kind string, objects int) bool {
			i := slices.IndexFunc(doc.Inputs, func(in question.Input) bool { return in.Name == kind })
			return i >= 0 && doc.Inputs[i].Objects == objects && version(doc.Inputs[i].Version) >= newest[kind]
		}
		if !has("nodes", len(nodes.Items)) || !has("servicecidrs", len(cidrs.Items)) {
			missing = fmt.Sprintf("the Node or ServiceCIDRs are not read: %+v, want %v", doc.Inputs, newest)
		}
		return missing, nil
	})
}

// until asks at a pace until nothing is missing. It fails where the proxy has ended, or ctx.
func (p *proxy) until(ctx context.Context, pace time.Duration, ask func() (missing string, err error)) error {
	for {
		missing, err := ask()
		if err != nil || missing == "" {
			return err
		}
		select {
		case <-p.process.Done():
			return fmt.Errorf("the proxy ended:\n%s", p.process.Said(20))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w:\n%s", missing, ctx.Err(), p.process.Said(20))
		case <-time.After(pace):
		}
	}
}

// version is a resourceVersion as a number, which etcd's are.
func version(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// status is what tandem status says, also of a proxy that is not healthy, where it exits with 1.
func (p *proxy) status(ctx context.Context) (doc question.Status, err error) {
	var out []byte
	err = p.net.Do(lab.Node, func() (err error) {
		out, err = exec.CommandContext(ctx, p.bin, "status", "-o", "json").Output()
		return err
	})
	if err != nil && len(out) == 0 {
		return doc, fmt.Errorf("tandem status: %w", err)
	}
	return doc, json.Unmarshal(out, &doc)
}

// marked puts a new mark and waits until it answers.
func (p *proxy) marked(ctx context.Context) error {
	p.marks++
	if err := p.apply(ctx); err != nil {
		return err
	}
	if err := p.answers(ctx, model.TCP); err != nil || !p.routed {
		return err
	}
	return p.answers(ctx, model.UDP)
}

// answers waits until the newest mark answers.
func (p *proxy) answers(ctx context.Context, proto model.Proto) error {
	call := lab.Call{From: lab.Node, Proto: proto, To: netip.AddrPortFrom(markIP(p.marks), 9), Timeout: 50 * time.Millisecond}
	return p.until(ctx, 2*time.Millisecond, func() (missing string, err error) {
		a, err := p.net.Dial(call)
		if a.Outcome != lab.Answered || a.Server != markServer {
			missing = fmt.Sprintf("mark %d is not programmed", p.marks)
		}
		return missing, err
	})
}

// Stop stops the proxy and empties the API server for the next scenario.
func (p *proxy) Stop() error {
	defer p.release()
	var err error
	if p.process != nil {
		err = p.process.Stop(5 * time.Second)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return errors.Join(err, p.objects.Apply(ctx, objects.Set{}))
}

// markServer answers for all marks.
var markServer = netip.MustParseAddrPort("192.0.2.1:39999")

func markIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 255, byte(1 + n%100)}) }

// markBackendIP is that of the backend of a mark, with routes.
func markBackendIP(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, 255, byte(101 + n%100)}) }

// Where marks are, and where the backends of those with routes are.
const marks, markBackends = "marks-of-the-test", "backends-of-the-test"

// mark adds the newest mark to a set: a Service with a slice. With routes the slice is
// that of another Service, to which a TCPRoute and a UDPRoute lead that a grant allows.
func (p *proxy) mark(s objects.Set) error {
	name, behind := fmt.Sprintf("mark-%d", p.marks), marks
	text := fmt.Sprintf(markService, marks, name, markIP(p.marks))
	if p.routed {
		behind = markBackends
		text += fmt.Sprintf(markService, behind, name, markBackendIP(p.marks))
		version := gateway.RouteVersions()[0]
		for _, kind := range []string{"TCPRoute", "UDPRoute"} {
			text += fmt.Sprintf(markRoute, version, kind, marks, behind, name)
		}
		text += fmt.Sprintf(markGrant, version, marks, behind, name, gateway.Group)
	}
	return s.Add([]byte(text + fmt.Sprintf(markSlice, behind, name, markServer.Addr(), markServer.Port())))
}

// The manifests of a mark.
const (
	markService = `---
apiVersion: v1
kind: Service
metadata: {namespace: %s, name: %s}
spec: {clusterIP: %[3]s, clusterIPs: [%[3]s], ipFamilies: [IPv4], ports: [{name: tcp, port: 9, protocol: TCP}, {name: udp, port: 9, protocol: UDP}]}
`
	markSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %s, name: %[2]s, labels: {kubernetes.io/service-name: %[2]s}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: tcp, port: %[4]d, protocol: TCP}, {name: udp, port: %[4]d, protocol: UDP}]
`
	markRoute = `---
apiVersion: %s
kind: %s
metadata: {namespace: %s, name: %[5]s}
spec:
  parentRefs: [{group: "", kind: Service, name: %[5]s}]
  rules: [{backendRefs: [{namespace: %[4]s, name: %[5]s, port: 9}]}]
`
	markGrant = `---
apiVersion: %[1]s
kind: ReferenceGrant
metadata: {namespace: %[3]s, name: %[4]s}
spec:
  from: [{group: %[5]s, kind: TCPRoute, namespace: %[2]s}, {group: %[5]s, kind: UDPRoute, namespace: %[2]s}]
  to: [{group: "", kind: Service}]
`
)
