// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// What HNS answered on nodes of others, as they have published it. Looked through, too,
// and without an answer of HNS in them: kubernetes#109124 (times only), #110849 and #110674
// (numbers of load balancers), #131466 (text of the proxy's log), #139519 and #139503 (error
// texts), wcnscripts (scripts, and pictures of what they print), SDN's and AKS engine's
// collectlogs (scripts), sig-windows-tools (scripts, JSON that is sent), flannel and
// win-overlay (JSON that is sent), antrea (Transparent networks alone), hcsshim's docs.

// calico#7305: created for a node port with flags 18.
const answerNodePort = `{"ID":"0be07c06-353c-4fbf-8ebc-5531f877e68a","HostComputeEndpoints":["fd6bec0f-7b88-4b61-b5af-70897ab0960b"],"SourceVIP":"10.10.253.194","PortMappings":[{"Protocol":6,"InternalPort":80,"ExternalPort":31416,"Flags":2}],"SchemaVersion":{"Major":2,"Minor":0}}`

// calico#5762: listed on an l2bridge with DSR, where kube-proxy requests no source VIP.
const answerL2Bridge = `{"ID":"37aa41cf-ff54-4626-9dd6-eb6eb236aaa1","HostComputeEndpoints":["90726009-0478-4888-b521-b0a259dbc268"],"FrontendVIPs":["10.98.164.216"],"PortMappings":[{"Protocol":6,"InternalPort":443,"ExternalPort":443}],"SchemaVersion":{"Major":2,"Minor":0},"Flags":1}`

// "Kube-proxy Windows Kernelspace Mode" (a blog post of 2021-12-18): created on Calico's overlay, HNS 9.2.
const answerOverlay = `{"ID":"a335d997-4160-44f9-9f72-1087a2cba45e","HostComputeEndpoints":["028abaed-7ff6-4fdc-992c-d3b004936be0","e84bad42-a6ee-40a8-8145-c9f084654774","77c53bac-a359-45cc-a663-541344ee505a"],"SourceVIP":"100.244.206.66","FrontendVIPs":["10.99.234.145"],"PortMappings":[{"Protocol":6,"InternalPort":8080,"ExternalPort":80}],"SchemaVersion":{"Major":2,"Minor":0}}`

func TestPublishedLoadBalancers(t *testing.T) {
	v2 := hns.Version{Major: 2}
	for source, c := range map[string]struct {
		text string
		want hns.LoadBalancer
	}{
		"calico#7305": {answerNodePort, hns.LoadBalancer{
			ID: "0be07c06-353c-4fbf-8ebc-5531f877e68a", HostComputeEndpoints: []string{"fd6bec0f-7b88-4b61-b5af-70897ab0960b"}, SourceVIP: "10.10.253.194",
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 31416, Flags: hns.FlagLocalRoutedVIP}}, SchemaVersion: v2,
		}},
		"calico#5762": {answerL2Bridge, hns.LoadBalancer{
			ID: "37aa41cf-ff54-4626-9dd6-eb6eb236aaa1", HostComputeEndpoints: []string{"90726009-0478-4888-b521-b0a259dbc268"}, FrontendVIPs: []string{"10.98.164.216"},
			PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 443, ExternalPort: 443}}, SchemaVersion: v2, Flags: hns.FlagDSR,
		}},
		"kubernetes#141488: no port mappings": {`{"ID":"a"}`, hns.LoadBalancer{ID: "a"}},
		"kubernetes#141488: null":             {`{"ID":"a","PortMappings":null}`, hns.LoadBalancer{ID: "a"}},
		"kubernetes#141488: empty":            {`{"ID":"a","PortMappings":[]}`, hns.LoadBalancer{ID: "a", PortMappings: []hns.PortMapping{}}},
		"calico#8465: of the old API, HNS 15.0": {
			`{"ActivityId":"11903C90-501F-478F-A5C9-3B2A70BF51C2","Flags":0,"Health":{"LastErrorCode":0,"LastUpdateTime":133511593158285187},"ID":"D680D0E7-185B-46A7-B097-37A8B439F588","IsApplied":false,"Policies":[{"ExternalPort":55680,"InternalPort":55680,"IsDSR":true,"Protocol":6,"SourceVIP":"10.244.178.2","Type":"ELB"}],"References":["/endpoints/c55b2c86-bd06-400e-bca7-8fb7de11e635"],"State":2,"Version":64424509440}`,
			hns.LoadBalancer{ID: "D680D0E7-185B-46A7-B097-37A8B439F588", State: 2},
		},
		"the blog post: the same load balancer in the old API": {
			`{"ActivityId":"FF1908A9-9B2C-4D07-AF3E-865688B344DD","Health":{"LastErrorCode":0,"LastUpdateTime":132844046714528311},"ID":"A335D997-4160-44F9-9F72-1087A2CBA45E","IsApplied":false,"Policies":[{"ExternalPort":80,"InternalPort":8080,"Protocol":6,"SourceVIP":"100.244.206.66","Type":"ELB"}],"State":2,"Version":38654705666}`,
			hns.LoadBalancer{ID: "A335D997-4160-44F9-9F72-1087A2CBA45E", State: 2},
		},
	} {
		var got hns.LoadBalancer
		if err := json.Unmarshal([]byte(c.text), &got); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", source, got, err)
		}
	}
}

