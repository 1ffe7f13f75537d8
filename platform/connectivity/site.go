// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/tandem-proxy/tandem/core/model"
)

// Options select what is tested.
type Options struct {
	Families []model.Family // IPv4 before IPv6

	// For a proxy of the test's own:
	Program string // the file of tandem
	Mode    string
	Args    []string // of tandem run, besides

	// Folder is that of the manifests that the tandem of this node follows; empty for
	// a proxy of the test's own, in network namespaces of its own.
	Folder string
	// Pods are ranges, by model.Family, that the tandem of this node takes for those of its
	// pods, and that nothing uses: with Folder. Without one pods are not distinguished from other machines.
	Pods [2]netip.Prefix
}

// Namespace is that of the made Services.
const Namespace = "tandem-test"

// Site is what a test makes: Services, their endpoints and clients. All addresses but
// the node's are of its ranges.
type Site struct {
	NodeName string
	Families []model.Family
	Node     []netip.Addr // main ones first; of each family at least one

	// Ranges has a /22 of IPv4 and a /64 of IPv6, by model.Family. Pods are in them where
	// PodRanges has no range of the family.
	Ranges, PodRanges [2]netip.Prefix
	// FirstPort is the first of nodePorts that the Services have.
	FirstPort uint16
}

// nodePorts is how many node ports a Site takes.
const nodePorts = 32

// The blocks of a range, 256 addresses each.
const (
	blockPods    = iota // of this node
	blockOthers         // pods of another node
	blockVirtual        // of Services
	blockOutside
)

// Numbers of machines in their blocks.
const (
	endpointHere, clientPod   = 2, 10
	endpointElsewhere         = 2
	outsideOne, outsideBeside = 1, 2
	firstExternal, firstLB    = 64, 128
)

// address is number n of a block.
func (s *Site) address(f model.Family, block, n byte) netip.Addr {
	if pods := s.PodRanges[f]; block == blockPods && pods.IsValid() {
		a := pods.Masked().Addr()
		for range n {
			a = a.Next()
		}
		return a
	}
	base := s.Ranges[f].Masked().Addr()
	if f == model.IPv4 {
		b := base.As4()
		b[2] += block
		b[3] = n
		return netip.AddrFrom4(b)
	}
	b := base.As16()
	b[13], b[15] = block, n
	return netip.AddrFrom16(b)
}

// ShortestPods is the length that a range of pods has at most: it has room for clientPod.
func ShortestPods(f model.Family) int { return f.Bits() - 4 }

// pods is the range of this node's pods in a family.
func (s *Site) pods(f model.Family) netip.Prefix {
	return netip.PrefixFrom(s.address(f, blockPods, 0), map[model.Family]int{model.IPv4: 24, model.IPv6: 112}[f])
}

