// SPDX-License-Identifier: Apache-2.0

// Command winkernel programs Services and EndpointSlices from files of manifests
// with kube-proxy's own proxier for Windows. Each line of its input is such a file, which
// replaces the one before; once it is programmed, as far as it can be, a line of output has the
// calls about load balancers that have failed so far, by kube-proxy's metrics. ci/wine runs it
// under Wine and compares what it does to HNS with what Tandem does.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/metrics"
	"k8s.io/kubernetes/pkg/proxy/winkernel"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "winkernel:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("winkernel", flag.ContinueOnError)
	c := &config.KubeProxyConfiguration{SyncPeriod: metav1.Duration{Duration: time.Hour}}
	flags.StringVar(&c.HealthzBindAddress, "healthz-bind-address", "", "")
	w := &c.Winkernel
	flags.StringVar(&w.NetworkName, "network-name", "", "")
	flags.StringVar(&w.SourceVip, "source-vip", "", "")
	flags.BoolVar(&w.EnableDSR, "enable-dsr", false, "")
	flags.StringVar(&w.RootHnsEndpointName, "root-hnsendpoint-name", "cbr0", "")
	flags.BoolVar(&w.ForwardHealthCheckVip, "forward-healthcheck-vip", false, "")
	node := flags.String("node", "", "the node's name")
	ips := flags.String("node-ips", "", "the node's addresses, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p, err := newProxier(*node, strings.Split(*ips, ","), c)
	if err != nil {
		return err
	}
	metrics.RegisterMetrics(config.ProxyModeKernelspace)
	var before state
	files := bufio.NewScanner(os.Stdin)
	for first := true; files.Scan(); first = false {
		now, err := read(files.Text())
		if err != nil {
			return err
		}
		now.tell(p, before)
		if before = now; first {
			p.OnServiceSynced()
		}
		p.OnEndpointSlicesSynced() // programs everything, each time
		failed, err := failures()
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(failed, " "))
	}
	return files.Err()
}

// failures are the calls about load balancers that have failed, as "verb/family/type/error=number".
func failures() (all []string, err error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return nil, err
	}
	for _, f := range families {
		verb, is := strings.CutPrefix(f.GetName(), "kubeproxy_sync_proxy_rules_winkernel_lb_")
		verb, total := strings.CutSuffix(verb, "_failures_total")
		if !is || !total {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			all = append(all, fmt.Sprintf("%s/%s/%s/%s=%v", verb, labels["ip_family"], labels["lb_type"], labels["error"], m.GetCounter().GetValue()))
		}
	}
	return all, nil
}

// newProxier returns the proxier that kube-proxy would make on this node
// (cmd/kube-proxy/app/server_windows.go).
func newProxier(node string, ips []string, c *config.KubeProxyConfiguration) (proxy.Provider, error) {
	nodeIPs := map[v1.IPFamily]net.IP{v1.IPv4Protocol: net.IPv4zero, v1.IPv6Protocol: net.IPv6zero}
	for _, s := range ips {
		ip := net.ParseIP(s)
		if ip == nil {
			return nil, fmt.Errorf("invalid node address %q", s)
		}
		family := v1.IPv6Protocol
		if ip.To4() != nil {
			family = v1.IPv4Protocol
		}
		nodeIPs[family] = ip
	}
	recorder := events.NewFakeRecorder(1000)
	if (winkernel.DualStackCompatTester{}).DualStackCompatible(c.Winkernel.NetworkName) {
		return winkernel.NewDualStackProxier(c, node, nodeIPs, recorder, nil)
	}
	return winkernel.NewProxier(c, v1.IPv4Protocol, node, nodeIPs[v1.IPv4Protocol], recorder, nil)
}

// state is what a file has, by namespace and name.
type state struct {
	services map[string]*v1.Service
	slices   map[string]*discovery.EndpointSlice
}

// tell hands a proxier what differs from the state before.
func (s state) tell(p proxy.Provider, before state) {
	for name, service := range before.services {
		if s.services[name] == nil {
			p.OnServiceDelete(service)
		}
	}
	for name, slice := range before.slices {
		if s.slices[name] == nil {
			p.OnEndpointSliceDelete(slice)
		}
	}
	for name, service := range s.services {
		if old := before.services[name]; old != nil {
			p.OnServiceUpdate(old, service)
		} else {
			p.OnServiceAdd(service)
		}
	}
	for name, slice := range s.slices {
		if old := before.slices[name]; old != nil {
			p.OnEndpointSliceUpdate(old, slice)
		} else {
			p.OnEndpointSliceAdd(slice)
		}
	}
}

func read(file string) (s state, err error) {
	s = state{map[string]*v1.Service{}, map[string]*discovery.EndpointSlice{}}
	text, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err == nil {
			err = s.add(document)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", file, err)
		}
	}
}

func (s state) add(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Service":
		var o v1.Service
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			return err
		}
		s.services[o.Namespace+"/"+o.Name] = &o
	case "EndpointSlice":
		var o discovery.EndpointSlice
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			return err
		}
		s.slices[o.Namespace+"/"+o.Name] = &o
	}
	return nil
}
