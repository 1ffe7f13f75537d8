// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// createPlain creates an object of a kind that no load balancer depends on: a container's
// namespace, or an SDN route. It is kept as given.
//
// rule: plain
func (e *Emulator) createPlain(k Kind, settings string) (Response, hns.Code) {
	d, ok := asDocument(settings)
	var given struct{ ID string }
	if !ok || json.Unmarshal([]byte(settings), &given) != nil {
		return Response{}, invalidJSON
	}
	id, code := e.identity(given.ID, "given-id/endpoint-in-use")
	if code != 0 {
		return Response{}, code
	}
	d["ID"] = json.RawMessage(text(id))
	e.plain[handle{k, id}] = d
	return Response{Handle: e.open(k, id), ID: id}, 0
}

// resource is a resource of a namespace.
type resource struct {
	Type string // Endpoint or Container
	Data struct{ ID string }
}

// modifyNamespace adds an endpoint or a container to a namespace, or removes it.
//
// rule: plain
func (e *Emulator) modifyNamespace(h handle, settings string) hns.Code {
	var r struct {
		ResourceType, RequestType string
		Settings                  struct{ EndpointID, ContainerID string } // in any case
	}
	d, ok := e.plain[h]
	var all []resource
	switch {
	case !ok:
		return notFound
	case json.Unmarshal([]byte(settings), &r) != nil, d["Resources"] != nil && json.Unmarshal(d["Resources"], &all) != nil:
		return invalidJSON
	}
	one := resource{Type: r.ResourceType}
	switch one.Data.ID = r.Settings.ContainerID; {
	case one.Type == "Endpoint":
		one.Data.ID = strings.ToLower(r.Settings.EndpointID)
		if !e.has(Endpoint, one.Data.ID) {
			return e.missing(Endpoint)
		}
	case one.Type != "Container":
		return notImplemented
	}
	all = slices.DeleteFunc(all, func(o resource) bool { return o == one })
	switch r.RequestType {
	case "Add":
		all = append(all, one)
	case "Remove":
	default:
		return notImplemented
	}
	d["Resources"] = json.RawMessage(text(all))
	return 0
}
