// SPDX-License-Identifier: Apache-2.0

// Package dll represents calls of the functions of HNS's DLLs as values: Request and
// Response. On Windows, type DLLs makes the calls (dll_windows.go, the only place where memory is
// shared with HNS); elsewhere an emulator answers them (windows/test/hnsemu).
package dll

// Kind is a kind of object; the numbers are those of the emulator's wire format.
type Kind uint8

const (
	Network Kind = iota + 1
	Endpoint
	Namespace
	LoadBalancer
	SdnRoute
)

// String returns the kind as it appears in names of functions.
func (k Kind) String() string {
	return [...]string{"Service", "Network", "Endpoint", "Namespace", "LoadBalancer", "SdnRoute"}[k]
}

// Verb is what a function does.
type Verb uint8

// The verbs; the numbers are those of the emulator's wire format. Rest is HNSCall, the only function
// without a kind: the old API, used for the version.
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

// Request is a call of a function of HNS.
type Request struct {
	Kind   Kind
	Verb   Verb
	Handle uint64 // of the object; of the network to create an endpoint in
	ID     string
	Text   string // settings, or a query; of Rest "METHOD /path\nbody"
}

// Function returns the function's name.
func (r Request) Function() string {
	switch r.Verb {
	case Rest:
		return "HNSCall"
	case Enumerate:
		return "HcnEnumerate" + r.Kind.String() + "s"
	case Query:
		return "HcnQuery" + r.Kind.String() + "Properties"
	}
	return "Hcn" + [...]string{Create: "Create", Open: "Open", Modify: "Modify", Delete: "Delete", Close: "Close"}[r.Verb] + r.Kind.String()
}

// Caller makes calls: the DLLs of this machine, or an emulator.
type Caller interface{ Do(Request) Response }

// Response is what a function returns.
type Response struct {
	Result uint32 // an HRESULT
	Handle uint64
	ID     string // of the created object; set by the emulator only
	Text   string // ids or properties
	Record string // an error record, as JSON
}
