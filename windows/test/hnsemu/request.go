// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// The types of package dll.
type (
	Kind     = dll.Kind
	Verb     = dll.Verb
	Request  = dll.Request
	Response = dll.Response
)

// The kinds and verbs.
const (
	Network      = dll.Network
	Endpoint     = dll.Endpoint
	Namespace    = dll.Namespace
	LoadBalancer = dll.LoadBalancer
	SdnRoute     = dll.SdnRoute

	Enumerate = dll.Enumerate
	Create    = dll.Create
	Open      = dll.Open
	Modify    = dll.Modify
	Query     = dll.Query
	Delete    = dll.Delete
	Close     = dll.Close
	Rest      = dll.Rest
)

// Call is a call in the log.
type Call struct {
	Name string // such as "HcnCreateEndpoint"
	Verb Verb
	Kind Kind
	ID   string        // of the object, if known
	At   time.Duration // when it returned
	Code hns.Code      // 0 when it succeeded
	Text string        // settings
}

// The codes of errors for which there is no experiment (answers.go).
//
// rule: bad-json unimplemented
const (
	notFound       hns.Code = 0x490
	invalidHandle  hns.Code = 6
	notImplemented hns.Code = 0x80004001
	portExists     hns.Code = 0x803b0013
	invalidJSON    hns.Code = 0x803b001b
)

// missing returns the code for opening an object that does not exist.
//
// rule: not-found
func (e *Emulator) missing(k Kind) hns.Code {
	switch k {
	case Network:
		return e.answer("not-found/open-network")
	case Endpoint:
		return e.answer("not-found/open-endpoint")
	case LoadBalancer:
		return e.answer("not-found/open-balancer")
	}
	return notFound
}

// document is an object as JSON: settings that package hns does not have are kept, and
// returned as given.
//
// rule: extra-settings
type document map[string]json.RawMessage

// asDocument reads the settings of an object. Policies change later and are kept
// in the object itself.
func asDocument(settings string) (d document, ok bool) {
	ok = json.Unmarshal([]byte(settings), &d) == nil && d != nil
	delete(d, "Policies")
	return d, ok
}

// with returns an object's JSON, extended by the document's other settings.
func (d document) with(object string) string {
	if len(d) == 0 {
		return object
	}
	all := maps.Clone(d)
	if json.Unmarshal([]byte(object), &all) != nil {
		return object
	}
	return text(all)
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain structs of strings and numbers
	}
	return string(b)
}

func sorted[T any](m map[string]T) []T {
	all := make([]T, 0, len(m))
	for _, id := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[id])
	}
	return all
}