// node is the node's main address of a family.
func (s *Site) node(f model.Family) netip.Addr {
	for _, a := range s.Node {
		if model.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// service is a made Service, with a frontend of every kind.
type service struct {
	name            string
	policy          string // for people
	number          byte
	here, elsewhere bool // where it has an endpoint
	externalLocal   bool
	internalLocal   bool
	affinity        bool
	ranges          bool // loadBalancerSourceRanges: outsideOne alone
}

// services are all there are.
func services() []service {
	all := []service{
		{name: "cluster", policy: "Cluster", here: true, elsewhere: true},
		{name: "external-local", policy: "externalTrafficPolicy Local", here: true, elsewhere: true, externalLocal: true},
		{name: "internal-local", policy: "internalTrafficPolicy Local", here: true, elsewhere: true, internalLocal: true},
		{name: "affinity", policy: "sessionAffinity ClientIP", here: true, elsewhere: true, affinity: true},
		{name: "source-ranges", policy: "loadBalancerSourceRanges", here: true, elsewhere: true, ranges: true},
		{name: "no-endpoints", policy: "no endpoints"},
		{name: "external-local-elsewhere", policy: "externalTrafficPolicy Local, no local endpoint", elsewhere: true, externalLocal: true},
		{name: "internal-local-elsewhere", policy: "internalTrafficPolicy Local, no local endpoint", elsewhere: true, internalLocal: true},
	}
	for i := range all {
		all[i].number = byte(i)
	}
	return all
}

// What the Services have: one port for each protocol.
const (
	servicePort, targetPort = 80, 8080
)

func (s *Site) nodePort(v service) uint16   { return s.FirstPort + uint16(v.number) }
func (s *Site) healthPort(v service) uint16 { return s.FirstPort + nodePorts/2 + uint16(v.number) }

// frontend is an address of a Service.
type frontend struct {
	kind model.Kind
	at   netip.AddrPort
}

// frontends are all addresses of a Service in a family.
func (s *Site) frontends(v service, f model.Family) []frontend {
	virtual := func(first byte) netip.AddrPort {
		return netip.AddrPortFrom(s.address(f, blockVirtual, first+v.number), servicePort)
	}
	return []frontend{
		{model.KindClusterIP, virtual(1)},
		{model.KindExternalIP, virtual(firstExternal)},
		{model.KindLoadBalancer, virtual(firstLB)},
		{model.KindNodePort, netip.AddrPortFrom(s.node(f), s.nodePort(v))},
	}
}

// endpoints are the addresses of a Service's endpoints in a family.
func (s *Site) endpoints(v service, f model.Family) (all []netip.Addr) {
	if v.here {
		all = append(all, s.address(f, blockPods, endpointHere))
	}
	if v.elsewhere {
		all = append(all, s.address(f, blockOthers, endpointElsewhere))
	}
	return all
}

// object is a Kubernetes object as JSON has it.
type object = map[string]any

// Manifests is a List of the Services, their EndpointSlices and, with node, the Node.
func (s *Site) Manifests(node bool) ([]byte, error) {
	var items []object
	if node {
		items = append(items, s.nodeObject())
	}
	for _, v := range services() {
		items = append(items, s.serviceObject(v))
		for _, f := range s.Families {
			items = append(items, s.sliceObject(v, f))
		}
	}
	return json.MarshalIndent(object{"apiVersion": "v1", "kind": "List", "items": items}, "", " ")
}

func (s *Site) nodeObject() object {
	var addresses []object
	for _, a := range s.Node {
		addresses = append(addresses, object{"type": "InternalIP", "address": a})
	}
	return object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": s.NodeName}, "status": object{"addresses": addresses}}
}

func (s *Site) serviceObject(v service) object {
	spec := object{
		"type": "LoadBalancer", "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
		"externalTrafficPolicy": policy(v.externalLocal), "internalTrafficPolicy": policy(v.internalLocal),
		"ports": []object{
			{"name": "tcp", "protocol": "TCP", "port": servicePort, "targetPort": targetPort, "nodePort": s.nodePort(v)},
			{"name": "udp", "protocol": "UDP", "port": servicePort, "targetPort": targetPort, "nodePort": s.nodePort(v)},
		},
	}
	var families, clusterIPs, external, allowed []any
	var ingress []object
	for _, f := range s.Families {
		families = append(families, f.String())
		for _, x := range s.frontends(v, f) {
			switch x.kind {
			case model.KindClusterIP:
				clusterIPs = append(clusterIPs, x.at.Addr())
			case model.KindExternalIP:
				external = append(external, x.at.Addr())
			case model.KindLoadBalancer:
				ingress = append(ingress, object{"ip": x.at.Addr()})
			}
		}
		one := s.address(f, blockOutside, outsideOne)
		allowed = append(allowed, netip.PrefixFrom(one, one.BitLen()))
	}
	spec["ipFamilies"], spec["clusterIP"], spec["clusterIPs"], spec["externalIPs"] = families, clusterIPs[0], clusterIPs, external
	if len(s.Families) > 1 {
		spec["ipFamilyPolicy"] = "RequireDualStack"
	}
	if v.affinity {
		spec["sessionAffinity"] = "ClientIP"
	}
	if v.ranges {
		spec["loadBalancerSourceRanges"] = allowed
	}
	if v.externalLocal {
		spec["healthCheckNodePort"] = s.healthPort(v)
	}
	return object{
		"apiVersion": "v1", "kind": "Service", "metadata": object{"name": v.name, "namespace": Namespace},
		"spec": spec, "status": object{"loadBalancer": object{"ingress": ingress}},
	}
}

func policy(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func (s *Site) sliceObject(v service, f model.Family) object {
	endpoints := []object{}
	for _, a := range s.endpoints(v, f) {
		node := s.NodeName
		if a == s.address(f, blockOthers, endpointElsewhere) {
			node = Namespace + "-elsewhere"
		}
		endpoints = append(endpoints, object{"addresses": []netip.Addr{a}, "nodeName": node, "conditions": object{"ready": true}})
	}
	return object{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
		"metadata": object{
			"name": fmt.Sprintf("%s-%d", v.name, f), "namespace": Namespace, "labels": object{"kubernetes.io/service-name": v.name},
		},
		"addressType": f.String(),
		"ports":       []object{{"name": "tcp", "protocol": "TCP", "port": targetPort}, {"name": "udp", "protocol": "UDP", "port": targetPort}},
		"endpoints":   endpoints,
	}
}
