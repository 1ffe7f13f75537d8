// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// typePrivate is a network without an adapter and without the node.
const typePrivate = "Private"

// unknownID is an id that no object has, given one that experiments request for an object.
const (
	unknownID = "7a6e6d65-7465-7374-0000-000000000000"
	given     = "7a6e6d65-7465-7374-0000-000000000001"
)

// always is an answer that does not depend on the machine.
func always(answer string) func(About) string { return func(About) string { return answer } }

// modifies is an answer of versions with Features.Modify; other versions are not asked.
func modifies(answer string) func(About) string {
	return func(a About) string {
		if a.HNS.Features().Modify {
			return answer
		}
		return ""
	}
}

// All returns the experiments in the order of a run: those that may leave HNS in
// disorder come last.
func All() []Experiment {
	return slices.Concat(versions(), reading(), networks(), endpoints(), balancers(), changes(), packets(), deletions(), restarts())
}

func versions() []Experiment {
	of := func(rule string, known map[int]func(hns.Version) string, source string) Experiment {
		return Experiment{
			ID: rule + "/build", Asks: "which version of HNS this build of Windows has", Source: source,
			expect: func(a About) string {
				if of := known[a.Build]; of != nil {
					return of(a.HNS)
				}
				return ""
			},
			run: func(l *lab) string { return l.about.HNS.String() },
		}
	}
	is := func(v string) func(hns.Version) string { return func(hns.Version) string { return v } }
	return []Experiment{
		of("versions", map[int]func(hns.Version) string{17763: is("9.5"), 26100: func(v hns.Version) string {
			if v == (hns.Version{Major: 15, Minor: 4}) { // before an update
				return "15.4"
			}
			return "15.5"
		}}, "kubernetes#137530, #131466, #131506"),
		of("version-2004", map[int]func(hns.Version) string{19041: is("11.10")}, "hcsshim#1003"),
		of("version-2022", map[int]func(hns.Version) string{20348: is("13.2")}, Assumed),
	}
}

func reading() []Experiment {
	gone := func(what string, k dll.Kind, v dll.Verb, code, source string) Experiment {
		return Experiment{
			ID: "not-found/" + what, Asks: what + " that does not exist", Source: source, expect: always(code),
			run: func(l *lab) string { return text(hns.CodeOf(l.call(dll.Request{Kind: k, Verb: v, ID: unknownID}))) },
		}
	}
	return []Experiment{
		gone("open-network", dll.Network, dll.Open, "0x803b0001", "MrUndead1996/vm-lord, crates/platform/src/hcn.rs; WSL#11811"),
		gone("open-endpoint", dll.Endpoint, dll.Open, "0x490", "antrea#2301"),
		gone("open-balancer", dll.LoadBalancer, dll.Open, "0x490", "antrea#2301"),
		gone("delete-network", dll.Network, dll.Delete, "0x490", "MrUndead1996/vm-lord, crates/platform/src/hcn.rs"),
		gone("delete-endpoint", dll.Endpoint, dll.Delete, "0x803b0002", "azure-container-networking#715"),
		gone("delete-balancer", dll.LoadBalancer, dll.Delete, "0x490", "kubernetes#139519"),
		{
			ID: "win32-codes/absent", Asks: "the HRESULT of opening an object that does not exist", Source: "hcsshim, internal/hcs errors", expect: always("HRESULT 0x80070490"),
			run: func(l *lab) string {
				return fmt.Sprintf("HRESULT 0x%x", l.call(dll.Request{Kind: dll.LoadBalancer, Verb: dll.Open, ID: unknownID}).Result)
			},
		},
		{
			ID: "error-records/absent", Asks: "the error record of opening an object that does not exist", Source: "kubernetes#100384, hcsshim#1043",
			expect: always("Error, ErrorCode, Success: the HRESULT"),
			run: func(l *lab) string {
				out := l.call(dll.Request{Kind: dll.LoadBalancer, Verb: dll.Open, ID: unknownID})
				var record map[string]any
				if json.Unmarshal([]byte(out.Record), &record) != nil {
					return "no record"
				}
				is := "another code"
				if record["ErrorCode"] == float64(out.Result) {
					is = "the HRESULT"
				}
				return fields(record) + ": " + is
			},
		},
		{
			ID: "v1-api/endpoint", Asks: "an endpoint of the new API by the old one", Source: "hcsshim, hcn v1 tests", expect: always("Output, Success"),
			run: func(l *lab) string {
				id := l.pods(1)[0]
				var record map[string]any
				if json.Unmarshal([]byte(l.call(dll.Request{Verb: dll.Rest, Text: "GET /endpoints/" + id + "\n"}).Text), &record) != nil {
					return "no answer"
				}
				return fields(record)
			},
		},
	}
}

