// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/tandem-proxy/tandem/windows/hns"
)

// Kind is a kind of object, by the number that it has on the wire.
type Kind uint8

// The kinds.
const (
	Network Kind = iota + 1
	Endpoint
	Namespace
	LoadBalancer
	SdnRoute
)

// String returns the name that is part of the functions' names.
func (k Kind) String() string {
	return [...]string{"Service", "Network", "Endpoint", "Namespace", "LoadBalancer", "SdnRoute"}[k]
}

// Verb is what a function does.
type Verb uint8

// The verbs, by their numbers on the wire. Rest is HNSCall, the only function
// without a kind: the old API, of which the product requests the version.
const (
	Enumerate Verb = iota
	Create
	Open
	Modify
	Query
	Delete
	Close
	Rest
)

// Request is a call of a function of the DLL.
type Request struct {
	Kind   Kind
	Verb   Verb
	Handle uint64 // of the object; of the network to create an endpoint in
	ID     string
	Text   string // settings, or a query; of Rest "METHOD /path\nbody"
}

// Response is what a function returns.
type Response struct {
	Result uint32 // an HRESULT
	Handle uint64
	ID     string
	Text   string // ids or properties
	Record string // an error record, as JSON
}

// Call is a call in the log.
type Call struct {
	Name string // such as "HcnCreateEndpoint"
	Verb Verb
	Kind Kind
	ID   string        // of the object, where it is known
	At   time.Duration // when it returned
	Code hns.Code      // 0 when it succeeded
	Text string        // settings
}

func name(k Kind, v Verb) string {
	switch v {
	case Rest:
		return "HNSCall"
	case Enumerate:
		return "HcnEnumerate" + k.String() + "s"
	case Query:
		return "HcnQuery" + k.String() + "Properties"
	}
	return "Hcn" + [...]string{Create: "Create", Open: "Open", Modify: "Modify", Delete: "Delete", Close: "Close"}[v] + k.String()
}

// The codes that the emulator itself answers with.
//
// rule: not-found bad-json unimplemented
const (
	notFound         hns.Code = 0x490
	invalidHandle    hns.Code = 6
	alreadyExists    hns.Code = 0xb7
	notImplemented   hns.Code = 0x80004001
	networkNotFound  hns.Code = 0x803b0001
	endpointNotFound hns.Code = 0x803b0002
	invalidPolicy    hns.Code = 0x803b000d
	portExists       hns.Code = 0x803b0013
	invalidJSON      hns.Code = 0x803b001b
	invalidReference hns.Code = 0x803b001c
	invalidIP        hns.Code = 0x803b001e
	hasReferences    hns.Code = 0x803b002c
)

// document is an object as JSON: what the product's types leave out is kept, and
// returned as it was given.
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

// with returns an object's text with what the document has besides.
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
