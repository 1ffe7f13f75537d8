// SPDX-License-Identifier: Apache-2.0

// Package dll is the functions of HNS as its DLLs have them, one call a value: Request and
// Response. On Windows DLLs makes the calls (dll_windows.go, the only place where memory is
// shared with HNS); elsewhere an emulator answers them (windows/test/hnsemu).
package dll

// Kind is a kind of object, by the number that it has on the emulator's wire.
type Kind uint8

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

// Caller makes calls: the DLLs of a machine, or what stands for them.
type Caller interface{ Do(Request) Response }

// Response is what a function returns.
type Response struct {
	Result uint32 // an HRESULT
	Handle uint64
	ID     string // of what was created, where the function says so: Windows' do not
	Text   string // ids or properties
	Record string // an error record, as JSON
}