// fields lists the names in a JSON object, at most 32.
func fields(o map[string]any) string {
	names := slices.Sorted(maps.Keys(o))
	return strings.Join(names[:min(len(names), 32)], ", ")
}

func networks() []Experiment {
	return []Experiment{
		{
			ID: "networks/with-endpoints", Asks: "delete a network that has an endpoint; open the endpoint", Source: "microsoft/WSL, WslCoreNetworkEndpointSettings.h", expect: always("ok; 0x490"),
			run: func(l *lab) string {
				n := l.need(dll.Network, "", l.networkSettings(secondName, typePrivate)).id()
				p := l.need(dll.Endpoint, n, object{"Name": ownName, "SchemaVersion": schema}).id()
				deleted := l.remove(dll.Network, n)
				_, opened := l.read(dll.Endpoint, p)
				return text(deleted) + "; " + text(opened)
			},
		},
		{
			ID: "networks/same-name", Asks: "a second network of one name", Source: "MicrosoftDocs, HCNHResult; microsoft/WSL, NatNetworking.cpp", expect: always("0x803b0010"),
			run: func(l *lab) string {
				l.need(dll.Network, "", l.networkSettings(secondName, typePrivate))
				_, code := l.create(dll.Network, "", l.networkSettings(secondName, typePrivate))
				return text(code)
			},
		},
		{
			ID: "bad-json/network", Asks: "a network with settings that are not valid JSON", Source: "MicrosoftDocs, HCNHResult", expect: always("0x803b001b"),
			run: func(l *lab) string { _, code := l.create(dll.Network, "", "{"); return text(code) },
		},
	}
}

