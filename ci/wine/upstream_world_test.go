// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// sameService is a Service of both families for two proxies.
type sameService struct {
	name        string
	nodePort    bool
	spec        string // of a flow mapping; "<n>" is the Service's number
	annotations string
	protocol    string // TCP if empty
	target      string // targetPort, 8080 if empty
	number      string // of the endpoints' port, 8080 if empty
	slice       string // words of the endpoints: see endpointsText
	ports       string // of a second slice, with its endpoints: "9090 2.4"
	late        bool   // it is created by the changes
}

// sameServices are what both proxies are given. The number of a Service, by which
// its addresses are made, is its place.
var sameServices = []sameService{
	{name: "clusterip", slice: "1.2 2.2"},
	{name: "udp", protocol: "UDP", slice: "1.2 2.3"},
	{name: "sctp", protocol: "SCTP", slice: "1.2 2.3"},
	{name: "dns", protocol: "UDP", slice: "1.3"},
	{name: "named-port", target: "http", slice: "1.2 2.2"},
	{name: "two-target-ports", target: "http", slice: "1.2 2.2", ports: "9090 2.4"},
	{name: "no-endpoints"},
	{name: "unready", slice: "1.2 2.2:unready"},
	{name: "all-unready", slice: "1.2:unready"},
	{name: "terminating", slice: "1.2:terminating 2.2:terminating"},
	{name: "terminating-beside-ready", slice: "1.2:terminating 2.2"},
	{name: "affinity", spec: "sessionAffinity: ClientIP", slice: "1.2 2.2"},
	{name: "internal-local", spec: "internalTrafficPolicy: Local", slice: "1.2 2.2"},
	{name: "internal-local-none", spec: "internalTrafficPolicy: Local", slice: "2.2"},
	{name: "host-network", slice: "node1 node2 1.2"},
	{name: "outside-the-cluster", slice: "1.2 public"},
	{name: "hints", annotations: "service.kubernetes.io/topology-mode: Auto", slice: "1.2:zone-a 2.2:zone-a 2.3:zone-b"},
	{nodePort: true, name: "nodeport", spec: "type: NodePort", slice: "1.2 2.2"},
	{nodePort: true, name: "nodeport-local", spec: "type: NodePort, externalTrafficPolicy: Local", slice: "1.2 2.2"},
	{nodePort: true, name: "nodeport-local-none", spec: "type: NodePort, externalTrafficPolicy: Local", slice: "2.2"},
	{nodePort: true, name: "nodeport-affinity", spec: "type: NodePort, sessionAffinity: ClientIP", slice: "1.2 2.2"},
	{nodePort: true, name: "nodeport-preserve", spec: "type: NodePort", annotations: `preserve-destination: "true"`, slice: "1.2 2.2"},
	{name: "external", spec: "externalIPs: [198.51.100.<n>, 'fd00:198::<n>']", slice: "1.2 2.2"},
	{nodePort: true, name: "external-local", spec: "externalIPs: [198.51.100.<n>, 'fd00:198::<n>'], externalTrafficPolicy: Local, type: NodePort", slice: "1.2 2.2"},
	{nodePort: true, name: "lb", spec: "type: LoadBalancer", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-udp", protocol: "UDP", spec: "type: LoadBalancer", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-local", spec: "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 310<n>", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-both-local", spec: "type: LoadBalancer, externalTrafficPolicy: Local, internalTrafficPolicy: Local, healthCheckNodePort: 310<n>", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-preserve", spec: "type: LoadBalancer", annotations: `preserve-destination: "true"`, slice: "1.2 2.2"},
	{nodePort: true, name: "lb-affinity", spec: "type: LoadBalancer, sessionAffinity: ClientIP", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-ranges", spec: "type: LoadBalancer, loadBalancerSourceRanges: [203.0.113.0/24, 'fd00:203::/64']", slice: "1.2 2.2"},
	{nodePort: true, name: "lb-terminating", spec: "type: LoadBalancer", slice: "1.2:terminating 2.2:terminating"},
	{nodePort: true, name: "lb-not-serving", spec: "type: LoadBalancer", slice: "1.2:unready 2.2:unready"},
	{name: "lb-no-node-port", spec: "type: LoadBalancer, allocateLoadBalancerNodePorts: false", slice: "1.2 2.2"},
	{name: "last", slice: "1.2"},
	{nodePort: true, late: true, name: "late", spec: "type: LoadBalancer", slice: "1.3 2.3"},
}

// sameChanges are what happens to some of them afterwards, by name. What has no endpoints left
// keeps its Service; a nil function deletes it.
var sameChanges = map[string]func(*sameService){
	"clusterip":         func(s *sameService) { s.slice = "1.2 2.2 2.3" },
	"udp":               func(s *sameService) { s.slice = "2.3" },
	"dns":               func(s *sameService) { s.slice = "1.2" },
	"named-port":        nil,
	"two-target-ports":  func(s *sameService) { s.ports = "" },
	"no-endpoints":      func(s *sameService) { s.slice = "2.2" },
	"unready":           func(s *sameService) { s.slice = "1.2 2.2" },
	"all-unready":       func(s *sameService) { s.slice = "1.2" },
	"terminating":       func(s *sameService) { s.slice = "" },
	"affinity":          func(s *sameService) { s.spec = "" },
	"internal-local":    func(s *sameService) { s.slice = "2.2" },
	"host-network":      func(s *sameService) { s.slice = "node2 1.2" },
	"nodeport":          func(s *sameService) { s.nodePort, s.spec = false, "" },
	"nodeport-local":    func(s *sameService) { s.spec = "type: NodePort" },
	"nodeport-preserve": nil,
	"external":          func(s *sameService) { s.spec = "" },
	"lb":                func(s *sameService) { s.slice = "1.2:terminating 2.2" },
	"lb-local":          func(s *sameService) { s.slice = "2.2" },
	"lb-preserve":       func(s *sameService) { s.annotations = "" },
	"lb-affinity":       func(s *sameService) { s.spec = "type: LoadBalancer" },
	"lb-no-node-port":   func(s *sameService) { s.slice = "2.4" },
	"last":              func(s *sameService) { s.spec = "type: LoadBalancer, allocateLoadBalancerNodePorts: false" },
}

// The phases of a comparison: after a start, after changes, after each step of churn, and while HNS
// does not do one thing or another, and after.
const (
	cold = iota
	changed
	churned
	churns = 3
	faulty = churned + churns
)

var phases = [...]string{
	cold: "start", changed: "changes", churned: "churn 1", churned + 1: "churn 2", churned + 2: "churn 3",
	faulty: "no creation", faulty + 1: "creation", faulty + 2: "no deletion", faulty + 3: "no modification", faulty + 4: "recovery",
}

// faults are what HNS refuses about load balancers in a phase.
var faults = map[int]hnsemu.Verb{faulty: hnsemu.Create, faulty + 2: hnsemu.Delete, faulty + 3: hnsemu.Modify}

// churn is a Service that comes after the changes and is another one in each step: nil is none. It
// stays as it is in the last.
type churn struct {
	name  string
	as    string // the test of kube-proxy that has such a life
	steps []func(*sameService)
}

// in returns what it is in a phase.
func (c churn) in(phase int) func(*sameService) {
	if phase < churned {
		return nil
	}
	return c.steps[min(phase-churned, len(c.steps)-1)]
}

// over has a Service over these endpoints.
func over(endpoints string) func(*sameService) {
	return func(s *sameService) { s.slice = endpoints }
}

// with has it besides with a spec, where node ports are part of its type.
func with(spec, endpoints string) func(*sameService) {
	return func(s *sameService) {
		s.spec, s.slice, s.nodePort = spec, endpoints, strings.Contains(spec, "type: ")
	}
}

// sameChurn are lives of Services as the inputs of kube-proxy's own tests have them: those of
// pkg/proxy/winkernel/proxier_test.go, and of Test_updateEndpointsMap in
// pkg/proxy/endpointschangetracker_test.go. Their numbers follow those of sameServices.
var sameChurn = []churn{
	{"shared-goes", "TestSharedRemoteEndpointDelete", []func(*sameService){over("2.5"), nil, over("2.5")}},
	{"shared-stays", "TestSharedRemoteEndpointDelete", []func(*sameService){over("2.5"), over("2.5"), over("2.5")}},
	{"shared-changes", "TestSharedRemoteEndpointUpdate", []func(*sameService){over("2.5"), with("type: NodePort", "2.5"), over("2.5")}},
	{"internal", "TestClusterIPSvcWithITPLocal", []func(*sameService){
		with("internalTrafficPolicy: Local", "1.2 2.5"), with("internalTrafficPolicy: Cluster", "1.2 2.5"), with("internalTrafficPolicy: Local", "1.2 2.5"),
	}},
	{"fewer", "TestEndpointTransitionWithLBFailures", []func(*sameService){over("1.2 2.5 2.6 2.7"), over("1.2 2.5"), over("1.2 2.5 2.6 2.7")}},
	{"fewer-too", "TestEndpointTransitionWithLBFailures", []func(*sameService){over("1.2 2.5 2.6 2.7"), over("1.2 2.5"), over("1.3")}},
	{"slices", "TestEndpointSlice", []func(*sameService){over("1.2 2.5 2.6:unready"), over("2.6"), over("")}},
	{"ingress", "TestETPLocalIngressIPServiceWithPreferDualStack", []func(*sameService){
		with("type: LoadBalancer, externalTrafficPolicy: Local", "1.2 2.5"), with("type: LoadBalancer, externalTrafficPolicy: Cluster", "1.2 2.5"), with("type: LoadBalancer, externalTrafficPolicy: Local", "1.3 2.5"),
	}},
	{"renumbered", "Test_updateEndpointsMap: renumber a port", []func(*sameService){
		over("1.2 2.5"), func(s *sameService) { s.slice, s.number = "1.2 2.5", "9090" }, over("1.2 2.5"),
	}},
	{"port-added", "Test_updateEndpointsMap: add a subset", []func(*sameService){
		over("1.2"), func(s *sameService) { s.slice, s.ports = "1.2", "8080 2.5" }, over("1.2"),
	}},
	{"empty-at-first", "Test_updateEndpointsMap: from empty to one", []func(*sameService){over(""), over("1.2 2.5"), over("1.3 2.5")}},
	{"failing", "TestEndpointTransitionWithLBFailures", []func(*sameService){
		nil, nil, nil, over("1.2 2.5 2.6 2.7"), over("1.2 2.5 2.6 2.7"), over("1.2 2.5"), over("1.3 2.5"), over("1.3 2.6"),
	}},
	{"failing-everywhere", "TestEndpointTransitionWithLBFailures", []func(*sameService){
		nil, nil, nil, everywhere("1.2 2.5 2.6 2.7"), everywhere("1.2 2.5 2.6 2.7"), everywhere("1.2 2.5"), everywhere("1.3 2.5"), everywhere("1.3 2.6"),
	}},
	{"leaving", "TestDeleteLoadBalancer", []func(*sameService){nil, nil, nil, nil, over("1.2 2.5"), nil}},
	{"leaving-everywhere", "TestDeleteLoadBalancer", []func(*sameService){nil, nil, nil, nil, everywhere("1.2 2.5"), nil}},
}

// everywhere has a Service over these endpoints with each kind of frontend.
func everywhere(endpoints string) func(*sameService) {
	return with("type: LoadBalancer, externalIPs: [198.51.100.<n>, 'fd00:198::<n>']", endpoints)
}

// sameManifests is the file that both proxies read in a phase.
func sameManifests(phase int) string {
	var b strings.Builder
	b.WriteString(`apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: zone-a}}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, 'fd00:10:244:1::/64']}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: 'fd00:192::1'}]}
`)
	for i, s := range sameServices {
		change, changes := sameChanges[s.name]
		switch {
		case s.late && phase < changed, phase >= changed && changes && change == nil:
			continue
		case phase >= changed && changes:
			change(&s)
		}
		s.write(&b, i+10)
	}
	for i, c := range sameChurn {
		if as := c.in(phase); as != nil {
			s := sameService{name: c.name}
			as(&s)
			s.write(&b, len(sameServices)+i+10)
		}
	}
	return b.String()
}

// Every step of churn is another file, has the Services that it is to have, and each of them is
// known by its number.
func TestChurn(t *testing.T) {
	for phase := range phases {
		text := sameManifests(phase)
		if _, recovers := faults[phase-1]; phase > 0 && !recovers && text == sameManifests(phase-1) {
			t.Errorf("%s changes nothing", phases[phase])
		}
		for i, c := range sameChurn {
			want := c.in(phase) != nil
			if got := strings.Contains(text, "metadata: {name: "+c.name+", "); got != want {
				t.Errorf("%s: %s (%s): %t, want %t", phases[phase], c.name, c.as, got, want)
			}
			if name := serviceOf(fmt.Sprintf("load balancer 10.96.0.%d port 80/6", len(sameServices)+i+10)); name != c.name {
				t.Errorf("%s is known as %s", c.name, name)
			}
		}
	}
}

func (s sameService) write(b *strings.Builder, n int) {
	port := "name: http, port: 80, targetPort: " + cmp.Or(s.target, "8080") + ", protocol: " + cmp.Or(s.protocol, "TCP")
	if s.nodePort {
		port += fmt.Sprintf(", nodePort: 300%d", n)
	}
	spec := ""
	if s.spec != "" {
		spec = ", " + strings.ReplaceAll(s.spec, "<n>", fmt.Sprint(n))
	}
	if !strings.Contains(spec, "internalTrafficPolicy") { // what the API server fills in
		spec += ", internalTrafficPolicy: Cluster"
	}
	if strings.Contains(spec, "ClientIP") {
		spec += ", sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}"
	}
	status := ""
	if strings.Contains(s.spec, "type: LoadBalancer") {
		status = fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: 203.0.113.%d}, {ip: 'fd00:203::%d'}]}}\n", n, n)
	}
	fmt.Fprintf(b, `---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: {%s}}
spec: {clusterIP: 10.96.0.%d, clusterIPs: [10.96.0.%d, 'fd00:10:96::%d'], ipFamilies: [IPv4, IPv6], ipFamilyPolicy: PreferDualStack, ports: [{%s}]%s}
%s`, s.name, s.annotations, n, n, n, port, spec, status)
	s.writeSlices(b, "a", cmp.Or(s.number, "8080"), s.slice)
	if number, endpoints, ok := strings.Cut(s.ports, " "); ok {
		s.writeSlices(b, "b", number, endpoints)
	}
}

