// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// hcnHNS is the HNS of this machine, through package hcn of Microsoft's hcsshim;
// except the functions that the type functions has.
type hcnHNS struct {
	f functions

	mu      sync.Mutex
	network string // that is held open
	handle  uintptr
}

func newHCN() *hcnHNS { return &hcnHNS{f: computeNetwork()} }

var _ HNS = (*hcnHNS)(nil)

func (h *hcnHNS) Version() (Version, error) {
	g, err := hcn.GetGlobals()
	if err != nil {
		return Version{}, hcnError("HNSCall", err)
	}
	return Version{g.Version.Major, g.Version.Minor}, nil
}

func (h *hcnHNS) Networks() ([]Network, error) {
	all, err := hcn.ListNetworks()
	if err != nil {
		return nil, hcnError("list networks", err)
	}
	return recast[[]Network](all)
}

func (h *hcnHNS) CreateBalancer(lb LoadBalancer) (LoadBalancer, error) {
	return balancerCall("create load balancer", lb, func(x *hcn.HostComputeLoadBalancer) (*hcn.HostComputeLoadBalancer, error) {
		return x.Create()
	})
}

func (h *hcnHNS) ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) {
	return balancerCall("modify load balancer", to, func(x *hcn.HostComputeLoadBalancer) (*hcn.HostComputeLoadBalancer, error) {
		return x.Update(id)
	})
}

func balancerCall(what string, lb LoadBalancer, f func(*hcn.HostComputeLoadBalancer) (*hcn.HostComputeLoadBalancer, error)) (LoadBalancer, error) {
	x, err := recast[*hcn.HostComputeLoadBalancer](lb)
	if err != nil {
		return lb, err
	}
	got, err := f(x)
	if err != nil {
		return lb, hcnError(what, err)
	}
	return recast[LoadBalancer](got)
}