func endpoints() []Experiment {
	one := func(id, asks, source, answer string, settings func(*lab) object) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, expect: always(answer), run: func(l *lab) string {
			_, code := l.create(dll.Endpoint, l.network, settings(l))
			return text(code)
		}}
	}
	filtered := func(what string, filter func(network, id string) map[string]string, answer string) Experiment {
		return Experiment{
			ID: "filters/" + what, Asks: "two endpoints, listed by " + what, Source: "hcsshim, hcn (filters)", expect: always(answer),
			run: func(l *lab) string {
				ids := l.pods(1)
				ids = append(ids, l.need(dll.Endpoint, l.network, endpoint(l.pod(20)).with("Name", secondName)).id())
				listed, code := l.list(dll.Endpoint, filter(l.network, ids[0]))
				own := 0
				for _, id := range listed {
					if slices.ContainsFunc(ids, func(o string) bool { return strings.EqualFold(o, id) }) {
						own++
					}
				}
				if code == 0 && own < len(listed) {
					return fmt.Sprintf("%d of 2, and others", own)
				}
				return fmt.Sprintf("%s: %d of 2", text(code), own)
			},
		}
	}
	acl := []object{{"Type": "ACL", "Settings": object{
		"Protocols": "6", "Action": "Allow", "Direction": "In", "LocalAddresses": ownPods, "RemoteAddresses": ownPods,
		"LocalPorts": "7", "RemotePorts": "9", "RuleType": "Switch", "Priority": 200,
	}}}
	policies := func(l *lab, request, id string) string {
		code := l.modify(dll.Endpoint, id, object{"ResourceType": "Policy", "RequestType": request, "Settings": object{"Policies": acl}})
		got, _ := l.read(dll.Endpoint, id)
		have, _ := got["Policies"].([]any)
		n := 0
		for _, p := range have {
			if p, ok := p.(map[string]any); ok && p["Type"] == "ACL" {
				n++
			}
		}
		return fmt.Sprintf("%s: %d", text(code), n)
	}
	published := object{"Type": "PortMapping", "Settings": object{"Protocol": 6, "InternalPort": 7, "ExternalPort": 9}}
	return []Experiment{
		one("bad-json/endpoint", "an endpoint of an address that is a number", Assumed, "0x803b001b", func(*lab) object {
			return object{"SchemaVersion": schema, "IpConfigurations": 7}
		}),
		one("bad-address/text", "an endpoint with an invalid address", "MicrosoftDocs, HCNHResult", "0x803b001e", func(*lab) object { return endpoint("nowhere") }),
		one("bad-address/outside", "a local endpoint of an address outside of the network", "MicrosoftDocs, HCNHResult", "0x803b001e", func(l *lab) object { return endpoint(l.vip(9)) }),
		one("bad-address/remote-outside", "a remote endpoint of an address outside of the network", "kubernetes, winkernel makes those of cluster IPs", "ok", func(l *lab) object { return l.remote(l.vip(9)) }),
		one("bad-address/gateway", "an endpoint of the gateway's address", "microsoft/SDN, Kubernetes/windows: Get-PodGateway; HCNHResult", "0x803b002f", func(*lab) object { return endpoint(ofNetwork(1)) }),
		one("twins/remote", "a second remote endpoint of one address", Assumed, "0x803b0013", func(l *lab) object {
			l.need(dll.Endpoint, l.network, l.remote(l.pod(10)))
			return l.remote(l.pod(10))
		}),
		one("twins/local", "a second local endpoint of one address", Assumed, "0x803b0013", func(l *lab) object {
			l.pods(1)
			return endpoint(l.pod(10))
		}),
		one("beside-a-pod/remote", "a remote endpoint of the address of a local one", "kubernetes#130963", "ok", func(l *lab) object {
			l.pods(1)
			return l.remote(l.pod(10))
		}),
		one("published-port/second", "a second endpoint for a published port", "hcsshim, hcn tests", "0x803b0013", func(l *lab) object {
			l.need(dll.Endpoint, l.network, endpoint(l.pod(10)).with("Policies", []object{published}))
			return endpoint(l.pod(11)).with("Policies", []object{published})
		}),
		one("given-id/endpoint-in-use", "an endpoint of an id that another one has", Assumed, "0xb7", func(l *lab) object {
			return endpoint(l.pod(11)).with("ID", l.pods(1)[0])
		}),
		{
			ID: "given-id/endpoint", Asks: "an endpoint with a given ID", Source: "hcsshim, hcn tests", expect: always("kept"),
			run: func(l *lab) string {
				want := endpoint(l.pod(10)).with("ID", given)
				return kept(want, l.need(dll.Endpoint, l.network, want))
			},
		},
		{
			ID: "allotted/first", Asks: "an endpoint without an address, beside one that has the first", Source: Assumed, expect: always("the lowest free"),
			run: func(l *lab) string {
				l.need(dll.Endpoint, l.network, endpoint(ofNetwork(2)))
				got := l.need(dll.Endpoint, l.network, object{"Name": ownName, "SchemaVersion": schema})
				switch addr := firstAddress(got); {
				case addr == ofNetwork(3):
					return "the lowest free"
				case strings.HasPrefix(addr, "198.18."):
					return "another one of the network"
				case addr == "":
					return "none"
				}
				return "one outside of the network"
			},
		},
		filtered("id", func(_, id string) map[string]string { return map[string]string{"ID": id} }, "ok: 1 of 2"),
		filtered("name", func(string, string) map[string]string { return map[string]string{"Name": secondName} }, "ok: 1 of 2"),
		filtered("network", func(network, _ string) map[string]string { return map[string]string{"VirtualNetwork": network} }, "ok: 2 of 2"),
		filtered("no name", func(string, string) map[string]string { return map[string]string{"Name": ""} }, "ok: 0 of 2"),
		{
			ID: "extra-settings/endpoint", Asks: "an endpoint with DNS settings", Source: "hcsshim, hcn tests", expect: always("kept"),
			run: func(l *lab) string {
				want := endpoint(l.pod(10)).with("Dns", object{"Domain": "tandem.invalid", "ServerList": []string{l.pod(53)}})
				return kept(want, l.need(dll.Endpoint, l.network, want))
			},
		},
		{
			ID: "policies/endpoint", Asks: "add an ACL to an endpoint, and remove it", Source: "hcsshim, hcn tests", expect: always("ok: 1; ok: 0"),
			run: func(l *lab) string {
				id := l.pods(1)[0]
				return policies(l, "Add", id) + "; " + policies(l, "Remove", id)
			},
		},
	}
}

