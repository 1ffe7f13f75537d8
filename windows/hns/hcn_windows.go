// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"

	"github.com/tandem-proxy/tandem/windows/hns/dll"
)

// hcnHNS is the HNS of this machine: Functions, and package hcn of Microsoft's hcsshim for
// the other methods.
type hcnHNS struct{ *Functions }

func newHCN() hcnHNS { return hcnHNS{NewFunctions(dll.Local())} }

var _ HNS = hcnHNS{}

func (hcnHNS) Version() (Version, error) {
	g, err := hcn.GetGlobals()
	if err != nil {
		return Version{}, hcnError("HNSCall", err)
	}
	return Version{g.Version.Major, g.Version.Minor}, nil
}

func (hcnHNS) Networks() ([]Network, error) {
	all, err := hcn.ListNetworks()
	if err != nil {
		return nil, hcnError("list networks", err)
	}
	return recast[[]Network](all)
}

func (hcnHNS) CreateBalancer(lb LoadBalancer) (LoadBalancer, error) {
	return balancerCall("create load balancer", lb, func(x *hcn.HostComputeLoadBalancer) (*hcn.HostComputeLoadBalancer, error) {
		return x.Create()
	})
}

func (hcnHNS) ModifyBalancer(id string, to LoadBalancer) (LoadBalancer, error) {
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

func (hcnHNS) DeleteBalancer(id string) error {
	return hcnError("delete load balancer", (&hcn.HostComputeLoadBalancer{Id: id}).Delete())
}

func (hcnHNS) DeleteEndpoint(id string) error {
	return hcnError("delete endpoint", (&hcn.HostComputeEndpoint{Id: id}).Delete())
}

// recast converts between hcn's type of an object and this package's, by their JSON,
// whose field names are the same.
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

// hcnError converts an error of hcn into an *Error. hcn's own predicates do not
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
