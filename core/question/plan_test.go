// SPDX-License-Identifier: Apache-2.0

package question_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/track"
)

// shop is a Service of one port at an address, and its slice.
func shop(name, at string, port uint16, endpoints ...string) (*model.Service, *model.Slice) {
	svc := &model.Service{
		Name: model.ServiceName{Namespace: "shop", Name: name}, Type: model.ClusterIP, ClusterIPs: []netip.Addr{netip.MustParseAddr(at)},
		Ports: []model.ServicePort{{Name: "http", Proto: model.TCP, Port: port}},
	}
	slice := &model.Slice{
		Name: model.SliceName{Namespace: "shop", Name: name + "-x"}, Service: name, Ports: []model.SlicePort{{Name: "http", Proto: model.TCP, Port: 8080}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{Addr: netip.MustParseAddr(e), State: model.Ready | model.Serving})
	}
	return svc, slice
}

// An edit is shown in terms of Services, and answers for the problems that it brings, not for those that its
// Services have already.
func TestPreviewInTermsOfServices(t *testing.T) {
	web, webSlice := shop("web", "10.96.0.1", 80, "10.1.2.2", "10.1.2.4")
	late, lateSlice := shop("zz-late", "10.96.0.1", 80, "10.1.2.9") // the address is web's
	host := &model.Host{Name: "node-1", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	all, _ := track.Once(host, &model.Objects{Services: []*model.Service{web, late}, Slices: []*model.Slice{webSlice, lateSlice}})
	d := &question.Document{Snapshot: &engine.Snapshot{Host: host, Services: all, At: time.Now()}}
	slices.Reverse(d.Services) // those of a running proxy have no order

	ask := func(e question.Edit) question.Preview {
		t.Helper()
		p, err := question.PreviewEdit().Answer(t.Context(), d, e)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	again := *late
	if p := ask(question.Edit{Objects: model.Objects{Services: []*model.Service{&again}}}); len(p.Problems) != 0 || p.Pending() {
		t.Errorf("nothing is edited: %+v", p)
	}
	if thief, _ := shop("zz-thief", "10.96.0.1", 80); len(ask(question.Edit{Objects: model.Objects{Services: []*model.Service{thief}}}).Problems) != 1 {
		t.Error("a new Service that takes an address is no problem")
	}
	moved, movedSlice := shop("web", "10.96.0.1", 81, "10.1.2.3", "10.1.2.4")
	p := ask(question.Edit{Objects: model.Objects{Services: []*model.Service{moved}, Slices: []*model.Slice{movedSlice}}})
	i := slices.IndexFunc(p.Services, func(s question.PreviewService) bool { return s.Name == "shop/web" })
	if i < 0 || !slices.Equal(p.Services[i].Changes, []string{"port 80 → 81", "endpoint 10.1.2.3:8080/tcp added", "endpoint 10.1.2.2:8080/tcp deleted"}) || len(p.Problems) != 0 {
		t.Errorf("%+v", p)
	}
	if p := ask(question.EditOf(d)); p.Pending() {
		t.Errorf("a document differs from itself: %+v", p)
	}
}

// Problems that the running proxy has of the same objects are not the edit's: its file has another name, and other lines.
func TestProblemsAnEditBrings(t *testing.T) {
	field := func(object, detail, where string) model.Problem {
		return model.Problem{Object: object, Where: where, Why: model.WhyInvalid, Detail: detail}
	}
	of := func(p model.Problem) []question.Problem {
		return []question.Problem{{Object: p.Object, Where: p.Where, Reason: p.Why.String(), Detail: p.Text()}}
	}
	running := question.Status{
		Problems: of(field("EndpointSlice shop/lost-x", "addressType: unknown", "old.yaml:7")),
		Services: []question.Service{{Name: "shop/web", Problems: of(field("Service shop/web", "spec.colour: unknown field, ignored", "old.yaml:12"))}},
	}
	edit := []model.Problem{
		field("Service shop/web", "spec.colour: unknown field, ignored", "edit.yaml:3"), field("EndpointSlice shop/lost-x", "addressType: unknown", "-:1"),
	}
	if n := question.Brought(edit, &running); n != 0 {
		t.Errorf("%d problems of an edit that brings none", n)
	}
	for _, more := range []model.Problem{field("Service shop/db", "spec.colour: unknown field, ignored", "edit.yaml:3"), field("Service shop/web", "spec.size: unknown field, ignored", "old.yaml:12")} {
		if n := question.Brought(append(edit, more), &running); n != 1 {
			t.Errorf("%d problems, want one: %v", n, more)
		}
	}
}