// firstAddress is the first address of an endpoint.
func firstAddress(o object) string {
	all, _ := o["IpConfigurations"].([]any)
	if len(all) == 0 {
		return ""
	}
	first, _ := all[0].(map[string]any)
	addr, _ := first["IpAddress"].(string)
	return addr
}

func balancers() []Experiment {
	one := func(id, asks, source, answer string, settings func(l *lab, pods []string) any) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, expect: always(answer), run: func(l *lab) string {
			_, code := l.create(dll.LoadBalancer, "", settings(l, l.pods(2)))
			return text(code)
		}}
	}
	echo := func(id, asks, source string, settings func(l *lab, pods []string) object) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, expect: always("kept"), run: func(l *lab) string {
			want := settings(l, l.pods(1))
			return kept(want, l.need(dll.LoadBalancer, "", want))
		}}
	}
	flags := func(id, asks string, flags int, describe func(l *lab, pods []string) object) Experiment {
		return Experiment{ID: id, Asks: asks, Source: "calico#7305", expect: always(fmt.Sprint(flags)), run: func(l *lab) string {
			got := l.need(dll.LoadBalancer, "", describe(l, l.pods(1)).with("PortMappings", l.flagged(flags)))
			return number(portMapping(got)["Flags"])
		}}
	}
	held := func(what, asks, source string, flags int, expect func(About) string) Experiment {
		return Experiment{ID: "held-port/" + what, Asks: asks, Source: source, Needs: NeedsListener, expect: expect, run: func(l *lab) string {
			listener, err := l.options.Listen(l.port())
			if err != nil {
				l.fail("a process has the port of the experiment")
				return ""
			}
			defer listener.Close()
			_, code := l.create(dll.LoadBalancer, "", l.balancer(l.vip(10), l.pods(1)...).with("Flags", flags))
			return text(code)
		}}
	}
	onNode := func(l *lab, pods []string) object { return l.balancer("", pods[0]).with("FrontendVIPs", []string{}) }
	onVIP := func(l *lab, pods []string) object { return l.balancer(l.vip(10), pods[0]) }
	return []Experiment{
		one("bad-json/balancer", "a load balancer with settings that are not valid JSON", "MicrosoftDocs, HCNHResult", "0x803b001b", func(*lab, []string) any { return "{" }),
		one("needs-endpoints/none", "a load balancer without endpoints", "kubernetes#100384, calico#5762", "0x803b001c", func(l *lab, _ []string) any { return l.balancer(l.vip(10)) }),
		one("needs-mapping/none", "a load balancer without port mappings", Assumed, "0x803b000d", func(l *lab, pods []string) any {
			return l.balancer(l.vip(10), pods[0]).with("PortMappings", []object{})
		}),
		one("endpoints-exist/absent", "a load balancer over an endpoint that does not exist", Assumed, "0x803b0002", func(l *lab, _ []string) any { return l.balancer(l.vip(10), unknownID) }),
		one("endpoints-exist/one-absent", "a load balancer over two endpoints, one of which does not exist", Assumed, "0x803b0002", func(l *lab, pods []string) any {
			return l.balancer(l.vip(10), pods[0], unknownID)
		}),
		one("id-case/reference", "a load balancer over an endpoint by its id in capitals", "hcsshim, hcn tests", "ok", func(l *lab, pods []string) any {
			return l.balancer(l.vip(10), strings.ToUpper(pods[0]))
		}),
		one("one-frontend/same", "a second load balancer of one frontend", "kubernetes#139519", "0x803b0013", func(l *lab, pods []string) any {
			l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0]))
			return l.balancer(l.vip(10), pods[1])
		}),
		one("one-frontend/node-port", "a second load balancer of one node port", "kubernetes#139519", "0x803b0013", func(l *lab, pods []string) any {
			l.need(dll.LoadBalancer, "", onNode(l, pods))
			return onNode(l, pods)
		}),
		one("one-frontend/one-of-two", "a load balancer of two VIPs, one of which belongs to another load balancer", Assumed, "0x803b0013", func(l *lab, pods []string) any {
			l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0]))
			return l.balancer(l.vip(10), pods[1]).with("FrontendVIPs", []string{l.vip(11), l.vip(10)})
		}),
		one("one-frontend/other-protocol", "load balancers of one VIP and port for TCP and for UDP", "kubernetes.io: a Service may have both", "ok", func(l *lab, pods []string) any {
			l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0]))
			return l.balancer(l.vip(10), pods[1]).with("PortMappings", []object{l.mapping().with("Protocol", 17)})
		}),
		held("listener", "a load balancer of a VIP's port at which a process listens on all addresses", "kubernetes/community#8883 (Server 2019)", 0, func(a About) string {
			if a.HNS.Major <= 9 { // Server 2019
				return "0x803b0013"
			}
			return "ok"
		}),
		held("dsr", "the same with DSR", Assumed, hns.FlagDSR, always("ok")),
		one("given-id/balancer-in-use", "a load balancer of an id that another one has", Assumed, "0xb7", func(l *lab, pods []string) any {
			id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0])).id()
			return l.balancer(l.vip(11), pods[0]).with("ID", id)
		}),
		echo("given-id/balancer", "a load balancer with a given ID", "hcsshim, hcn tests", func(l *lab, pods []string) object { return onVIP(l, pods).with("ID", given) }),
		flags("drops-external/node-port", "the flags of a node port's mapping (LocalRoutedVIP, VipExternalIP)", hns.FlagLocalRoutedVIP|hns.FlagVIPExternalIP, onNode),
		flags("drops-external/vip", "the flags of an external VIP's mapping (VipExternalIP)", hns.FlagVIPExternalIP, onVIP),
		echo("normalises/plain", "a load balancer without flags", Assumed, onVIP),
		echo("normalises/dsr", "a load balancer with DSR and a source VIP", Assumed, func(l *lab, pods []string) object {
			return onVIP(l, pods).with("Flags", hns.FlagDSR).with("SourceVIP", l.pod(10))
		}),
		echo("normalises/affinity", "a load balancer with session affinity", Assumed, func(l *lab, pods []string) object {
			return onVIP(l, pods).with("PortMappings", []object{l.mapping().with("DistributionType", hns.DistributeBySource)})
		}),
		{
			ID: "normalises/source", Asks: "the source VIP of a load balancer that was given none", Source: Assumed, expect: always("none"),
			run: func(l *lab) string {
				if s, _ := l.need(dll.LoadBalancer, "", onVIP(l, l.pods(1)))["SourceVIP"].(string); s != "" {
					return "one of its own"
				}
				return "none"
			},
		},
		{
			ID: "extra-settings/balancer-name", Asks: "a load balancer with a Name and an Owner, by which it could be recognised", Source: Assumed,
			expect: always("Name absent, Owner absent"),
			run: func(l *lab) string {
				want := onVIP(l, l.pods(1)).with("Name", ownName).with("Owner", ownName)
				return kept(want, l.need(dll.LoadBalancer, "", want))
			},
		},
		{
			ID: "extra-settings/balancer-order", Asks: "the order of a load balancer's three endpoints, which is not that of their creation", Source: Assumed, expect: always("kept"),
			run: func(l *lab) string {
				pods := l.pods(3)
				want := l.balancer(l.vip(10), pods[2], pods[0], pods[1])
				return kept(want, l.need(dll.LoadBalancer, "", want))
			},
		},
		{
			ID: "degraded/fresh", Asks: "the State of an endpoint and a load balancer that are new", Source: Assumed, expect: always("0; 0"),
			run: func(l *lab) string {
				p := l.need(dll.Endpoint, l.network, endpoint(l.pod(10)))
				lb := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), p.id()))
				return number(p["State"]) + "; " + number(lb["State"])
			},
		},
		{
			ID: "no-limits/endpoints", Asks: "a load balancer over 65 endpoints", Source: "kubernetes.io: 64 once, now 1024", expect: always("ok: 65"),
			run: func(l *lab) string {
				got, code := l.create(dll.LoadBalancer, "", l.balancer(l.vip(10), l.pods(65)...))
				return fmt.Sprintf("%s: %d", text(code), endpointsOf(got))
			},
		},
	}
}