// Endpoints and networks were published in the words of the old API alone.
func TestPublishedEndpoints(t *testing.T) {
	for source, text := range map[string]string{
		"Windows-Containers#563": `{"ID":"5e6298c2-4638-494e-be6b-ff6fef942c06","Name":"default-test_nat","Version":64424509440,"Resources":{"AllocationOrder":0,"State":1},"State":1,"VirtualNetwork":"76177bd4-a2b5-43a6-9cb8-a37d9d903123","MacAddress":"00-15-5D-CD-BE-47","IPAddress":"172.27.148.101","PrefixLength":20}`,
		"SDN#227":                `{"ID":"b799ce1e-da48-480d-b2eb-c13436cf5653","Name":"Ethernet","VirtualNetwork":"8e68213e-9443-4395-a50c-3977cb7bdba7","VirtualNetworkName":"l2bridge","Policies":[{"Type":"L2Driver"}],"MacAddress":"00:11:22:33:44:55","IPAddress":"10.190.178.37","IsRemoteEndpoint":true}`,
		"acs-engine#4227":        `{"ID":"4fbc9996-706b-496b-9b75-23764b942b85","Name":"Ethernet","VirtualNetwork":"42578e2a-30fb-4383-9214-7a69019a735b","VirtualNetworkName":"azure","Policies":[{"Type":"L2Driver"}],"MacAddress":"00:11:22:33:44:55","IPAddress":"10.240.0.12","DNSSuffix":"default.svc.cluster.local","DNSServerList":"10.0.0.10,168.63.129.16","GatewayAddress":"10.240.0.1","PrefixLength":12,"IsRemoteEndpoint":true}`,
	} {
		var e hns.Endpoint
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.State == hns.EndpointDegraded || e.ID == "" || e.Name == "" || e.Health.LastErrorCode != 0 {
			t.Errorf("%s: %+v, %v", source, e, err)
		}
	}
	// calico#5164: a remote subnet of a VXLAN network; containerd#5729: Health of a network.
	var n hns.Network
	text := `{"ID":"0F3F6C5C-330C-40FC-9D52-AEB44D267C33","Name":"Calico","Type":"Overlay","Flags":0,"Health":{"LastErrorCode":0,"LastUpdateTime":132706734568594451},"Policies":[{"DestinationPrefix":"10.5.22.0/26","DistributedRouterMacAddress":"00-15-5d-b1-8e-40","IsolationId":4096,"ProviderAddress":"192.168.85.160","Type":"RemoteSubnetRoute"}]}`
	if err := json.Unmarshal([]byte(text), &n); err != nil || n.Policies[0].Type != hns.PolicyRemoteSubnet {
		t.Errorf("%+v, %v", n, err)
	}
}

// Health has been seen as a code alone; hcsshim's types allow all else.
func TestHealthOfAnyForm(t *testing.T) {
	for text, want := range map[string]hns.Code{
		`{}`: 0, `{"Health":null}`: 0, `{"Health":"good"}`: 0, `{"Health":[1]}`: 0, `{"Health":{"LastErrorCode":"x"}}`: 0,
		`{"Health":{"LastErrorCode":2151350275}}`: 0x803b0003, `{"Health":{"LastErrorCode":-2143617021}}`: 0x803b0003,
		`{"Health":{"Data":{"LastErrorCode":2151350275},"Extra":{}}}`: 0x803b0003, `{"Health":{"Data":"any","Extra":{"Resources":1}}}`: 0,
	} {
		var e hns.Endpoint
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.Health.LastErrorCode != want {
			t.Errorf("%s: %x, %v", text, uint32(e.Health.LastErrorCode), err)
		}
		back, err := json.Marshal(e)
		if err != nil || want == 0 && strings.Contains(string(back), "Health") {
			t.Errorf("%s: sent as %s, %v", text, back, err)
		}
	}
}

