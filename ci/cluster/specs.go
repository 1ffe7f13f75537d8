// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Names of proxies.
const (
	tandem    = "tandem"
	kubeProxy = "kube-proxy"
	none      = "none"
)

// proxy is which Service proxy a cluster has.
type proxy struct {
	Name string // tandem, kube-proxy or none
	Mode string
}

func (p proxy) String() string { return p.Name + " " + p.Mode }

// run names a proxy as parseRuns reads it.
func (p proxy) run() string { return p.Name + "/" + p.Mode }

// testSet is a set of upstream's tests, and the proxies and modes it is run for.
type testSet struct {
	Focus string // regular expressions over the names of specs
	Skip  []skip
	Runs  []proxy
	Limit time.Duration // of one run
	Shape shape         // of its clusters; zero for that of the flags

	Versions []string // of Kubernetes, in which it is run; none for that of the tests alone
}

// skip leaves out specs, with the reason.
type skip struct{ Match, Why string }

// notHere are the specs that no cluster on this kind of machine can run.
func notHere() []skip {
	return []skip{
		{`\[Feature:NetworkPolicy\]`, "the cluster has no policy engine"},
		{`\[Feature:SCTPConnectivity\]`, "this kernel has no SCTP"},
		{`\[Feature:Networking-(IPv4|IPv6|DNS)\]|should forward (PTR records|externalname) lookup to upstream nameserver`, "they reach out to the Internet"},
		{`\[Feature:PerformanceDNS\]|\[Feature:Networking-Performance\]`, "they measure the network, not the proxy"},
		{`\[Feature:KubeProxyNFAcct\]`, "this kernel has no nfnetlink_acct"},
		{`should let a node pull an image from a registry exposed via localhost NodePort`, "the registry in agnhost's image comes from the Internet"},
		{`should work after restarting apiserver`, "the API server of this cluster is no pod"},
		{`\[Provider:gce\]`, "they ask Google's metadata server"},
		{`should recreate its iptables rules if they are deleted`, "it needs SSH"},
	}
}

func sets() map[string]testSet {
	sample := `should serve a basic endpoint from pods|should be able to switch session affinity for NodePort|should function for pod-Service: udp|` +
		`should provide DNS for services|should have session affinity work for service with type clusterIP|should implement service.kubernetes.io/service-proxy-name|` +
		`should be able to preserve UDP traffic when server pod cycles for a ClusterIP|internalTrafficPolicy|should create endpoints for unready pods`
	const conformance = `\[sig-network\].*\[Conformance\]`
	balancers := skip{`\[Feature:LoadBalancer\]`, "a set of its own: balancers"}
	return map[string]testSet{
		"sample":      {Focus: `\[sig-network\].*(` + sample + `)`, Skip: notHere(), Runs: []proxy{{tandem, "nftables"}}, Limit: 6 * time.Minute},
		"conformance": {Focus: conformance, Runs: everyProxy(), Limit: 30 * time.Minute},
		"quick": {
			Focus: `\[sig-network\]`, Runs: everyProxy(), Limit: 30 * time.Minute,
			Skip: append(notHere(), balancers, skip{`\[Conformance\]`, "a set of its own"}, skip{`\[Slow\]|\[Serial\]|\[Disruptive\]`, "they take most of the time: the set network has them"}),
		},
		"network": {Focus: `\[sig-network\]`, Skip: append(notHere(), balancers), Runs: everyProxy(), Limit: 90 * time.Minute},
		"zones": {
			Focus: `\[sig-network\] (Traffic Distribution|Topology Hints)`, Runs: everyProxy(), Limit: 20 * time.Minute,
			Shape: shape{Nodes: 6, Zones: 3}, // some of its specs want two nodes in each of three zones
		},
		"single": {Focus: conformance, Runs: everyProxy(), Limit: 30 * time.Minute, Shape: shape{Nodes: 3, Zones: 3, Single: true}},
		"versions": {
			Focus: conformance, Runs: []proxy{{tandem, "nftables"}}, Limit: 30 * time.Minute,
			Skip:     []skip{{`ServiceCIDR and IPAddress API`, "1.31 does not have it, and no proxy takes part"}},
			Versions: []string{"1.31.13", "1.34.10", "1.36.3"}, // of those that module proxies have with all of their parts
		},
		"balancers": {Focus: `\[sig-network\].*\[Feature:LoadBalancer\]`, Skip: notHere(), Runs: everyProxy(), Limit: 60 * time.Minute},
	}
}

// everyProxy are the runs whose figures are compared: kube-proxy has no mode userspace.
func everyProxy() []proxy {
	return []proxy{
		{kubeProxy, "nftables"},
		{tandem, "nftables"},
		{kubeProxy, "iptables"},
		{tandem, "iptables"},
		{tandem, "userspace"},
	}
}

// parseRuns reads such as kube-proxy/nftables,tandem/iptables.
func parseRuns(text string) (all []proxy, err error) {
	for part := range strings.SplitSeq(text, ",") {
		name, mode, ok := strings.Cut(part, "/")
		if !ok || !slices.Contains([]string{tandem, kubeProxy}, name) || mode == "" {
			return nil, fmt.Errorf("no run %q: a run is PROXY/MODE with the proxy %s or %s", part, tandem, kubeProxy)
		}
		all = append(all, proxy{name, mode})
	}
	return all, nil
}

// skips joins the patterns of skips.
func skips(all []skip) string {
	var patterns []string
	for _, s := range all {
		patterns = append(patterns, s.Match)
	}
	return strings.Join(patterns, "|")
}