// portMapping returns the first port mapping of a load balancer; nil for none.
func portMapping(lb object) map[string]any {
	all, _ := lb["PortMappings"].([]any)
	if len(all) == 0 {
		return nil
	}
	m, _ := all[0].(map[string]any)
	return m
}

func endpointsOf(lb object) int {
	all, _ := lb["HostComputeEndpoints"].([]any)
	return len(all)
}

func changes() []Experiment {
	return []Experiment{
		{
			ID: "modify/endpoints", Asks: "Modify a load balancer of one endpoint to two", Source: "kubernetes#131466",
			expect: func(a About) string {
				switch {
				case a.HNS.Features().Modify:
					return "ok: 2"
				case a.HNS == hns.Version{Major: 15, Minor: 4}:
					return "ok: 1"
				}
				return "0x80004001: 1"
			},
			run: func(l *lab) string {
				pods := l.pods(2)
				id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0])).id()
				code := l.modify(dll.LoadBalancer, id, l.balancer(l.vip(10), pods...))
				got, _ := l.read(dll.LoadBalancer, id)
				return fmt.Sprintf("%s: %d", text(code), endpointsOf(got))
			},
		},
		{
			ID: "modify/keeps", Asks: "what Modify of the endpoints leaves of the flags and the source VIP", Source: Assumed, expect: modifies("kept"),
			run: func(l *lab) string {
				pods := l.pods(2)
				want := l.balancer(l.vip(10), pods[0]).with("Flags", hns.FlagDSR).with("SourceVIP", l.pod(10)).with("PortMappings", l.flagged(hns.FlagVIPExternalIP))
				id := l.need(dll.LoadBalancer, "", want).id()
				want = want.with("HostComputeEndpoints", pods[1:])
				if code := l.modify(dll.LoadBalancer, id, want); code != 0 {
					return text(code)
				}
				got, _ := l.read(dll.LoadBalancer, id)
				return kept(want, got)
			},
		},
		{
			ID: "modify-frontends/vip", Asks: "Modify a load balancer to another VIP", Source: Assumed, expect: modifies("0x803b000d"),
			run: func(l *lab) string {
				pods := l.pods(1)
				id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0])).id()
				return text(l.modify(dll.LoadBalancer, id, l.balancer(l.vip(11), pods[0])))
			},
		},
	}
}