func (h *hcnHNS) DeleteBalancer(id string) error {
	return hcnError("delete load balancer", (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

func (h *hcnHNS) DeleteEndpoint(id string) error {
	return hcnError("delete endpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

// recast turns the library's form of an object into ours or back: the fields have
// the same names in JSON.
func recast[T any](from any) (to T, err error) {
	b, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(b, &to)
	}
	if err != nil {
		return to, fmt.Errorf("HNS: %w", err)
	}
	return to, nil
}

// hcnError makes our own error of one of the library's, whose own tests do not
// recognise what the DLL returns (hcsshim 0.14.1: HcnError does not unwrap).
func hcnError(what string, err error) error {
	if err == nil {
		return nil
	}
	var e *hcn.HcnError
	var code windows.Errno
	if errors.As(err, &e) && errors.As(e.Err, &code) || errors.As(err, &code) {
		return &Error{Call: what, Code: Code(code), Detail: err.Error()}
	}
	if errors.As(err, new(*windows.DLLError)) {
		return &Error{Call: what, Code: codeModuleNotFound, Detail: err.Error()}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// functions are those where hcsshim's own do more work than one
// object needs: it lists objects with all their content, and opens the network
// for each endpoint that it makes.
type functions struct {
	endpoint, balancer        kindFunctions
	createEndpoint            *windows.LazyProc
	openNetwork, closeNetwork *windows.LazyProc
}

// kindFunctions are the functions by which objects of a kind are read.
type kindFunctions struct{ enumerate, open, query, close *windows.LazyProc }

func computeNetwork() functions {
	dll := windows.NewLazySystemDLL("computenetwork.dll")
	kind := func(name string) kindFunctions {
		return kindFunctions{
			enumerate: dll.NewProc("HcnEnumerate" + name + "s"),
			open:      dll.NewProc("HcnOpen" + name),
			query:     dll.NewProc("HcnQuery" + name + "Properties"),
			close:     dll.NewProc("HcnClose" + name),
		}
	}
	return functions{
		endpoint: kind("Endpoint"), balancer: kind("LoadBalancer"),
		createEndpoint: dll.NewProc("HcnCreateEndpoint"),
		openNetwork:    dll.NewProc("HcnOpenNetwork"), closeNetwork: dll.NewProc("HcnCloseNetwork"),
	}
}

// call calls a function whose last argument is where HNS puts an error record.
//
//go:uintptrescapes
func call(p *windows.LazyProc, args ...uintptr) error {
	if err := p.Find(); err != nil {
		return &Error{Call: p.Name, Code: codeModuleNotFound, Detail: err.Error()}
	}
	var record *uint16
	r := callWith(p, uintptr(unsafe.Pointer(&record)), args)
	return outcome(p, r, taken(record))
}

// callWith is there for its directive: without it the record is on the stack,
// which may move between the conversion and the call, and HNS would write to where
// it was.
//
//go:uintptrescapes
func callWith(p *windows.LazyProc, record uintptr, args []uintptr) uintptr {
	r, _, _ := p.Call(append(args, record)...)
	return r
}

// outcome reads an HRESULT. A record is an error, whatever the result.
func outcome(p *windows.LazyProc, r uintptr, record string) error {
	if int32(r) >= 0 && record == "" {
		return nil
	}
	code := Code(uint32(r))
	if uint32(r)&0x1fff0000 == windows.FACILITY_WIN32<<16 {
		code &= 0xffff
	}
	return &Error{Call: p.Name, Code: code, Detail: record}
}

// taken returns a string that HNS has allocated, and frees it.
func taken(s *uint16) string {
	if s == nil {
		return ""
	}
	defer windows.CoTaskMemFree(unsafe.Pointer(s))
	return windows.UTF16PtrToString(s)
}

// decode reads a string that HNS has allocated, and frees it.
func decode[T any](p *windows.LazyProc, s *uint16) (v T, err error) {
	if err := json.Unmarshal([]byte(taken(s)), &v); err != nil {
		return v, fmt.Errorf("%s: %w", p.Name, err)
	}
	return v, nil
}

func encode(v any) (*uint16, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return windows.UTF16PtrFromString(string(b))
}

// query is what hcsshim asks objects by.
type query struct {
	SchemaVersion Version
	Filter        string `json:",omitempty"`
}

func guid(id string) (windows.GUID, error) {
	g, err := windows.GUIDFromString("{" + id + "}")
	if err != nil {
		return g, fmt.Errorf("id %q: %w", id, err)
	}
	return g, nil
}

// ids lists the objects of a kind. An empty filter is none.
func (k kindFunctions) ids(filter string) ([]string, error) {
	q, err := encode(query{schema, filter})
	if err != nil {
		return nil, err
	}
	var ids *uint16
	if err := call(k.enumerate, uintptr(unsafe.Pointer(q)), uintptr(unsafe.Pointer(&ids))); err != nil {
		return nil, err
	}
	return decode[[]string](k.enumerate, ids)
}

// read reads an object.
func read[T any](k kindFunctions, id string) (v T, err error) {
	g, err := guid(id)
	if err != nil {
		return v, err
	}
	var handle uintptr
	if err := call(k.open, uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(&handle))); err != nil {
		return v, err
	}
	return finish[T](k, handle)
}

// finish reads an open object and closes it.
func finish[T any](k kindFunctions, handle uintptr) (v T, err error) {
	defer k.close.Call(handle) // its result does not matter
	q, err := encode(query{SchemaVersion: schema})
	if err != nil {
		return v, err
	}
	var properties *uint16
	if err := call(k.query, handle, uintptr(unsafe.Pointer(q)), uintptr(unsafe.Pointer(&properties))); err != nil {
		return v, err
	}
	return decode[T](k.query, properties)
}

func (h *hcnHNS) EndpointIDs(network string) ([]string, error) {
	filter, err := json.Marshal(map[string]string{"VirtualNetwork": network})
	if err != nil {
		return nil, err
	}
	return h.f.endpoint.ids(string(filter))
}

func (h *hcnHNS) Endpoint(id string) (Endpoint, error) { return read[Endpoint](h.f.endpoint, id) }

func (h *hcnHNS) BalancerIDs() ([]string, error) { return h.f.balancer.ids("") }

func (h *hcnHNS) Balancer(id string) (LoadBalancer, error) {
	return read[LoadBalancer](h.f.balancer, id)
}

// CreateEndpoint implements HNS. A network that was held open may be no more, or
// HNS was restarted: it is opened once again, now or by the next call.
func (h *hcnHNS) CreateEndpoint(e Endpoint) (Endpoint, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	made, err := h.create(e)
	lost, again := HandleLost(err)
	if lost {
		h.release()
	}
	if again {
		made, err = h.create(e)
	}
	return made, err
}

func (h *hcnHNS) create(e Endpoint) (Endpoint, error) {
	if err := h.hold(e.HostComputeNetwork); err != nil {
		return e, err
	}
	settings, err := encode(e)
	if err != nil {
		return e, err
	}
	var id windows.GUID // HNS chooses one
	var handle uintptr
	err = call(h.f.createEndpoint, h.handle, uintptr(unsafe.Pointer(&id)), uintptr(unsafe.Pointer(settings)), uintptr(unsafe.Pointer(&handle)))
	if err != nil {
		return e, err
	}
	return finish[Endpoint](h.f.endpoint, handle)
}

// hold opens a network, and keeps it open for the next endpoint.
func (h *hcnHNS) hold(network string) error {
	if h.network == network {
		return nil
	}
	g, err := guid(network)
	if err != nil {
		return err
	}
	h.release()
	if err := call(h.f.openNetwork, uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(&h.handle))); err != nil {
		return err
	}
	h.network = network
	return nil
}

func (h *hcnHNS) release() {
	if h.network != "" {
		h.network = ""
		h.f.closeNetwork.Call(h.handle) // it may be gone already
	}
}

func (h *hcnHNS) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release()
	return nil
}
