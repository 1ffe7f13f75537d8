// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// TestPublishedAnswers reads what HNS answered on nodes of others, as they have
// published it. Of kubernetes#109124 only times are published, and of wcnscripts#21 and
// #24 scripts, which compare State with 4, and pictures of what they print: no answer of
// HNS, so that there is no fixture of them here.
func TestPublishedAnswers(t *testing.T) {
	for source, c := range map[string]struct {
		text string
		want hns.LoadBalancer
	}{
		"calico#7305: created for a node port with flags 18": {
			`{"ID":"0be07c06-353c-4fbf-8ebc-5531f877e68a","HostComputeEndpoints":["fd6bec0f-7b88-4b61-b5af-70897ab0960b"],"SourceVIP":"10.10.253.194","PortMappings":[{"Protocol":6,"InternalPort":80,"ExternalPort":31416,"Flags":2}],"SchemaVersion":{"Major":2,"Minor":0}}`,
			hns.LoadBalancer{
				ID: "0be07c06-353c-4fbf-8ebc-5531f877e68a", HostComputeEndpoints: []string{"fd6bec0f-7b88-4b61-b5af-70897ab0960b"}, SourceVIP: "10.10.253.194",
				PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 31416, Flags: hns.FlagLocalRoutedVIP}}, SchemaVersion: hns.Version{Major: 2},
			},
		},
		"kubernetes#141488: no port mappings": {`{"ID":"a"}`, hns.LoadBalancer{ID: "a"}},
		"kubernetes#141488: null":             {`{"ID":"a","PortMappings":null}`, hns.LoadBalancer{ID: "a"}},
		"kubernetes#141488: empty":            {`{"ID":"a","PortMappings":[]}`, hns.LoadBalancer{ID: "a", PortMappings: []hns.PortMapping{}}},
		"calico#8465: of the old API, in its words": {
			`{"ActivityId":"11903C90-501F-478F-A5C9-3B2A70BF51C2","Flags":0,"Health":{"LastErrorCode":0,"LastUpdateTime":133511593158285187},"ID":"D680D0E7-185B-46A7-B097-37A8B439F588","IsApplied":false,"Policies":[{"ExternalPort":55680,"InternalPort":55680,"IsDSR":true,"Protocol":6,"SourceVIP":"10.244.178.2","Type":"ELB"}],"References":["/endpoints/c55b2c86-bd06-400e-bca7-8fb7de11e635"],"State":2,"Version":64424509440}`,
			hns.LoadBalancer{ID: "D680D0E7-185B-46A7-B097-37A8B439F588", State: 2},
		},
	} {
		var got hns.LoadBalancer
		if err := json.Unmarshal([]byte(c.text), &got); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", source, got, err)
		}
	}
	var e hns.Endpoint // Windows-Containers#563
	text := `{"ID":"5e6298c2-4638-494e-be6b-ff6fef942c06","Name":"default-test_nat","Version":64424509440,"State":1,"VirtualNetwork":"76177bd4-a2b5-43a6-9cb8-a37d9d903123","MacAddress":"00-15-5D-CD-BE-47","IPAddress":"172.27.148.101","PrefixLength":20}`
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.State == hns.EndpointDegraded || e.Name != "default-test_nat" {
		t.Errorf("%+v, %v", e, err)
	}
}