// packets ask what the virtual switch does with packets, where endpoints answer and a client sends.
func packets() []Experiment {
	one := func(id, asks, source string, from Origin, to func(*lab) string, answer string, settings func(l *lab, pods []string) object) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, Needs: NeedsSwitch, expect: always(answer), run: func(l *lab) string {
			l.need(dll.LoadBalancer, "", settings(l, l.pods(1)))
			if l.failed != "" {
				return ""
			}
			return l.options.Switch.Send(from, to(l))
		}}
	}
	onVIP := func(flags, mappings int) func(l *lab, pods []string) object {
		return func(l *lab, pods []string) object {
			return l.balancer(l.vip(10), pods[0]).with("Flags", flags).with("SourceVIP", l.pod(2)).with("PortMappings", l.flagged(mappings))
		}
	}
	nodePort := func(l *lab, pods []string) object {
		return l.balancer("", pods[0]).with("FrontendVIPs", []string{}).with("PortMappings", l.flagged(hns.FlagLocalRoutedVIP|hns.FlagVIPExternalIP))
	}
	vip := func(l *lab) string { return fmt.Sprintf("%s:%d", l.vip(10), l.port()) }
	other := func(l *lab) string { return l.vip(10) + ":7" }
	node := func(l *lab) string { return fmt.Sprintf(":%d", l.port()) }
	return []Experiment{
		one("no-balancer/other-port", "connect to another port of a VIP", Assumed, FromNode, other, Passed, onVIP(0, 0)),
		one("external/without", "connect from outside without VipExternalIP", Assumed, FromOutside, vip, Passed, onVIP(hns.FlagDSR, 0)),
		one("external/with", "connect from outside with VipExternalIP", Assumed, FromOutside, vip, SeesClient, onVIP(hns.FlagDSR, hns.FlagVIPExternalIP)),
		one("node-ports/from-node", "connect from the node to its node port", "kubernetes.io, Networking on Windows", FromNode, node, Passed, nodePort),
		one("node-ports/from-outside", "connect from outside to a node port", "kubernetes.io, Networking on Windows", FromOutside, node, SeesSource, nodePort),
		one("dsr/without", "connect from outside without DSR", "kubernetes.io, Networking on Windows", FromOutside, vip, SeesSource, onVIP(0, hns.FlagVIPExternalIP)),
		one("dsr/from-node", "connect from the node with DSR", Assumed, FromNode, vip, SeesSource, onVIP(hns.FlagDSR, 0)),
	}
}