// State has been seen as a number alone. In hcsshim's types neither object has one: a build that
// writes it otherwise must not make all reading fail.
func TestStateOfAnyForm(t *testing.T) {
	for text, want := range map[string]hns.Condition{
		`{}`: 0, `{"State":null}`: 0, `{"State":5}`: 5, `{"State":"Degraded"}`: 0, `{"State":-1}`: 0, `{"State":5000000000}`: 0, `{"State":1.5}`: 0, `{"State":{"Value":5}}`: 0,
	} {
		var e hns.Endpoint
		var lb hns.LoadBalancer
		if err := errors.Join(json.Unmarshal([]byte(text), &e), json.Unmarshal([]byte(text), &lb)); err != nil || e.State != want || lb.State != want {
			t.Errorf("%s: %d and %d, %v", text, e.State, lb.State, err)
		}
	}
}

// What kube-proxy had in HNS on those nodes is adopted unchanged: nothing is written.
func TestPublishedWorldsAreAdopted(t *testing.T) {
	t.Run("calico#5762", func(t *testing.T) {
		on(t, hnsemu.WS2022, func(r *rig) {
			pod := r.emu.AddPod(r.network, "10.244.1.70")
			r.published(answerL2Bridge, map[string]string{"90726009-0478-4888-b521-b0a259dbc268": pod})
			r.adopts("10.98.164.216", 443, 443, "10.244.1.70")
		})
	})
	t.Run("the blog post", func(t *testing.T) {
		onNetwork(t, hns.Version{Major: 9, Minor: 2}, hns.TypeOverlay, func(r *rig) {
			const mac, node = "08:00:27:09:de:92", "10.20.30.11"
			r.settings.SourceVIP = netip.Addr{}
			r.settings.MAC = func(netip.Addr) (string, error) { return "08-00-27-09-DE-92", nil }
			r.host.IPs = []netip.Addr{netip.MustParseAddr(node)}
			r.options = hns.Options{Overlay: true} // of HNS 9.2
			r.emu.AddEndpoint(hns.Endpoint{Name: "Calico_ep", HostComputeNetwork: r.network, IpConfigurations: []hns.IpConfig{{IpAddress: "100.244.206.66"}}})
			r.emu.AddEndpoint(hns.Endpoint{
				Name: "Ethernet", HostComputeNetwork: r.network, Flags: hns.FlagRemote, MacAddress: mac, IpConfigurations: []hns.IpConfig{{IpAddress: "10.99.234.145"}},
				Policies: []hns.Policy{{Type: hns.PolicyProvider, Settings: []byte(`{"ProviderAddress":"` + node + `"}`)}},
			})
			r.published(answerOverlay, map[string]string{
				"028abaed-7ff6-4fdc-992c-d3b004936be0": r.emu.AddPod(r.network, "100.244.206.68"),
				"e84bad42-a6ee-40a8-8145-c9f084654774": r.emu.AddPod(r.network, "100.244.206.69"),
				"77c53bac-a359-45cc-a663-541344ee505a": r.emu.AddPod(r.network, "100.244.206.70"),
			})
			r.adopts("10.99.234.145", 80, 8080, "100.244.206.68 100.244.206.69 100.244.206.70")
		})
	})
}

// published puts a load balancer into the emulator, with the ids that its endpoints
// have there.
func (r *rig) published(text string, ids map[string]string) {
	r.Helper()
	for theirs, here := range ids {
		text = strings.ReplaceAll(text, theirs, here)
	}
	var lb hns.LoadBalancer
	if err := json.Unmarshal([]byte(text), &lb); err != nil {
		r.Fatal(err)
	}
	r.emu.AddBalancer(lb, false)
}

// adopts begins with a Service for what is published, twice, and demands that nothing is
// written.
func (r *rig) adopts(vip string, number, target uint16, endpoints string) {
	r.Helper()
	p := port("published", vip, endpoints)
	p.Frontends[0].At = netip.AddrPortFrom(p.Frontends[0].At.Addr(), number)
	pool := p.Frontends[0].On[model.FromPod].Pool
	for i, e := range pool.Endpoints {
		pool.Endpoints[i] = model.Endpoint{Addr: netip.AddrPortFrom(e.Addr.Addr(), target), Local: true}
	}
	r.ports["published"] = p
	for range 2 {
		r.restart()
		r.begin()
		r.settle()
		r.unwritten()
		r.serves(vip, endpoints)
	}
}
