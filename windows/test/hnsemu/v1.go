// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// rest answers the old API of HNS (vmcompute.dll, HNSCall): "METHOD /path\nbody".
// Tandem reads only the version through it; hcsshim's tests use the rest.
//
// rule: v1-api
func (e *Emulator) rest(request string) (Response, hns.Code) {
	head, body, _ := strings.Cut(request, "\n")
	method, path, _ := strings.Cut(head, " ")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	id := ""
	if len(parts) > 1 {
		id = strings.ToLower(parts[1])
	}
	if path == "/globals/version" {
		return output(text(e.version), 0)
	}
	if parts[0] == "accelnet" {
		return e.accelnet(method, body)
	}
	kind, ok := map[string]Kind{"networks": Network, "endpoints": Endpoint, "endpointstats": Endpoint}[parts[0]]
	switch {
	case !ok || len(parts) > 3:
		return output("", notImplemented)
	case method == "GET" && id == "":
		return output(e.all(kind), 0)
	case method == "POST" && id == "":
		return e.restCreate(kind, body)
	case !e.has(kind, id):
		return output("", notFound)
	case method == "DELETE":
		return output("", e.delete(kind, id))
	case method == "GET" && parts[0] == "endpointstats", method == "POST" && len(parts) == 3: // attached to and detached from the node
		return output("{}", 0)
	case method == "GET":
		object, _ := e.properties(handle{kind, id})
		return output(object, 0)
	}
	return output("", notImplemented)
}

// accelnet stores the MAC addresses of accelerated networking as given.
func (e *Emulator) accelnet(method, body string) (Response, hns.Code) {
	switch {
	case method == "DELETE":
		e.macs = ""
	case method == "POST" && json.Valid([]byte(body)):
		e.macs = body
	case method != "GET":
		return output("", invalidJSON)
	}
	return output(e.macs, 0)
}

func (e *Emulator) all(kind Kind) string {
	var all []json.RawMessage
	add := func(id string) {
		object, _ := e.properties(handle{kind, id})
		all = append(all, json.RawMessage(object))
	}
	if kind == Network {
		for _, n := range sorted(e.networks) {
			add(n.ID)
		}
	} else {
		for _, p := range sorted(e.endpoints) {
			add(p.ID)
		}
	}
	return text(all)
}

func (e *Emulator) restCreate(kind Kind, body string) (Response, hns.Code) {
	r := Request{Kind: kind, Text: body}
	if kind == Endpoint {
		var p struct{ VirtualNetwork string }
		if json.Unmarshal([]byte(body), &p) != nil {
			return output("", invalidJSON)
		}
		r.Handle = e.open(Network, strings.ToLower(p.VirtualNetwork))
		defer delete(e.handles, r.Handle)
	}
	made, code := e.create(r)
	delete(e.handles, made.Handle)
	object, _ := e.properties(handle{kind, made.ID})
	return output(object, code)
}

// output wraps an answer of the old API, which is a success with an error in it
// when there is one.
func output(object string, code hns.Code) (Response, hns.Code) {
	if code != 0 {
		return Response{Text: text(map[string]any{"Success": false, "Error": fmt.Sprintf("refused: %s", code)})}, 0
	}
	if object == "" {
		object = "{}"
	}
	return Response{Text: text(map[string]any{"Success": true, "Output": json.RawMessage(object)})}, 0
}