func deletions() []Experiment {
	repeated := func(id, asks, source, answer string, once func(l *lab, pods []string, round int) string) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, expect: always(answer), run: func(l *lab) string {
			pods := l.pods(1)
			for i := range rounds {
				if said := once(l, pods, i); said != "" {
					return fmt.Sprintf("%s, in round %d", said, i+1)
				}
			}
			return answer
		}}
	}
	again := func(what, asks string, describe func(l *lab, pod string) object) Experiment {
		return Experiment{ID: "port-stays/" + what, Asks: "make, delete and make again " + asks, Source: "kubernetes#137530", expect: always("ok"), run: func(l *lab) string {
			want := describe(l, l.pods(1)[0])
			if code := l.remove(dll.LoadBalancer, l.need(dll.LoadBalancer, "", want).id()); code != 0 {
				l.fail("deleting the load balancer of the experiment: %s", text(code))
			}
			_, code := l.create(dll.LoadBalancer, "", want)
			return text(code)
		}}
	}
	return []Experiment{
		again("vip", "the load balancer of a VIP", func(l *lab, pod string) object { return l.balancer(l.vip(10), pod) }),
		again("node-port", "the load balancer of a node port", func(l *lab, pod string) object { return l.balancer("", pod).with("FrontendVIPs", []string{}) }),
		repeated("delete-fails/ten", "make and delete a load balancer ten times", Assumed, "10 of 10 are deleted", func(l *lab, pods []string, round int) string {
			one := l.mapping().with("ExternalPort", l.port()+round)
			id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0]).with("PortMappings", []object{one})).id()
			if code := l.remove(dll.LoadBalancer, id); code != 0 {
				return text(code)
			}
			return ""
		}),
		repeated("delete-lies/ten", "make and delete an endpoint ten times, and look for it", "Windows-Containers#631", "10 of 10 are gone", func(l *lab, _ []string, _ int) string {
			id := l.need(dll.Endpoint, l.network, l.remote(l.pod(99))).id()
			if code := l.remove(dll.Endpoint, id); code != 0 {
				return text(code)
			}
			if _, code := l.read(dll.Endpoint, id); code == 0 {
				return "it still exists"
			}
			return ""
		}),
		{
			ID: "in-use/endpoint", Asks: "delete an endpoint that a load balancer uses", Source: Assumed, expect: always("0x803b002c"),
			run: func(l *lab) string {
				pods := l.pods(1)
				l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0]))
				code := l.remove(dll.Endpoint, pods[0])
				l.revive(code, pods[0])
				return text(code)
			},
		},
		{
			ID: "lost-endpoint/state", Asks: "the State of a load balancer whose endpoint was deleted", Source: "wcnscripts, scripts/findDegradedPolicies",
			expect: always("the endpoint cannot be deleted"),
			run: func(l *lab) string {
				pods := l.pods(1)
				id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0])).id()
				code := l.remove(dll.Endpoint, pods[0])
				if code != 0 {
					return "the endpoint cannot be deleted"
				}
				lb, _ := l.read(dll.LoadBalancer, id)
				deleted := l.remove(dll.LoadBalancer, id)
				if deleted != 0 {
					l.revive(code, pods[0])
				}
				return fmt.Sprintf("%s; deletion %s", number(lb["State"]), text(deleted))
			},
		},
	}
}