func (s sameService) writeSlices(b *strings.Builder, suffix, port, endpoints string) {
	for _, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%s-%s, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: http, port: %s, protocol: %s}]
endpoints: [%s]
`, s.name, suffix, strings.ToLower(family), s.name, family, port, cmp.Or(s.protocol, "TCP"), endpointsText(endpoints, family == "IPv6"))
	}
}

// endpointsText writes endpoints: "1.2" is pod 2 of node 1, "node2" the node
// itself, "public" a machine outside; after a colon are its condition or zone.
func endpointsText(words string, v6 bool) string {
	var all []string
	for _, word := range strings.Fields(words) {
		who, state, _ := strings.Cut(word, ":")
		var four, six, node string
		if pod, ok := strings.CutPrefix(who, "node"); ok {
			four, six, node = "192.0.2."+pod, "'fd00:192::"+pod+"'", pod
		} else if who == "public" {
			four, six, node = "203.0.113.200", "'fd00:203::200'", "2"
		} else {
			on, pod, _ := strings.Cut(who, ".")
			four, six, node = "10.244."+who, "'fd00:10:244:"+on+"::"+pod+"'", on
		}
		address := four
		if v6 {
			address = six
		}
		conditions, more := "ready: true, serving: true, terminating: false", ""
		switch {
		case state == "unready":
			conditions = "ready: false, serving: false, terminating: false"
		case state == "terminating":
			conditions = "ready: false, serving: true, terminating: true"
		case state != "":
			more = ", zone: " + state + ", hints: {forZones: [{name: " + state + "}]}"
		}
		all = append(all, fmt.Sprintf("{addresses: [%s], nodeName: node-%s, conditions: {%s}%s}", address, node, conditions, more))
	}
	return strings.Join(all, ", ")
}

// serviceOf returns the name of the Service whose address is in an object's name,
// by its number.
func serviceOf(object string) string {
	m := numbered.FindStringSubmatch(object)
	if m == nil {
		return "no Service"
	}
	n, _ := strconv.Atoi(m[1]) // two digits
	switch n -= 10; {
	case n < 0, n >= len(sameServices)+len(sameChurn):
		return "no Service"
	case n >= len(sameServices):
		return sameChurn[n-len(sameServices)].name
	}
	return sameServices[n].name
}

var numbered = regexp.MustCompile(`(?:10\.96\.0\.|fd00:10:96::|203\.0\.113\.|fd00:203::|198\.51\.100\.|fd00:198::|port 300)(\d\d)\b`)

// facts of an object: property to value.
type facts map[string]string

// String lists them, but for those that are empty; of no object, "none".
func (f facts) String() string {
	if f == nil {
		return "none"
	}
	var all []string
	for _, property := range slices.Sorted(maps.Keys(f)) {
		if f[property] != "" {
			all = append(all, property+" "+f[property])
		}
	}
	return strings.Join(all, "; ")
}

// inventory is what an HNS holds besides what was planted: names of objects to
// their facts. Ids and endpoints' names, which no packet depends on, are left out.
func inventory(emu *hnsemu.Emulator, planted []string) map[string]facts {
	all := map[string]facts{}
	endpoints := map[string]string{}
	for _, e := range emu.Endpoints() {
		name := nameOf(e)
		endpoints[e.ID] = name
		if !slices.Contains(planted, e.ID) {
			all[name] = facts{"MAC": strings.ToLower(strings.ReplaceAll(e.MacAddress, ":", "-")), "behind": behind(e)}
		}
	}
	for _, lb := range emu.Balancers() {
		vip := fmt.Sprintf("node ports of IPv%d", 4+lb.Flags&hns.FlagIPv6)
		if len(lb.FrontendVIPs) > 0 {
			vip = strings.Join(lb.FrontendVIPs, ",")
		}
		var to []string
		for _, id := range lb.HostComputeEndpoints {
			to = append(to, cmp.Or(endpoints[strings.ToLower(id)], "nothing"))
		}
		slices.Sort(to)
		for _, m := range lb.PortMappings {
			all[fmt.Sprintf("load balancer %s port %d/%d", vip, m.ExternalPort, m.Protocol)] = facts{
				"source VIP": lb.SourceVIP, "flags": fmt.Sprint(lb.Flags), "endpoints": strings.Join(to, ", "),
				"port": fmt.Sprint(m.InternalPort), "mapping flags": fmt.Sprint(m.Flags), "distribution": fmt.Sprint(m.DistributionType),
				"mappings": fmt.Sprint(len(lb.PortMappings)),
			}
		}
	}
	return all
}

func nameOf(e hns.Endpoint) string {
	name := "local endpoint"
	if e.Flags&hns.FlagRemote != 0 {
		name = "remote endpoint"
	}
	for _, c := range e.IpConfigurations {
		name += " " + c.IpAddress
	}
	return name
}

// unused names the remote endpoints that no load balancer needs, as inventory does. Tandem
// deletes them after a minute.
func unused(emu *hnsemu.Emulator, planted []string) map[string]bool {
	needed, all := map[string]bool{}, map[string]bool{}
	for _, lb := range emu.Balancers() {
		for _, vip := range lb.FrontendVIPs {
			needed[vip] = true
		}
		for _, id := range lb.HostComputeEndpoints {
			needed[strings.ToLower(id)] = true
		}
	}
	for _, e := range emu.Endpoints() {
		used := slices.Contains(planted, e.ID) || e.Flags&hns.FlagRemote == 0 || needed[strings.ToLower(e.ID)] ||
			slices.ContainsFunc(e.IpConfigurations, func(c hns.IpConfig) bool { return needed[c.IpAddress] })
		if !used {
			all[nameOf(e)] = true
		}
	}
	return all
}

func behind(e hns.Endpoint) string {
	for _, p := range e.Policies {
		var s hns.Provider
		if p.Type == hns.PolicyProvider && json.Unmarshal(p.Settings, &s) == nil {
			return s.ProviderAddress
		}
	}
	return ""
}