// revive creates an endpoint again if it was deleted while a load balancer used it: HNS may
// not delete the load balancer without it.
func (l *lab) revive(deleted hns.Code, id string) {
	if deleted != 0 || l.failed != "" {
		return
	}
	if p, code := l.create(dll.Endpoint, l.network, endpoint(l.pod(10)).with("ID", id)); code == 0 && len(l.made) > 1 && strings.EqualFold(p.id(), id) {
		last := len(l.made) - 1 // tidy is to delete it after the load balancer
		l.made = slices.Insert(l.made[:last], 0, l.made[last])
	}
}

func restarts() []Experiment {
	one := func(id, asks, source, answer string, run func(l *lab) string) Experiment {
		return Experiment{ID: id, Asks: asks, Source: source, Needs: NeedsService, expect: always(answer), run: run}
	}
	return []Experiment{
		one("stopped/call", "list load balancers while the service is stopped", "kubernetes#139503, winkernel's tests", "0x6b5", func(l *lab) string {
			defer l.service(Service.Start)
			l.service(Service.Stop)
			return text(hns.CodeOf(l.call(dll.Request{Kind: dll.LoadBalancer, Verb: dll.Enumerate, Text: all()})))
		}),
		one("handles/restart", "read a network by a handle from before a restart", "windowsserverdocs, hcn-declaration-handles; rpcnterr.h", "0x6", func(l *lab) string {
			handle, code := l.open(dll.Network, l.network)
			if code != 0 {
				l.fail("opening the network: %s", text(code))
			}
			l.restart()
			return text(hns.CodeOf(l.call(dll.Request{Kind: dll.Network, Verb: dll.Query, Handle: handle, Text: all()})))
		}),
		one("restarted/objects", "read an endpoint and a load balancer after a restart", "kubernetes#139519; without: kubernetes#110849", "ok; ok", func(l *lab) string {
			pods := l.pods(1)
			id := l.need(dll.LoadBalancer, "", l.balancer(l.vip(10), pods[0])).id()
			l.restart()
			_, p := l.read(dll.Endpoint, pods[0])
			_, lb := l.read(dll.LoadBalancer, id)
			return text(p) + "; " + text(lb)
		}),
	}
}

// restart restarts the service of HNS.
func (l *lab) restart() {
	l.service(Service.Stop)
	l.service(Service.Start)
}

// service stops or starts the service of HNS. An error fails the experiment.
func (l *lab) service(change func(Service) error) {
	if err := change(l.options.Service); err != nil {
		l.fail("stopping or starting the service of HNS failed")
	}
}
